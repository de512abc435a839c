"""Engines that compute logits: torch, ONNX Runtime, scikit-learn. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from recurra.models.controls import holds_joined_model, holds_linear_model

if TYPE_CHECKING:
    from recurra.deployment.engines.computation import Engine


def load_engine(
    folder: Path, *, max_length: int, windows: int = 1, precision: str | None = None, preferred: str | None = None
) -> Engine:
    """Reads the model folder of a run, or a safetensors export; see `TransformerEngine.load`."""
    if holds_linear_model(folder):
        from recurra.deployment.engines.computation import LinearEngine
        from recurra.models.controls.linear import LinearModel

        return LinearEngine(LinearModel.load(folder))
    from recurra.deployment.engines.trained import JoinedEngine, TransformerEngine

    engine = JoinedEngine if holds_joined_model(folder) else TransformerEngine
    return engine.load(folder, precision=precision, preferred=preferred, max_length=max_length, windows=windows)
