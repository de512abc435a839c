"""What a rule can read of a head's logits: one number for each position.

The same functions serve torch's tensors and NumPy's arrays, so that a threshold that was chosen on arrays means the
same in a model. Imports no torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CONFIDENCE, ENTROPY = "confidence", "entropy"


@dataclass(frozen=True)
class ExitMeasure:
    """How sure a head is, as a number that is never negative.

    Attributes:
        name: For example ``confidence``.
        of: Maps logits ``(..., classes)`` to ``(...)``, as a tensor or an array as they came.
        rises: Whether a larger number means a surer head.
    """

    name: str
    of: Callable[[Any], Any]
    rises: bool

    def reaches(self, values: Any, bound: float) -> Any:
        """Where ``values`` are at least as sure as ``bound``, the bound included."""
        return values >= bound if self.rises else values <= bound


def confidence(logits: Any) -> Any:
    """Largest probability over the last axis."""
    library = _library_of(logits)
    return 1 / library.exp(logits - library.amax(logits, axis=-1, keepdims=True)).sum(-1)


def entropy(logits: Any) -> Any:
    """Entropy over the last axis, in nats."""
    library = _library_of(logits)
    if hasattr(library, "log_softmax"):
        scores = library.log_softmax(logits, -1)
        return -(library.exp(scores) * scores).sum(-1)
    scores = logits - library.amax(logits, axis=-1, keepdims=True)
    powers = library.exp(scores)
    total = powers.sum(-1)
    return library.log(total) - (powers * scores).sum(-1) / total


def mean_of_rows(values: Any, counted: Any = None) -> Any:
    """Returns means ``(rows,)`` of ``(rows, positions)``; ``(rows,)`` as it is.

    Args:
        values: One number for each row or position.
        counted: ``(rows, positions)``, true at the positions that count; none means all.
    """
    if values.ndim == 1:
        return values
    if counted is None:
        return values.mean(1)
    return (values * counted).sum(1) / counted.sum(1).clip(1)


def every_row(logits: Any) -> Any:
    """True for each row of ``(rows, ..., classes)``, ``(rows,)``."""
    return (logits[(slice(None), *(0,) * (logits.ndim - 1))] > 0) | True


def _library_of(values: Any) -> Any:
    """The library whose array it is: it has been imported, or there would be no such array."""
    return sys.modules[type(values).__module__.partition(".")[0]]
