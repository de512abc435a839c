"""Every mistake that a user can make: one line, exit code 2, no traceback, and nothing lost that was there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from interrupted import execute, in_a_process
from language_folders import write_tokenizer
from language_runs import language_run
from recurra.core.files import locked_folder
from reviews import review_rows, write_csv

REVIEWS = review_rows(30)


@pytest.fixture(autouse=True)
def _no_data_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECURRA_DATA_ROOT", raising=False)


def _unfolding(path: Path) -> Path:
    """One text in all rows: 8 GB."""
    rows = 20_000
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["x" * 400_000])
    pq.write_table(pa.table({"text": texts, "label": [row % 2 for row in range(rows)]}), path, compression="zstd")
    return path


def test_a_bad_file_is_refused_before_anything_is_written(tmp_path: Path, refused: Callable[..., str]) -> None:
    path, output = write_csv(tmp_path / "r.csv", REVIEWS), tmp_path / "out"
    neutral = write_csv(tmp_path / "neutral.csv", [*REVIEWS, *[(f"so so {row}", "neutral") for row in range(9)]])
    misspelt = write_csv(tmp_path / "test.csv", [*REVIEWS[:4], ("so so", "neutrall")])
    for source, options, said in (
        (path, ["--text-column", "body"], "no column 'body'; its columns are 'text', 'label'; name the right one with"),
        (
            neutral,
            ["--test", misspelt],
            "test.csv' line 6 has the label 'neutrall' (did you mean 'neutral'?), which the training data lacks",
        ),
        (_unfolding(tmp_path / "r.parquet"), [], "unfolds to more than 4,000,000,000 bytes of text in the first"),
        (path, ["--test", tmp_path / ("x" * 300 + ".csv")], ".csv': File name too long; give"),
    ):
        for model in ("linear", "recurrent"):
            assert said in refused("train", "--model", model, "--data", source, "--output", output, *options)
        assert said in refused("compare", source, "--output", output, *options)
        assert said in refused("data", "describe", source, *options)
        assert said in refused("audit", "data", source, *options)
        assert not output.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["model.hidden_size=7"], "'num_attention_heads' is 4"),
        (["--precision", "fp8"], "'precision' is \"fp8\""),
        (["--tokenizer", "bert-base-cased"], "unknown tokenizer 'bert-base-cased' (did you mean 'bert-base-uncased'?)"),
        (["--data-protocol", "pooled"], "unknown protocol of"),
        (["--model", "linear", "--protocol", "paper"], "protocol is 'paper', and no training protocol trains linear"),
        (["--model", "setfit", "batch_size=4"], "batch_size is 4, and no training protocol trains setfit"),
        (["distillation_weight=0.5"], "'distillation_weight' is 0.5, which changes nothing without a teacher"),
        (["--model", "linear-tuned", "model.teacher=x", "max_epochs=9"], "max_epochs is 9, and no training protocol"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_unknown_names_and_impossible_values_are_refused(
    arguments: list[str], said: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    base = ["--model", "recurrent", "--data", write_csv(tmp_path / "r.csv", REVIEWS), "--output", tmp_path / "out"]
    assert said in refused("train", *base, *arguments)


def test_yaml_beyond_all_bounds_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    data = ["--data", write_csv(tmp_path / "r.csv", REVIEWS), "--output", tmp_path / "out"]
    path, said = tmp_path / "s.yaml", "it holds values that are not plain (Circular ref"
    # More of this kind: tests/unit/core/test_configuration.py.
    path.write_text("name: &a [*a]\n")
    for words in (
        ["study", "run", path, "--output", tmp_path / "out"],
        ["study", "plan", path],
        ["train", "--model", path, *data],
        ["train", "--model", "recurrent", "--protocol", path, *data],
        ["train", "--model", "linear", *data, "max_epochs=&a [*a]"],
        ["data", "describe", data[1], "fraction=&a [*a]"],
    ):
        assert said in refused(*words)


def test_without_a_network_the_message_names_what_would_do(tmp_path: Path, refused: Callable[..., str]) -> None:
    output = tmp_path / "out"
    for arguments in (
        ["compare", "sst2"],
        ["train", "--model", "linear", "--data", "sst2"],
        ["data", "describe", "sst2"],
        ["data", "describe", "yelp_polarity"],
    ):
        said = refused(*arguments, *(["--output", output] if arguments[0] != "data" else []))
        assert "--data-root" in said
    path = write_csv(tmp_path / "r.csv", REVIEWS)
    said = refused("compare", path, "--from-scratch", "--tokenizer", "bert-base-uncased", "--output", output)
    assert "--data-root" in said and "tokenizer=trained" in said
    assert not output.exists()


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a tiny language model with an exit."""
    root = tmp_path_factory.mktemp("good")
    config = language_run(root, "max_epochs=1")
    assert in_a_process(execute, config.plain(), root / "run", []) == 0
    return root / "run"


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def change(run: Path, **values: Any) -> None:
    path = run / "model" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}), encoding="utf-8")


