"""What a classifier computes with, and which engine reads the model of a run. Linear models need no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from recurra.deployment.engines.computation import Computation
from recurra.models.controls import holds_joined_model

if TYPE_CHECKING:
    from recurra.models.controls.linear import LinearModel


class Engine(Protocol):
    """What computes logits from cleaned texts."""

    def logits(self, texts: Sequence[str], batch_size: int) -> npt.NDArray[np.float32]:
        """Returns ``(texts, labels)``."""
        ...


@runtime_checkable
class ConcurrentEngine(Protocol):
    """An engine that several threads may ask at once."""

    @property
    def concurrency(self) -> int:
        """How many of them gain by it."""
        ...


class LoadedEngine(Engine, Protocol):
    """An engine that was read from disk and says how it computes.

    Attributes:
        computation: Precision of the stored weights and of the computation, engine and device.
    """

    computation: Computation


def load_engine(
    folder: Path,
    *,
    kind: str,
    max_length: int,
    windows: int = 1,
    precision: str | None = None,
    preferred: str | None = None,
) -> LoadedEngine:
    """Reads the model folder of a run.

    Args:
        folder: The model folder.
        kind: ``transformer`` or ``linear``, of which one may have an encoder beside it.
        max_length: Tokens after which a text is cut, or a window of it.
        windows: Most windows that a text is read in; a linear model reads all of it.
        precision: Precision to compute in, if the user asks for one.
        preferred: Precision to compute in otherwise, where the device is good at it; none takes that of the weights.

    Raises:
        CheckpointError: If it is not whole, or not ours.
        ConfigurationError: If ``precision`` is unknown, or FP16 on a CPU.
    """
    if holds_joined_model(folder):
        from recurra.deployment.engines.joined import JoinedEngine

        return JoinedEngine.load(folder, precision=precision, preferred=preferred)
    if kind == "linear":
        return LinearEngine.load(folder)
    from recurra.deployment.engines.trained import TransformerEngine

    return TransformerEngine.load(
        folder, precision=precision, preferred=preferred, max_length=max_length, windows=windows
    )


class LinearEngine:
    """Runs a linear model on scikit-learn.

    Args:
        model: The model.
    """

    def __init__(self, model: LinearModel) -> None:
        self.model = model
        self.computation = Computation(
            engine="scikit-learn", storage_precision="fp32", compute_precision="fp64", device="cpu"
        )

    @classmethod
    def load(cls, folder: Path) -> LinearEngine:
        """Reads the linear model from a model folder.

        Raises:
            CheckpointError: If it holds none, or the files are damaged.
        """
        from recurra.models.controls.linear import LinearModel

        return cls(LinearModel.load(folder))

    def logits(self, texts: Sequence[str], batch_size: int) -> npt.NDArray[np.float32]:  # noqa: ARG002 - an Engine's
        """Returns ``(texts, labels)`` for cleaned texts; all at once, which is fastest for a sparse product."""
        return self.model.logits(texts)
