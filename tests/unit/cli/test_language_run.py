"""``recurra train`` and ``evaluate`` on running text: what a user can get wrong is one line, exit code 2."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from language_runs import write_text
from recurra.core.errors import ConfigurationError
from recurra.data.configuration import DataConfig
from recurra.data.language.configuration import LanguageDataConfig
from recurra.models.configuration import CYCLES, SWIGLU
from recurra.models.presets import preset
from recurra.study.assignments import read_assignments
from recurra.study.spec import StudySpec, expand
from recurra.tasks.language.task import TASK
from recurra.tasks.study_data import StudyData
from recurra.training.protocols import LANGUAGE_PROTOCOLS, PROTOCOLS
from reviews import write_reviews

TEXT = LanguageDataConfig(name="wikitext-2", context=128, tokenizer="trained")


@pytest.fixture
def text(tmp_path: Path) -> str:
    return str(write_text(tmp_path / "river.txt"))


MISTAKES = [
    ("crt-tiny", "reviews.csv", [], r"'crt-tiny' is a language model, and .* is not running text; .*a \.txt file"),
    ("recurrent", "river.txt", [], r"'recurrent' classifies texts, and .* is running text .*a language model: crt-"),
    ("linear", "river.txt", [], r"'linear' is a linear classifier, and .* is running text"),
    ("crt-tiny", "river.txt", ["data.contxt=64"], r"unknown key 'data.contxt' \(did you mean 'data.context'\?\)"),
    ("crt-tiny", "river.txt", ["data.max_length=64"], r"unknown key 'data.max_length'"),
    ("crt-tiny", "river.txt", ["data.max_lines=5"], r"max_lines is for mode 'lines'"),
    ("crt-tiny", "river.txt", ["model.eos_token_id=3"], r"'eos_token_id' is decided by the tokenizer"),
    ("crt-tiny", "river.txt", ["model.num_recurrences=0"], r"'num_recurrences'"),
    ("crt-tiny", "river.txt", ["label_smoothing=0.1"], r"'label_smoothing' is 0.1: .*allowed: 0"),
    ("crt-tiny", "river.txt", ["data.tokenizer=gtp2"], r"unknown tokenizer 'gtp2' \(did you mean 'gpt2'\?\)"),
    ("crt-tiny", "wikitxt-2", [], r"'wikitxt-2' is not running text \(did you mean 'wikitext-2'"),
    ("crt-tny", "river.txt", [], r"unknown model 'crt-tny' \(did you mean 'crt-tiny'\?\)"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "data", "keys", "message"), MISTAKES, ids=lambda value: str(value)[:40])
def test_a_mistake_is_one_line_and_leaves_nothing(
    model: str, data: str, keys: list[str], message: str, text: str, tmp_path: Path, refused: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.delenv("RECURRA_DATA_ROOT", raising=False)
    write_reviews(tmp_path / "reviews.csv")
    monkeypatch.chdir(tmp_path)
    error = refused("train", "--model", model, "--data", data, "--output", "run", *keys)
    assert re.search(message, error), error


@pytest.mark.parametrize("option", ["--text-column", "--data-protocol"])
def test_options_of_labelled_data_are_refused(option: str, text: str, refused: Callable[..., str]) -> None:
    error = refused("train", "--model", "crt-tiny", "--data", text, "--output", "run", option, "x")
    assert f"'{option}' has no meaning here" in error and "is running text" in error


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
    for shape in (SWIGLU, *CYCLES):
        for causal in (True, False):
            for kernel in (1, 3):
                keys = {"feed_forward": shape, "causal_convolution": causal, "kernel_size": kernel}
                if shape == SWIGLU:
                    keys |= {"num_cycles": 1, "embedding_cycles": 0}
                label = TASK.label("x", {"preset": "crt-tiny", **keys})
                assert label.endswith("-leaks") == preset("crt-tiny", **keys).leaks, keys
    assert TASK.label("x-leaks", {"preset": "crt-tiny", "causal_convolution": False}) == "x-leaks"


def spec(**values: object) -> StudySpec:
    return StudySpec.parse({"name": "s", "data": [TEXT.plain()], "models": ["crt-tiny"], **values})


def test_a_study_takes_the_protocols_of_its_task() -> None:
    runs = expand(spec(protocols=["paper", "tuned"], seeds=[0]))
    assert [run.protocol for run in runs] == [LANGUAGE_PROTOCOLS["paper"], LANGUAGE_PROTOCOLS["tuned"]]
    labelled = expand(StudySpec.parse({"name": "s", "data": [{"name": "demo"}], "models": ["baseline"], "seeds": [0]}))
    assert labelled[0].protocol == PROTOCOLS["paper"] and isinstance(labelled[0].data, DataConfig)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"data": [TEXT.plain(), {"name": "sst2"}]}, "running text and labelled data are two studies"),
        ({"contrasts": [{"name": "c", "a": "crt-tiny", "b": "x"}]}, "contrast 'c': unknown model of this study 'x'"),
        ({"exports": [{"precision": "fp16"}]}, "'exports' has no meaning for running text"),
        ({"published": [{"table": "6"}]}, "'published' has no meaning for running text"),
        ({"data": [{"name": "wikitext-2", "contxt": 3}]}, r"data 'wikitext-2': unknown key 'contxt' \(did you mean"),
        (
            {"data": [{"name": "sst2", "max_lenght": 3}]},
            r"data 'sst2': unknown key 'max_lenght' \(did you mean",
        ),
    ],
)
def test_a_study_of_both_tasks_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        spec(**values)


def test_a_model_of_the_other_task_is_refused_before_any_run() -> None:
    with pytest.raises(ConfigurationError, match=r"'recurrent' classifies texts, and 'wikitext-2-v1' is running text"):
        expand(spec(models=["crt-tiny", "recurrent"]))
