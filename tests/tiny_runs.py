"""Runs of a tiny model on a small file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recurra.data.configuration import DataConfig
from recurra.tasks.base import RunConfig
from recurra.tasks.runs import make_run
from recurra.training.protocols import load_protocol
from reviews import write_reviews, write_tiny_model


@dataclass(frozen=True)
class TrainedRun:
    """A finished run: its configuration, its folder, and where data and cache lie."""

    config: RunConfig
    folder: Path

    @property
    def root(self) -> Path:
        """Folder of the data file and of the cache."""
        return self.folder.parent


def tiny_run(root: Path, **values: Any) -> RunConfig:
    """Configuration of a tiny model on a small file, a second or two to train; 24 steps an epoch."""
    data, model = root / "reviews.csv", root / "tiny.yaml"
    if not data.exists():
        write_reviews(data, rows=240)
        write_tiny_model(model)
    settings = DataConfig(name=str(data), tokenizer="trained", trained_vocab_size=200, max_length=24)
    changes = {"max_epochs": 3, "learning_rate": 5e-3, "batch_size": 8}
    return make_run(str(model), settings, load_protocol("paper", changes), **{"seed": 0, "precision": "fp32", **values})
