"""``recurra data`` on running text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recurra.cli.main import main
from recurra.data.language.corpora import load_language_dataset
from recurra.data.language.preparation import encode_for
from recurra.data.language.tokenization import load_language_tokenizer
from recurra.tasks.language.task import TASK
from recurra.tasks.runs import resolve_model
from recurra.tasks.study_data import StudyData

LINE = "The river runs past the old mill and the field , and number {} floats on it ."


@pytest.fixture(autouse=True)
def _no_data_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECURRA_DATA_ROOT", raising=False)


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "river.txt"
    path.write_text("".join(f"{LINE.format(number)}\n\nshort\n" for number in range(40)))
    return str(path)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_list_names_the_text_corpora(capsys: pytest.CaptureFixture[str]) -> None:
    corpora = {item["name"]: item for item in answer(capsys, "data", "list")["corpora"]}
    assert corpora["wikitext-2-v1"]["public_name"] == "Salesforce/wikitext, wikitext-2-v1"
    assert corpora["english_novels"]["public_name"] is None
    assert set(corpora["wikitext-103-raw-v1"]["modes"]) == {"packed", "lines"}
    assert {item["kind"] for item in corpora.values()} == {"labelled", "text"}


def test_describe(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    splits = answer(capsys, "data", "describe", text)["splits"]
    assert sum(split["lines"] for split in splits.values()) == 120
    assert sum(split["long_lines"] for split in splits.values()) == 40
    assert main(["data", "describe", text]) == 0
    assert "river.txt" in capsys.readouterr().out


def test_prepare_in_both_modes(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["data", "prepare", text, "--cache-dir", str(tmp_path / "cache"), "trained_vocab_size=320"]
    packed = answer(capsys, *arguments, "context=16")
    train = packed["splits"][0]
    assert packed["tokenizer"]["lossless"] and packed["tokenizer"]["vocab_size"] <= 320
    assert train["samples"] * 16 + train["dropped_tokens"] == train["tokens"]
    assert len(list((tmp_path / "cache").iterdir())) == 3
    assert answer(capsys, *arguments, "context=16") == packed
    lines = answer(capsys, *arguments, "mode=lines", "max_lines=5", "context=8")["splits"]
    assert (lines[0]["samples"], lines[0]["cut"]) == (5, 5) and lines[1]["samples"] is None
    assert main([*arguments, "context=16"]) == 0
    assert "fill no block" in capsys.readouterr().out


def test_prepare_tokenises_what_train_then_uses(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "tiny.yaml"
    model.write_text("preset: crt-tiny\nvocab_size: 320\nmax_position_embeddings: 24\n", encoding="utf-8")
    found = answer(capsys, "data", "prepare", text, "--model", str(model), "--cache-dir", str(tmp_path / "cache"))
    resolved, keys = resolve_model(str(model))
    used, _ = TASK.configure_data({"name": text}, StudyData(), models=[(resolved, keys)])
    assert (found["context"], used.context, used.tokenizer, used.trained_vocab_size) == (24, 24, "trained", 320)
    assert found["tokenizer"]["vocab_size"] <= 320
    # What a training looks for lies in the cache.
    kept = {path.name for path in (tmp_path / "cache").iterdir()}
    dataset = load_language_dataset(used)
    tokenizer = load_language_tokenizer(used, dataset, None)
    for split in dataset.splits.values():
        encode_for(split, used, tokenizer, tmp_path / "cache")
    assert {path.name for path in (tmp_path / "cache").iterdir()} == kept


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["context=0"], "'context' is 0: allowed: 2 to"),
        (["context=-1"], "'context' is -1: allowed: 2 to"),
        (["contxt=8"], "did you mean 'data.context'"),
        (["mode=pack"], "'mode' is \"pack\""),
        (["context=100000"], "do not fill one block of 100000"),
        (["--data-protocol", "official"], "'--data-protocol' has no meaning here"),
        (["--text-column", "body"], "'--text-column' has no meaning here"),
        (["--tokenizer", "gtp2"], "did you mean 'gpt2'"),
    ],
)
def test_what_is_wrong_is_one_line(
    arguments: list[str],
    said: str,
    text: str,
    tmp_path_factory: pytest.TempPathFactory,
    refused: Callable[..., str],
) -> None:
    # The tokenizer that was trained on the way may stay.
    cache = tmp_path_factory.mktemp("cache")
    assert said in refused("data", "prepare", text, "--cache-dir", cache, *arguments)


def test_a_file_that_is_no_text(tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "a.txt").write_bytes(b"fine\n\xff\n")
    assert "line 2, byte 1" in refused("data", "describe", tmp_path / "a.txt")
