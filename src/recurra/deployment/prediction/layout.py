"""Predicted rows, the columns that they are written in, and what writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from recurra.deployment.decision import Decision

_DIGITS = 6


@dataclass(frozen=True, eq=False)
class PredictedRows:
    """Some rows with what was predicted for them, in the order of the input.

    Attributes:
        texts: As they came.
        probabilities: Shape ``(rows, labels)``.
        ids: Identities of the rows, if they are written.
        truth: Names of the true labels, if they are written.
    """

    texts: Sequence[str]
    probabilities: npt.NDArray[np.float64]
    ids: Sequence[str] | None = None
    truth: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.texts)


class PredictionWriter(Protocol):
    """Takes predictions chunk by chunk."""

    def write(self, rows: PredictedRows) -> None:
        """Writes some rows."""
        ...


class Layout:
    """The columns of predictions.

    ``id`` and ``truth`` if asked for, ``text``, ``label`` (the most probable), ``probability`` (of that label), and
    ``probability_NAME`` for each class. Of a multi-label model ``label`` has all labels, and ``probability`` is absent.

    Args:
        decision: What makes labels of probabilities.
        ids: Whether rows carry an id.
        truth: Whether rows carry the true label.
    """

    def __init__(self, decision: Decision, *, ids: bool = False, truth: bool = False) -> None:
        self.label_names = decision.label_names
        self._decision = decision
        self._ids = ids
        self._truth = truth

    @property
    def class_columns(self) -> list[str]:
        """Columns of the probabilities of the classes."""
        return [f"probability_{name}" for name in self.label_names]

    @property
    def columns(self) -> list[str]:
        """All columns, in order."""
        front = [name for name, there in (("id", self._ids), ("truth", self._truth)) if there]
        chosen = ["probability"] if self._decision.exclusive else []
        return [*front, "text", "label", *chosen, *self.class_columns]

    def values(self, rows: PredictedRows) -> list[list[Any]]:
        """The values of each column, in the order of `columns`."""
        probabilities = np.round(rows.probabilities, _DIGITS)
        front = [list(part) for part in (rows.ids, rows.truth) if part is not None]
        front += [list(rows.texts), self._decision.texts(rows.probabilities)]
        if self._decision.exclusive:
            best = self._decision.decide(rows.probabilities)
            front.append(probabilities[np.arange(len(rows)), best].tolist())
        return [*front, *probabilities.T.tolist()]
