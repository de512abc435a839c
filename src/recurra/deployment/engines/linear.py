"""What computes logits without torch: a linear model of a run or of an export. Apart, for the others import torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from recurra.deployment.engines.computation import Computation
from recurra.models.controls import load_linear_model
from recurra.models.controls.weights import LinearModel


class LinearEngine:
    """Runs a linear model on numpy.

    Args:
        model: The model.
    """

    def __init__(self, model: LinearModel) -> None:
        self.model = model
        self.computation = Computation(engine="numpy", storage_precision="fp32", compute_precision="fp64", device="cpu")

    @classmethod
    def load(cls, folder: Path) -> LinearEngine:
        """Reads the linear model from a model folder.

        Raises:
            CheckpointError: If it holds none, or the files are damaged.
        """
        return cls(load_linear_model(folder))

    def logits(self, texts: Sequence[str], batch_size: int) -> npt.NDArray[np.float32]:  # noqa: ARG002 - an Engine's
        """Returns ``(texts, labels)`` for cleaned texts; all at once, which is fastest for a sparse product."""
        return self.model.logits(texts)
