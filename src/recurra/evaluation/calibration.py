"""Probabilities that can be taken at their word: a temperature for logits, and how far probabilities are off.

Guo, Pleiss, Sun and Weinberger 2017, "On Calibration of Modern Neural Networks". Of its methods this is the one that
keeps every label: vector and matrix scaling (its section 4.2) have a parameter a label and may move the highest logit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

BINS = 15
# No temperature leaves these bounds; the first also keeps 0 from coming about where logits say nothing.
LEAST, MOST = 0.01, 100.0
# A parameter that gains less than this, in nats over all rows, would also lose it again on other rows (Akaike 1974).
_LEAST_GAIN = 1.0
# Halvings of the interval above, which leave nothing of it that a float could tell apart.
_HALVINGS = 60

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def fit_temperature(logits: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Returns the temperature whose softmax of ``logits / temperature`` has the lowest cross-entropy (equation 9).

    Where few rows are all right, the best temperature would be 0 and every probability 1. So the target is not the
    label alone: of ``n`` rows each counts ``(n + 1) / (n + classes)`` for its label and ``1 / (n + classes)`` for every
    other, as Platt 1999 ("Probabilistic Outputs for Support Vector Machines", section 2.2) has it for two classes. The
    cross-entropy is convex in the inverse temperature, so that halving an interval finds its only minimum.

    Few rows would give logits that are calibrated already a temperature of chance. So 1 stays where another gains at
    most one nat over all rows: Akaike's criterion, which chooses as cross-validation by single rows does (Stone 1977,
    "An Asymptotic Equivalence of Choice of Model by Cross-Validation and Akaike's Criterion").

    Args:
        logits: Of rows that nothing was fitted on and nothing is reported on, ``(rows, classes)``.
        labels: Their true labels, ``(rows,)``.

    Returns:
        A number from 0.01 to 100; 1 without rows.
    """
    scores, truth = np.asarray(logits, dtype=np.float64), np.asarray(labels)
    rows, classes = scores.shape
    if not rows:
        return 1.0
    scores = scores - scores.max(axis=1, keepdims=True)
    # The mean of the targets' logits: what the expected logit of a perfect temperature is.
    wanted = float((rows * scores[np.arange(rows), truth] + scores.sum(axis=1)).mean() / (rows + classes))
    low, high = np.log(1 / MOST), np.log(1 / LEAST)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        weights = np.exp(np.exp(middle) * scores)
        expected = float(((weights * scores).sum(axis=1) / weights.sum(axis=1)).mean())
        low, high = (middle, high) if expected < wanted else (low, middle)
    inverse = np.exp((low + high) / 2)
    losses = [np.log(np.exp(factor * scores).sum(axis=1)).sum() - factor * rows * wanted for factor in (1.0, inverse)]
    return float(1 / inverse) if losses[0] - losses[1] > _LEAST_GAIN else 1.0


def expected_calibration_error(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """How far the probability of the most probable label is from the share that is right, on average.

    Guo et al., equation 3: rows are put into `BINS` bins of that probability, open below and closed above, and each
    bin's difference counts by its share of the rows.

    Args:
        probabilities: ``(rows, classes)``, at least one row.
        labels: True labels, ``(rows,)``.
    """
    values, truth = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    top, right = values.max(axis=1), values.argmax(axis=1) == truth
    bins = np.clip(np.ceil(top * BINS).astype(np.int64) - 1, 0, BINS - 1)
    return float(np.abs(np.bincount(bins, weights=top - right, minlength=BINS)).sum() / len(top))


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
