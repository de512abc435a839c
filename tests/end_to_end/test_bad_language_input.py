"""Every mistake with a language model's run: one line, exit code 2, no traceback, and nothing lost that was there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from interrupted import execute, in_a_process
from language_folders import write_tokenizer
from language_runs import language_run


@pytest.fixture(autouse=True)
def _no_data_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECURRA_DATA_ROOT", raising=False)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a tiny language model with an exit."""
    root = tmp_path_factory.mktemp("good")
    config = language_run(root, "max_epochs=1")
    assert in_a_process(execute, config.plain(), root / "run", []) == 0
    return root / "run"


@pytest.fixture
def run(good: Path, tmp_path: Path) -> Path:
    shutil.copytree(good, tmp_path / "run")
    return tmp_path / "run"


def change(run: Path, **values: Any) -> None:
    path = run / "model" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}), encoding="utf-8")


EVALUATION: dict[str, tuple[list[str], str]] = {
    "stride 0": (["--stride", "0"], "stride 0 is impossible; allowed: 1 to the context, 16"),
    "stride beyond the context": (["--stride", "17"], "stride 17 is impossible; allowed: 1 to the context, 16"),
    "split": (["--split", "tset"], "'tset' (did you mean 'test'?)"),
    "split and file": (["--split", "test", "--data", "x.txt"], "give one of the two"),
    "precision": (["--precision", "fp8"], "unknown precision 'fp8'"),
    "column": (["--text-column", "body"], "'--text-column' has no meaning here"),
    "batch size": (["--batch-size", "3"], "'--batch-size' has no meaning here"),
    "predictions": (["--output", "p.csv"], "'--output' has no meaning here"),
}


@pytest.mark.parametrize("mistake", EVALUATION)
def test_evaluate(mistake: str, good: Path, refused: Callable[..., str]) -> None:
    options, said = EVALUATION[mistake]
    assert said in refused("evaluate", good, *options)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _pickle(run: Path) -> None:
    (run / "model" / "model.safetensors").rename(run / "model" / "pytorch_model.bin")


def _no_tokenizer(run: Path) -> None:
    for path in (run / "model").glob("tokenizer*"):
        path.unlink()


# What is done to a run, what is said, and which commands read that part of it.
DAMAGE: dict[str, tuple[Callable[[Path], object], str, tuple[str, ...]]] = {
    "tokenizer of another model": (
        lambda run: write_tokenizer(run / "model", 340), "tokenizer", ("evaluate", "generate", "exits"),
    ),
    "no tokenizer": (_no_tokenizer, "tokenizer", ("evaluate", "generate", "exits")),
    "truncated weights": (
        lambda run: _cut(run / "model" / "model.safetensors"), "no causal language model that can be loaded",
        ("evaluate", "generate", "exits", "audit"),
    ),
    "a pickle": (_pickle, "pickled weights can run code", ("evaluate", "generate", "exits", "audit")),
    "truncated configuration": (
        lambda run: _cut(run / "model" / "config.json"), "valid JSON",
        ("evaluate", "generate", "exits", "audit"),
    ),
    "impossible configuration": (
        lambda run: change(run, num_recurrences=0), "'num_recurrences'", ("evaluate", "generate", "exits", "audit"),
    ),
    "configuration of another shape": (
        lambda run: change(run, num_cycles=3), "lacks weight 'model.core.block.layers.0.feed_forward.cycles.2",
        ("evaluate", "generate", "exits", "audit"),
    ),
    "no model": (lambda run: shutil.rmtree(run / "model"), "run", ("evaluate", "generate", "exits", "audit")),
    "truncated record": (lambda run: _cut(run / "record.json"), "record", ("evaluate", "exits", "audit")),
    "made to leak": (
        lambda run: change(run, causal_convolution=False), "this model cannot generate: it leaks",
        ("generate", "exits"),
    ),
}  # fmt: skip
COMMANDS: dict[str, tuple[list[str], list[str]]] = {
    "evaluate": (["evaluate"], []),
    "generate": (["generate"], ["the river"]),
    "exits": (["exits"], ["--threads", "1"]),
    "audit": (["audit", "model"], []),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_run(name: str, run: Path, refused: Callable[..., str]) -> None:
    damage, said, commands = DAMAGE[name]
    damage(run)
    # Of a run from before models were sealed, what is wrong is found out where it is read.
    (run / "model-files.json").unlink(missing_ok=True)
    for command in commands:
        before, after = COMMANDS[command]
        assert said in refused(*before, run, *after), command


def test_what_a_good_run_cannot_do(run: Path, refused: Callable[..., str]) -> None:
    assert "there is no head after recurrence 9; allowed for this model: 1, 2" in refused(
        "generate", run, "a", "--exit", 9
    )
    assert "threshold is 1.5; allowed" in refused("generate", run, "a", "--exit-rule", "confidence", "--threshold", 1.5)
    assert "loss bound is -1" in refused("exits", run, "--bound", -1)
    assert "the prompt is empty" in refused("generate", run, "")
    assert "allowed for this model: 1 to 31" in refused("generate", run, "number of the mill " * 30)
