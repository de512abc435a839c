"""Every mistake that a user can make: one line, exit code 2, no traceback, and nothing lost that was there."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from interrupted import execute, in_a_process
from language_folders import write_tokenizer
from language_runs import language_run
from reviews import review_rows, train_linear, train_tiny, write_csv

REVIEWS = review_rows(30)


@pytest.fixture(autouse=True)
def _no_data_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECURRA_DATA_ROOT", raising=False)


def _two_labels_in_test(path: Path) -> list[object]:
    other = write_csv(path.with_name("test.csv"), [*REVIEWS[:4], ("so so", "neutrall")])
    return [write_csv(path, [*REVIEWS, *[(f"so so {i}", "neutral") for i in range(9)]]), "--test", other]


def _unfolding(path: Path) -> list[object]:
    """One text in all rows: 8 GB."""
    rows = 20_000
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["x" * 400_000])
    path = path.with_name("r.parquet")
    pq.write_table(pa.table({"text": texts, "label": [row % 2 for row in range(rows)]}), path, compression="zstd")
    return [path]


BAD_FILES: dict[str, tuple[Callable[[Path], list[object]], str]] = {
    "missing column": (
        lambda path: [write_csv(path, REVIEWS), "--text-column", "body"],
        "has no column 'body'; its columns are 'text', 'label'; name the right one with --text-column",
    ),
    "a label in test that train lacks": (
        _two_labels_in_test,
        "test.csv' line 6 has the label 'neutrall' (did you mean 'neutral'?), which the training data lacks",
    ),
    "gigabytes in a kilobyte": (_unfolding, "unfolds to more than 4,000,000,000 bytes of text in the first"),
    "a test file of 300 characters": (
        lambda path: [write_csv(path, REVIEWS), "--test", path.with_name("x" * 300 + ".csv")],
        ".csv': File name too long; give",
    ),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_refused_before_anything_is_written(
    name: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    make, said = BAD_FILES[name]
    path, *options = make(tmp_path / "r.csv")
    output = tmp_path / "out"
    for model in ("linear", "recurrent"):
        assert said in refused("train", "--model", model, "--data", path, "--output", output, *options)
    assert said in refused("compare", path, "--output", output, *options)
    assert said in refused("data", "describe", path, *options)
    assert said in refused("audit", "data", path, *options)
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
)
def test_unknown_names_and_impossible_values_are_refused(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    refused: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "r.csv", REVIEWS)
    base = ["--model", "recurrent", "--data", "r.csv", "--output", "out"]
    assert said in refused("train", *base, *arguments)
    assert not (tmp_path / "out").exists()


HOSTILE_YAML = {
    "an anchor that holds itself": ("name: &a [*a]\n", "it holds values that are not plain (Circular ref"),
    "laughs": (
        "a: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 9}]\n" for n in range(1, 20)),
        "each alias counted as what it names",
    ),
}


@pytest.mark.parametrize("name", HOSTILE_YAML)
def test_yaml_beyond_all_bounds_is_refused(name: str, tmp_path: Path, refused: Callable[..., str]) -> None:
    text, said = HOSTILE_YAML[name]
    path, data = tmp_path / "s.yaml", write_csv(tmp_path / "r.csv", REVIEWS)
    path.write_text(text)
    output = tmp_path / "out"
    assert said in refused("study", "run", path, "--output", output)
    assert said in refused("study", "plan", path)
    assert said in refused("train", "--model", path, "--data", data, "--output", output)
    assert said in refused("train", "--model", "recurrent", "--protocol", path, "--data", data, "--output", output)
    value = text.partition(": ")[2].partition("\n")[0]
    if name != "laughs":
        assert said in refused("train", "--model", "linear", "--data", data, "--output", output, f"max_epochs={value}")
        assert said in refused("data", "describe", data, f"fraction={value}")


def test_without_a_network_the_message_names_what_would_do(tmp_path: Path, refused: Callable[..., str]) -> None:
    output = tmp_path / "out"
    for arguments in (
        ["compare", "sst2"],
        ["train", "--model", "linear", "--data", "sst2"],
        ["data", "describe", "sst2"],
        ["data", "describe", "yelp_polarity"],
        ["data", "describe", "yelp_reviews"],
        ["data", "describe", "domains"],
    ):
        said = refused(*arguments, *(["--output", output] if arguments[0] != "data" else []))
        assert "--data-root" in said
    path = write_csv(tmp_path / "r.csv", REVIEWS)
    said = refused("compare", path, "--from-scratch", "--tokenizer", "bert-base-uncased", "--output", output)
    assert "--data-root" in said and "tokenizer=trained" in said
    assert not output.exists()


# What is wrong with a run folder.


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two good run folders, ``linear`` and ``tiny``."""
    folder = tmp_path_factory.mktemp("runs")
    train_linear(folder)
    train_tiny(folder)
    return folder


