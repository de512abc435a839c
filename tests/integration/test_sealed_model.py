"""A run's weights are sealed: what was changed is refused, and what is no number is no answer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from recurra import Classifier
from recurra.core.errors import CheckpointError, RunError
from recurra.core.sealed import SEAL_NAME, seal_model
from reviews import Command
from tiny_runs import TrainedRun

WEIGHTS = "model.safetensors"


@pytest.fixture
def run(trained: TrainedRun, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained.folder, tmp_path / "run"))


def flip_a_bit(run: Path) -> None:
    path = run / "model" / WEIGHTS
    content = bytearray(path.read_bytes())
    content[-5] ^= 0x40
    path.write_bytes(content)


def change_the_seal(run: Path) -> None:
    path = run / SEAL_NAME
    path.write_text(path.read_text(encoding="utf-8").replace('"size_bytes": ', '"size_bytes": 1'), encoding="utf-8")


DAMAGES: list[tuple[Callable[[Path], None], str]] = [
    (flip_a_bit, "was changed after the run was made"),
    (change_the_seal, "its content does not match its hash"),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGES, ids=[damage.__name__ for damage, _ in DAMAGES])
def test_what_was_changed_since_training_is_one_line(
    damage: Callable[[Path], None], said: str, run: Path, refused: Callable[..., str]
) -> None:
    damage(run)
    with pytest.raises(CheckpointError, match=said):
        Classifier.open(run)
    assert said in refused("predict", run, "a text", "--json")


def test_a_run_from_before_there_was_a_seal_is_read(run: Path) -> None:
    before = Classifier.open(run).logits(["good", "bad"])
    (run / SEAL_NAME).unlink()
    np.testing.assert_array_equal(Classifier.open(run).logits(["good", "bad"]), before)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_give_no_answer(value: float, run: Path, command: Command) -> None:
    path = run / "model" / WEIGHTS
    weights = load_file(path)
    weights["classifier.weight"] = np.full_like(weights["classifier.weight"], value)
    save_file(weights, path, metadata={"format": "pt"})
    seal_model(run)
    with pytest.raises(RunError, match="not numbers for text 1 of 2"):
        Classifier.open(run).predict(["good", "bad"])
    out, err = command("predict", run, "a text", "--json", code=1)
    # The document is written text by text, so it may have begun; it holds no answer and does not end.
    assert "its weights are damaged" in err and "NaN" not in out and "label" not in out


def test_the_seal_lists_every_file_of_the_model(trained: TrainedRun) -> None:
    sealed = json.loads((trained.folder / SEAL_NAME).read_text(encoding="utf-8"))["files"]
    assert set(sealed) == {path.name for path in (trained.folder / "model").iterdir()}
