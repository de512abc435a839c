"""Predicted rows, the columns that they are written in, and what writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from recurra.core.errors import ConfigurationError
from recurra.deployment.decision import LabelDecision
from recurra.deployment.explanation import AnyExplanation, Explanation, LabelledExplanation

_DIGITS = 6
# What a column of ours is called beside one of the user's with the same name.
PREDICTED = "_predicted"
PROBABILITIES = "probabilities"


@dataclass(frozen=True, eq=False)
class PredictedRows:
    """Some rows with what was predicted for them, in the order of the input.

    Attributes:
        texts: As they came.
        probabilities: Shape ``(rows, labels)``.
        ids: Identities of the rows, if they are written.
        truth: Names of the true labels, if they are written.
        kept: Values of the columns of the input that are kept, one list a column.
        abstained: Rows that get no label, ``(rows,)``; none if every row gets one.
        explanations: Words that speak most for the labels of each row, if they are written.
    """

    texts: Sequence[str]
    probabilities: npt.NDArray[np.float64]
    ids: Sequence[str] | None = None
    truth: Sequence[str] | None = None
    kept: Sequence[Sequence[Any]] = ()
    abstained: npt.NDArray[np.bool_] | None = None
    explanations: Sequence[AnyExplanation] | None = None

    def label_texts(self, decision: LabelDecision) -> list[str | None]:
        """The labels of each row as one text; none of a row that gets none."""
        labels: list[str | None] = list(decision.texts(self.probabilities))
        if self.abstained is None:
            return labels
        return [None if without else label for label, without in zip(labels, self.abstained.tolist(), strict=True)]

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
    ``abstained`` stands behind ``probability`` where rows may get no label, then ``words`` where labels are explained,
    of a multi-label model ``words_by_label``.

    Columns of the input that are kept come first and as they are, the text's own among them in place of ``text``; a
    column of ours with the name of one of them has `PREDICTED` behind its name.

    Args:
        decision: What makes labels of probabilities.
        ids: Whether rows carry an id.
        truth: Whether rows carry the true label.
        kept: Names of the columns of the input that are kept, the text's own among them; none keeps none.
        explains: Whether labels are explained.

    Raises:
        ConfigurationError: If the input has both a column of our name and one of that with `PREDICTED` behind it.
    """

    def __init__(
        self,
        decision: LabelDecision,
        *,
        ids: bool = False,
        truth: bool = False,
        kept: Sequence[str] = (),
        explains: bool = False,
    ) -> None:
        self.label_names = decision.label_names
        self.kept = list(kept)
        self.explains = explains
        self.words = Explanation.key if decision.exclusive else LabelledExplanation.key
        self._decision = decision
        self._ids = ids
        self._truth = truth
        for name in (*self._own_names(), *(f"probability_{label}" for label in self.label_names), PROBABILITIES):
            if name in self.kept and f"{name}{PREDICTED}" in self.kept:
                raise ConfigurationError(
                    f"the input has the columns '{name}' and '{name}{PREDICTED}', and the predictions need one of the "
                    "two names: rename a column, or leave the input's columns out with --no-keep-columns"
                )

    def name(self, own: str) -> str:
        """What a column of ours is called beside those that are kept."""
        return f"{own}{PREDICTED}" if own in self.kept else own

    def _own_names(self) -> list[str]:
        front = [name for name, there in (("id", self._ids), ("truth", self._truth)) if there]
        text = [] if self.kept else ["text"]
        chosen = ["probability"] if self._decision.exclusive else []
        more = [name for name, there in (("abstained", self._decision.abstains), (self.words, self.explains)) if there]
        return [*front, *text, "label", *chosen, *more]

    @property
    def row_columns(self) -> list[str]:
        """All columns but the probabilities of the classes, in order."""
        return [*self.kept, *map(self.name, self._own_names())]

    @property
    def columns(self) -> list[str]:
        """All columns, in order."""
        return [*self.row_columns, *(self.name(f"probability_{label}") for label in self.label_names)]

    def values(self, rows: PredictedRows) -> list[list[Any]]:
        """The values of each column, in the order of `columns`."""
        probabilities = np.round(rows.probabilities, _DIGITS)
        front: list[list[Any]] = [list(part) for part in (rows.ids, rows.truth) if part is not None]
        front = [*map(list, rows.kept), *front] if self.kept else [*front, list(rows.texts)]
        front.append(rows.label_texts(self._decision))
        if self._decision.exclusive:
            best = self._decision.decide(rows.probabilities)
            front.append(probabilities[np.arange(len(rows)), best].tolist())
        if self._decision.abstains:
            front.append([False] * len(rows) if rows.abstained is None else rows.abstained.tolist())
        if self.explains:
            front.append([None] * len(rows) if rows.explanations is None else list(rows.explanations))
        return [*front, *probabilities.T.tolist()]