@pytest.fixture
def tiny(runs: Path, tmp_path: Path) -> Path:
    shutil.copytree(runs / "tiny", tmp_path / "run")
    return tmp_path / "run"


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


# Of the model's own files and those of an export: the tests of what reads them, and `faults`.
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated weights": (
        lambda run: _cut(run / "model" / "model.safetensors"),
        "incomplete or damaged safetensors file",
    ),
    "truncated record": (lambda run: _cut(run / "record.json"), "cannot be read as a record"),
    "no record": (lambda run: (run / "record.json").unlink(), "not a finished run"),
    "a record of something else": (lambda run: (run / "record.json").write_text('{"a": 1}'), "not a record of ours"),
    "a broken tokenizer": (lambda run: _cut(run / "model" / "tokenizer.json"), "tokenizer"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_run_is_refused(name: str, tiny: Path, refused: Callable[..., str]) -> None:
    damage, said = DAMAGE[name]
    damage(tiny)
    # Of a run from before models were sealed, what is wrong is found out where it is read.
    (tiny / "model-files.json").unlink(missing_ok=True)
    assert said in refused("predict", tiny, "a text")
    assert said in refused("evaluate", tiny)


def test_what_is_no_run_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "empty").mkdir()
    for name, said in (("empty", "is not a run folder"), ("nowhere", "does not exist")):
        assert f"{said}; give a folder made by 'recurra train'" in refused("predict", tmp_path / name, "a text")


def test_predict_refuses_bad_input_and_keeps_the_old_output(
    runs: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    run, output = runs / "linear", tmp_path / "p.csv"
    output.write_text("old\n")
    good = b"text\n" + b"a good text\n" * 5000
    for extra, said in (
        (b"caf\xe9\n", "0xe9, which is not UTF-8"),
        (b"a\0\n", "NUL byte"),
        (b'"open\n', "never closed"),
    ):
        path = tmp_path / "in.csv"
        path.write_bytes(good + extra)
        assert said in refused("predict", run, "--input", path, "--output", output)
    assert "has no column 'text'" in refused("predict", run, "--input", output, "--output", tmp_path / "q.csv")
    assert "the input itself" in refused("predict", run, "--input", output, "--output", output)
    assert "unknown extension '.xls'" in refused("predict", run, "a", "--output", tmp_path / "p.xls")
    assert "no texts are given" in refused("predict", run)
    unfolding = _unfolding(tmp_path / "r.csv")[0]
    assert "unfolds to more than 4,000,000,000 bytes" in refused("evaluate", run, "--data", unfolding)
    long = tmp_path / ("x" * 300 + ".csv")
    assert "File name too long" in refused("predict", run, "--input", long)
    assert "File name too long" in refused("predict", run, "a", "--output", long)
    assert "File name too long" in refused("evaluate", run, "--data", long)
    assert "File name too long" in refused("predict", long, "a")
    assert "give one of the two" in refused("predict", run, "a text", "--input", output)


# Folders.


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    path, blocked = write_csv(tmp_path / "r.csv", REVIEWS), tmp_path / "file"
    blocked.write_text("mine\n")
    said = refused("train", "--model", "linear", "--data", path, "--output", blocked)
    assert "a file stands where a folder is needed; choose another --output" in said
    assert "a file stands" in refused("compare", path, "--models", "linear", "--output", blocked / "deeper")


HOLD = """
import sys
from recurra.core.files import locked_folder
with locked_folder(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_in_use_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    path, folder = write_csv(tmp_path / "r.csv", REVIEWS), tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        expected = f"'{folder}' is in use by another process (pid {holder.pid}); wait for it to end"
        assert expected in refused("train", "--model", "linear", "--data", path, "--output", folder)
        assert expected in refused("compare", path, "--models", "linear", "--output", folder)
        holder.communicate()


def test_folders_of_something_else_are_left_alone(tmp_path: Path, refused: Callable[..., str]) -> None:
    path = write_csv(tmp_path / "r.csv", REVIEWS)
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "letter.txt").write_text("dear\n")
    said = "is not empty and not a run folder of ours; choose another --output"
    assert said in refused("train", "--model", "linear", "--data", path, "--output", folder)
    said = "is not empty and not a study of ours; choose another --output"
    assert said in refused("compare", path, "--models", "linear", "--output", folder)


# What is wrong with a language model's run.


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a tiny language model with an exit."""
    root = tmp_path_factory.mktemp("good")
    config = language_run(root, "max_epochs=1")
    assert in_a_process(execute, config.plain(), root / "run", []) == 0
    return root / "run"


@pytest.fixture
def language(good: Path, tmp_path: Path) -> Path:
    shutil.copytree(good, tmp_path / "run")
    return tmp_path / "run"


def change(run: Path, **values: Any) -> None:
    path = run / "model" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}), encoding="utf-8")


