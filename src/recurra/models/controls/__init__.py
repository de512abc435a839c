"""Controls: cheap linear models that a Transformer must beat before it is worth its price."""

from __future__ import annotations

from pathlib import Path

from recurra.models.controls import ngrams, static
from recurra.models.controls.weights import LinearModel


def holds_linear_model(folder: Path) -> bool:
    """Whether a model folder, or an export, holds a linear model; nothing is read."""
    return any((folder / name).is_file() for name in (ngrams.SETTINGS_NAME, static.SETTINGS_NAME))


def load_linear_model(folder: Path) -> LinearModel:
    """Reads whichever linear model a folder holds.

    Raises:
        CheckpointError: If it holds none, or the files are damaged.
    """
    if (folder / static.SETTINGS_NAME).exists():
        return static.StaticClassifier.load(folder)
    return ngrams.LinearClassifier.load(folder)