COMMANDS: dict[str, tuple[list[str], list[str]]] = {
    "predict": (["predict"], ["a text"]),
    "evaluate": (["evaluate"], []),
    "generate": (["generate"], ["the river"]),
    "exits": (["exits"], ["--threads", "1"]),
    "audit": (["audit", "model"], []),
}
LANGUAGE = ("evaluate", "generate", "exits", "audit")
# What is done to a run, what is said, and which commands read that part of it. Of the model's own files and those of an
# export: the tests of what reads them, and `faults`.
Damage = tuple[Callable[[Path], object], str, tuple[str, ...]]
DAMAGE: dict[str, dict[str, Damage]] = {
    "run": {
        "truncated weights": (
            lambda run: _cut(run / "model" / "model.safetensors"),
            "incomplete or damaged safetensors file",
            ("predict", "evaluate"),
        ),
        "truncated record": (
            lambda run: _cut(run / "record.json"), "cannot be read as a record", ("predict", "evaluate"),
        ),
        "no record": (lambda run: (run / "record.json").unlink(), "not a finished run", ("predict", "evaluate")),
        "a record of something else": (
            lambda run: (run / "record.json").write_text('{"a": 1}'), "not a record of ours", ("predict", "evaluate"),
        ),
        "a broken tokenizer": (
            lambda run: _cut(run / "model" / "tokenizer.json"), "tokenizer", ("predict", "evaluate"),
        ),
    },
    "language": {
        "tokenizer of another model": (lambda run: write_tokenizer(run / "model", 340), "tokenizer", LANGUAGE[:3]),
        "truncated weights": (
            lambda run: _cut(run / "model" / "model.safetensors"),
            "no causal language model that can be loaded",
            LANGUAGE,
        ),
        "impossible configuration": (lambda run: change(run, num_recurrences=0), "'num_recurrences'", LANGUAGE),
        "no model": (lambda run: shutil.rmtree(run / "model"), "run", LANGUAGE),
        "truncated record": (lambda run: _cut(run / "record.json"), "record", ("evaluate", "exits", "audit")),
        "made to leak": (
            lambda run: change(run, causal_convolution=False), "this model cannot generate: it leaks", ("exits",),
        ),
    },
}  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, damages in DAMAGE.items() for name in damages])
def test_a_damaged_run_is_refused(
    kind: str, name: str, request: pytest.FixtureRequest, tmp_path: Path, refused: Callable[..., str]
) -> None:
    run = Path(shutil.copytree(request.getfixturevalue(kind), tmp_path / "run"))
    damage, said, commands = DAMAGE[kind][name]
    damage(run)
    # Of a run from before models were sealed, what is wrong is found out where it is read.
    (run / "model-files.json").unlink(missing_ok=True)
    for command in commands:
        before, after = COMMANDS[command]
        assert said in refused(*before, run, *after), command


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--stride", "17"], "stride 17 is impossible; allowed: 1 to the context, 16"),
        (["--split", "tset"], "'tset' (did you mean 'test'?)"),
        (["--split", "test", "--data", "x.txt"], "give one of the two"),
        (["--precision", "fp8"], "unknown precision 'fp8'"),
        (["--text-column", "body"], "'--text-column' has no meaning here"),
        (["--batch-size", "3"], "'--batch-size' has no meaning here"),
        (["--output", "p.csv"], "'--output' has no meaning here"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_language_model_is_not_evaluated_so(
    options: list[str], said: str, language: Path, refused: Callable[..., str]
) -> None:
    assert said in refused("evaluate", language, *options)


def test_predict_refuses_bad_input_and_keeps_the_old_output(
    linear_run: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    (tmp_path / "empty").mkdir()
    for name, said in (("empty", "is not a run folder"), ("nowhere", "does not exist")):
        assert f"{said}; give a folder made by 'recurra train'" in refused("predict", tmp_path / name, "a text")
    output, path, long = (tmp_path / name for name in ("p.csv", "in.csv", "x" * 300 + ".csv"))
    output.write_text("old\n")
    path.write_bytes(b"text\n" + b"a good text\n" * 5000 + b"caf\xe9\n")
    assert "0xe9, which is not UTF-8" in refused("predict", linear_run, "--input", path, "--output", output)
    for arguments, said in (
        (["--input", output, "--output", tmp_path / "q.csv"], "has no column 'text'"),
        (["--input", output, "--output", output], "the input itself"),
        (["a", "--output", tmp_path / "p.xls"], "unknown extension '.xls'"),
        ([], "no texts are given"),
        (["a text", "--input", output], "give one of the two"),
        (["--input", long], "File name too long"),
        (["a", "--output", long], "File name too long"),
    ):
        assert said in refused("predict", linear_run, *arguments)
    assert "File name too long" in refused("evaluate", linear_run, "--data", long)
    assert "File name too long" in refused("predict", long, "a")
    unfolding = _unfolding(tmp_path / "r.parquet")
    assert "unfolds to more than 4,000,000,000 bytes" in refused("evaluate", linear_run, "--data", unfolding)


def test_folders_of_something_else_and_those_in_use_are_left_alone(tmp_path: Path, refused: Callable[..., str]) -> None:
    path, folder, blocked = write_csv(tmp_path / "r.csv", REVIEWS), tmp_path / "mine", tmp_path / "file"
    folder.mkdir()
    (folder / "letter.txt").write_text("dear\n")
    blocked.write_text("mine\n")
    train, compare = ["train", "--model", "linear", "--data", path], ["compare", path, "--models", "linear"]
    for command, output, said in (
        (train, folder, "is not empty and not a run folder of ours; choose another --output"),
        (compare, folder, "is not empty and not a study of ours; choose another --output"),
        (train, blocked, "a file stands where a folder is needed; choose another --output"),
        (compare, blocked / "deeper", "a file stands"),
    ):
        assert said in refused(*command, "--output", output)
    with locked_folder(tmp_path / "run"):
        said = f"'{tmp_path / 'run'}' is in use by another process (pid {os.getpid()}); wait for it to end"
        assert said in refused(*train, "--output", tmp_path / "run")
        assert said in refused(*compare, "--output", tmp_path / "run")
