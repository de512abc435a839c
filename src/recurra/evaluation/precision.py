"""The least probability at which a label is right as often as somebody needs, shown on validation rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

# How sure it shall be, over all thresholds that are looked at together.
LEVEL = 0.95
# Shares of the rows given a label, the surest first, at whose ends thresholds are looked at.
SHARES = 20


@dataclass(frozen=True)
class PrecisionThreshold:
    """A threshold and what shows it.

    Attributes:
        threshold: Probability from which on a row keeps the label; 0 keeps every row.
        rows: Rows given the label from there on.
        right: Those of them that have it.
        bound: What precision is shown to be, at least.
    """

    threshold: float
    rows: int
    right: int
    bound: float


def precision_thresholds(
    probabilities: npt.NDArray[np.float64], labels: npt.NDArray[np.int64], label: int
) -> list[PrecisionThreshold]:
    """Thresholds of a label from the highest to the lowest, each with a lower bound of the precision from there on.

    The rows given the label are ordered by its probability, and thresholds stand behind every twentieth of them: where,
    the probabilities decide and not who is right. The bound is that of Clopper and Pearson 1934, one-sided. Its error
    of 5 % is shared out among the thresholds (Bonferroni), so that all bounds hold together with 95 % and one may be
    chosen; Geifman and El-Yaniv 2017 ("Selective Classification for Deep Neural Networks", section 3) do likewise.

    Args:
        probabilities: ``(rows, labels)``.
        labels: True labels, ``(rows,)``.
        label: Index of the label.
    """
    given = probabilities.argmax(axis=1) == label
    order = np.argsort(-probabilities[given, label], kind="stable")
    sure, right = probabilities[given, label][order], (labels[given] == label)[order].cumsum()
    ends = np.unique(np.ceil(np.arange(1, SHARES + 1) * len(sure) / SHARES).astype(np.int64))
    # Equal probabilities cannot be told apart.
    counts = np.unique(np.searchsorted(-sure, -sure[ends[ends > 0] - 1], side="right"))
    share = (1 - LEVEL) / max(len(counts), 1)
    return [
        PrecisionThreshold(
            threshold=0.0 if count == len(sure) else float(sure[count - 1]),
            rows=count,
            right=int(right[count - 1]),
            bound=precision_bound(int(right[count - 1]), count, share),
        )
        for count in counts.tolist()
    ]


def precision_bound(right: int, rows: int, error: float) -> float:
    """One-sided lower bound of a share (Clopper and Pearson 1934): too high with a probability of at most ``error``."""
    return float(special.betaincinv(right, rows - right + 1, error)) if right else 0.0


def least_rows(wanted: float) -> int:
    """Rows that must all be right before any threshold shows a precision."""
    return math.ceil(math.log((1 - LEVEL) / SHARES) / math.log(wanted))
