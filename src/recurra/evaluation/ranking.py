"""Average precision: how well scores put the rows of a label before the others, whatever the threshold."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class RankedLabel:
    """Rows in the order of their scores for a label, ready to be weighted.

    Args:
        relevant: Whether a row has the label, ``(rows,)``.
        scores: For the label, ``(rows,)``.
    """

    def __init__(self, relevant: npt.ArrayLike, scores: npt.ArrayLike) -> None:
        values = np.asarray(scores, dtype=np.float64)
        self._order = np.argsort(-values, kind="stable")
        self._relevant = np.asarray(relevant, dtype=bool)[self._order]
        ordered = values[self._order]
        # A threshold cannot part rows of one score.
        self._ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))

    def average_precision(self, weights: npt.ArrayLike | None = None) -> Floats:
        """Sum over thresholds of precision times the gain in recall (Manning et al. 2008, section 8.4); 0 without rows.

        Args:
            weights: How often each row counts, ``(..., rows)``; once if absent.

        Returns:
            ``(...)``.
        """
        counted = np.ones(len(self._order)) if weights is None else np.asarray(weights, dtype=np.float64)
        ordered = counted[..., self._order]
        found = np.cumsum(ordered * self._relevant, axis=-1)[..., self._ends]
        read = np.cumsum(ordered, axis=-1)[..., self._ends]
        precision = np.divide(found, read, out=np.zeros_like(found), where=read > 0)
        gains = np.diff(found, axis=-1, prepend=0.0)
        total = found[..., -1]
        area: Floats = np.divide((precision * gains).sum(axis=-1), total, out=np.zeros_like(total), where=total > 0)
        return area


def rank_labels(truth: npt.NDArray[Any], scores: npt.NDArray[Any]) -> list[RankedLabel | None]:
    """The rows in the order of each label; none for a label that no row has.

    Args:
        truth: True labels, ``(rows,)``.
        scores: ``(rows, labels)``.
    """
    found = [truth == label for label in range(scores.shape[1])]
    return [RankedLabel(mask, scores[:, label]) if mask.any() else None for label, mask in enumerate(found)]
