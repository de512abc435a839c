"""Commands and studies on running text; what a user can get wrong is one line, exit code 2."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from language_runs import write_text
from recurra.core.errors import ConfigurationError
from recurra.data.configuration import DataConfig, LanguageDataConfig
from recurra.data.language.corpora import load_language_dataset
from recurra.data.language.tokenization import encode_for, load_language_tokenizer
from recurra.models.configuration import CYCLES, SWIGLU
from recurra.models.presets import preset
from recurra.study.assignments import read_assignments
from recurra.study.spec import StudySpec, expand
from recurra.tasks.base import RunConfig
from recurra.tasks.language.task import TASK
from recurra.tasks.runs import resolve_model
from recurra.tasks.study_data import StudyData
from recurra.training.protocols import LANGUAGE_PROTOCOLS, PROTOCOLS
from reviews import Command, write_reviews


@pytest.fixture(autouse=True)
def _no_data_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECURRA_DATA_ROOT", raising=False)


@pytest.fixture
def text(tmp_path: Path) -> str:
    return str(write_text(tmp_path / "river.txt"))


def test_list_names_the_text_corpora(command: Command) -> None:
    corpora = {item["name"]: item for item in command("data", "list", "--json").json["corpora"]}
    assert corpora["wikitext-2-v1"]["public_name"] == "Salesforce/wikitext, wikitext-2-v1"
    assert corpora["english_novels"]["public_name"] is None
    assert set(corpora["wikitext-103-raw-v1"]["modes"]) == {"packed", "lines"}
    assert {item["kind"] for item in corpora.values()} == {"labelled", "text"}


def test_prepare_in_both_modes(text: str, tmp_path: Path, command: Command) -> None:
    arguments = ["data", "prepare", text, "--cache-dir", tmp_path / "cache", "trained_vocab_size=320", "context=16"]
    packed = command(*arguments, "--json").json
    train = packed["splits"][0]
    assert packed["tokenizer"]["lossless"] and packed["tokenizer"]["vocab_size"] <= 320
    assert train["samples"] * 16 + train["dropped_tokens"] == train["tokens"]
    assert len(list((tmp_path / "cache").iterdir())) == 3
    assert command(*arguments, "--json").json == packed
    lines = command(*arguments, "--json", "mode=lines", "max_lines=5", "context=8").json["splits"]
    assert (lines[0]["samples"], lines[0]["cut"]) == (5, 5) and lines[1]["samples"] is None
    assert "fill no block" in command(*arguments).out


def test_prepare_tokenises_what_train_then_uses(text: str, tmp_path: Path, command: Command) -> None:
    model, cache = tmp_path / "tiny.yaml", tmp_path / "cache"
    model.write_text("preset: crt-tiny\nvocab_size: 320\nmax_position_embeddings: 24\n", encoding="utf-8")
    found = command("data", "prepare", text, "--model", model, "--cache-dir", cache, "--json").json
    used, _ = TASK.configure_data({"name": text}, StudyData(), models=[resolve_model(str(model))])
    assert (found["context"], used.context, used.tokenizer, used.trained_vocab_size) == (24, 24, "trained", 320)
    assert found["tokenizer"]["vocab_size"] <= 320
    # What a training looks for lies in the cache.
    kept = {*cache.iterdir()}
    dataset = load_language_dataset(used)
    tokenizer = load_language_tokenizer(used, dataset, None)
    for split in dataset.splits.values():
        encode_for(split, used, tokenizer, cache)
    assert {*cache.iterdir()} == kept


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("context=0", "'context' is 0: input should be greater than or equal to 2"),
        ("contxt=8", "did you mean 'data.context'"),
        ("mode=pack", "'mode' is \"pack\""),
        ("context=100000", "do not fill one block of 100000"),
        ("--data-protocol official", "'--data-protocol' has no meaning here"),
        ("--text-column body", "'--text-column' has no meaning here"),
        ("--tokenizer gtp2", "did you mean 'gpt2'"),
    ],
)
def test_what_is_wrong_is_one_line(
    arguments: str, said: str, text: str, tmp_path_factory: pytest.TempPathFactory, refused: Callable[..., str]
) -> None:
    # The tokenizer that was trained on the way may stay.
    cache = tmp_path_factory.mktemp("cache")
    assert said in refused("data", "prepare", text, "--cache-dir", cache, *arguments.split())


def test_a_file_that_is_no_text(tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "a.txt").write_bytes(b"fine\n\xff\n")
    assert "line 2, byte 1" in refused("data", "describe", tmp_path / "a.txt")


TEXT = LanguageDataConfig(name="wikitext-2", context=128, tokenizer="trained")


MISTAKES = [
    ("crt-tiny reviews.csv", r"'crt-tiny' is a language model, and .* is not running text; .*a \.txt file"),
    ("linear river.txt", r"'linear' is a linear classifier, and .* is running text"),
    ("crt-tiny river.txt data.max_lines=5", r"max_lines is for mode 'lines'"),
    ("crt-tiny river.txt model.eos_token_id=3", r"'eos_token_id' is decided by the tokenizer"),
    ("crt-tiny river.txt data.context=3000", r"context is 3000, and 'crt-tiny' reads at most \d+ tokens"),
    ("crt-tiny river.txt data.tokenizer=gpt2", r"the tokenizer gpt2 cannot be loaded"),
    ("crt-tiny river.txt label_smoothing=0.1", r"'label_smoothing' is 0.1: .*allowed: 0"),
    ("crt-tiny wikitxt-2", r"'wikitxt-2' is not running text \(did you mean 'wikitext-2'"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=[words for words, _ in MISTAKES])
def test_a_mistake_is_one_line_and_leaves_nothing(
    words: str, message: str, text: str, tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_reviews(tmp_path / "reviews.csv")
    monkeypatch.chdir(tmp_path)
    model, data, *keys = words.split()
    error = refused("train", "--model", model, "--data", data, "--output", "run", *keys)
    assert re.search(message, error), error


def test_what_is_not_named_follows_from_the_model(text: str) -> None:
    def chosen(model: str, *keys: str) -> tuple[str, int, int]:
        assigned = read_assignments(keys)
        values = {"name": text, **assigned.data}
        config, _ = TASK.configure_data(values, StudyData(), models=[(model, assigned.model)])
        return config.tokenizer, config.trained_vocab_size, config.context

    assert chosen("crt-tiny") == ("trained", 8192, 256)
    assert chosen("crt-tiny", "data.trained_vocab_size=500", "data.context=64") == ("trained", 500, 64)
    assert chosen("crt-tiny", "model.max_position_embeddings=96") == ("trained", 8192, 96)
    assert chosen("crt-deep")[2] == 1024


def test_leaks_by_name_are_those_of_the_configuration() -> None:
    for shape, causal, kernel in product((SWIGLU, *CYCLES), (True, False), (1, 3)):
        keys = {"feed_forward": shape, "causal_convolution": causal, "kernel_size": kernel}
        if shape == SWIGLU:
            keys |= {"num_cycles": 1, "embedding_cycles": 0}
        label = TASK.label("x", {"preset": "crt-tiny", **keys})
        assert label.endswith("-leaks") == preset("crt-tiny", **keys).leaks, keys
    assert TASK.label("x-leaks", {"preset": "crt-tiny", "causal_convolution": False}) == "x-leaks"
    # A name needs no right kernel size.
    assert all(TASK.label("crt-tiny", {"kernel_size": size}) == "crt-tiny" for size in (None, "5", [3]))


def planned(**values: object) -> list[RunConfig]:
    """Runs of a study of a language model."""
    return expand(
        StudySpec.parse({"name": "s", "data": [TEXT.plain()], "models": ["crt-tiny"], "seeds": [0], **values})
    )


def test_a_study_takes_the_protocols_of_its_task() -> None:
    protocols = [run.protocol for run in planned(protocols=["paper", "tuned"])]
    assert protocols == [LANGUAGE_PROTOCOLS["paper"], LANGUAGE_PROTOCOLS["tuned"]]
    (labelled,) = planned(data=[{"name": "demo"}], models=["baseline"])
    assert labelled.protocol == PROTOCOLS["paper"] and isinstance(labelled.data, DataConfig)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"data": [TEXT.plain(), {"name": "sst2"}]}, "running text and labelled data are two studies"),
        ({"contrasts": [{"name": "c", "a": "crt-tiny", "b": "x"}]}, "contrast 'c': unknown model of this study 'x'"),
        ({"exports": [{"precision": "fp16"}]}, "'exports' has no meaning for running text"),
        ({"published": [{"table": "6"}]}, "'published' has no meaning for running text"),
        ({"data": [{"name": "wikitext-2", "contxt": 3}]}, r"data 'wikitext-2': unknown key 'contxt' \(did you mean"),
        ({"models": ["crt-tiny", "recurrent"]}, "'recurrent' classifies texts, and 'wikitext-2-v1' is running text"),
        ({"models": [{"name": "both-ways", "preset": "crt-tiny", "causal": False}]}, "'causal' is False; allowed"),
        ({"protocol_overrides": ["class_weights=balanced"]}, r"'class_weights' is balanced: for classifiers"),
        ({"protocol_overrides": ["distillation_weight=0.5"]}, r"'distillation_weight' is 0.5: for classifiers"),
        (
            {"protocols": [{"name": "mine", "base": "tuned", "exit_distillation": 0.5}]},
            r"'exit_distillation' is 0.5: for classifiers",
        ),
    ],
)
def test_what_no_study_of_language_models_can_be_shows_when_the_plan_is_made(
    values: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        planned(**values)