EVALUATION: dict[str, tuple[list[str], str]] = {
    "stride": (["--stride", "17"], "stride 17 is impossible; allowed: 1 to the context, 16"),
    "split": (["--split", "tset"], "'tset' (did you mean 'test'?)"),
    "split and file": (["--split", "test", "--data", "x.txt"], "give one of the two"),
    "precision": (["--precision", "fp8"], "unknown precision 'fp8'"),
    "column": (["--text-column", "body"], "'--text-column' has no meaning here"),
    "batch size": (["--batch-size", "3"], "'--batch-size' has no meaning here"),
    "predictions": (["--output", "p.csv"], "'--output' has no meaning here"),
}


@pytest.mark.parametrize("mistake", EVALUATION)
def test_a_language_model_is_not_evaluated_so(mistake: str, good: Path, refused: Callable[..., str]) -> None:
    options, said = EVALUATION[mistake]
    assert said in refused("evaluate", good, *options)


# What is done to a run, what is said, and which commands read that part of it.
LANGUAGE_DAMAGE: dict[str, tuple[Callable[[Path], object], str, tuple[str, ...]]] = {
    "tokenizer of another model": (
        lambda run: write_tokenizer(run / "model", 340), "tokenizer", ("evaluate", "generate", "exits"),
    ),
    "truncated weights": (
        lambda run: _cut(run / "model" / "model.safetensors"), "no causal language model that can be loaded",
        ("evaluate", "generate", "exits", "audit"),
    ),
    "impossible configuration": (
        lambda run: change(run, num_recurrences=0), "'num_recurrences'", ("evaluate", "generate", "exits", "audit"),
    ),
    "no model": (lambda run: shutil.rmtree(run / "model"), "run", ("evaluate", "generate", "exits", "audit")),
    "truncated record": (lambda run: _cut(run / "record.json"), "record", ("evaluate", "exits", "audit")),
    "made to leak": (
        lambda run: change(run, causal_convolution=False), "this model cannot generate: it leaks", ("exits",),
    ),
}  # fmt: skip
COMMANDS: dict[str, tuple[list[str], list[str]]] = {
    "evaluate": (["evaluate"], []),
    "generate": (["generate"], ["the river"]),
    "exits": (["exits"], ["--threads", "1"]),
    "audit": (["audit", "model"], []),
}


@pytest.mark.parametrize("name", LANGUAGE_DAMAGE)
def test_a_damaged_language_run(name: str, language: Path, refused: Callable[..., str]) -> None:
    damage, said, commands = LANGUAGE_DAMAGE[name]
    damage(language)
    # Of a run from before models were sealed, what is wrong is found out where it is read.
    (language / "model-files.json").unlink(missing_ok=True)
    for command in commands:
        before, after = COMMANDS[command]
        assert said in refused(*before, language, *after), command
