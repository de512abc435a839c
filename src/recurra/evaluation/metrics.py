"""Quality of predictions: metrics, ranking, calibration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from recurra.core.errors import DataError, RunError
from recurra.core.record import MetricsRecord
from recurra.evaluation.significance import wilson_interval

Floats = npt.NDArray[np.float64]


def ratio(part: npt.NDArray[Any], whole: npt.NDArray[Any]) -> Floats:
    """A quotient; 0 where the whole is 0."""
    return np.divide(part, whole, out=np.zeros(whole.shape), where=whole > 0)


def f1_by_class(right: npt.NDArray[Any], support: npt.NDArray[Any], predicted: npt.NDArray[Any]) -> Floats:
    """F1 of each class, ``(..., labels)``, defined where precision and recall are both 0; arguments of `ClassScore`."""
    return ratio(2 * right, support + predicted)


def figures_by_class(
    right: npt.NDArray[Any], support: npt.NDArray[Any], predicted: npt.NDArray[Any]
) -> tuple[Floats, Floats, Floats]:
    """Precision, recall and F1 of each class, ``(..., labels)`` each; 0 where the denominator is 0."""
    return ratio(right, predicted), ratio(right, support), f1_by_class(right, support, predicted)


class RankedLabel:
    """Rows in the order of their scores for a label, ready to be weighted."""

    def __init__(self, relevant: npt.ArrayLike, scores: npt.ArrayLike) -> None:
        values = np.asarray(scores, dtype=np.float64)
        self._order = np.argsort(-values, kind="stable")
        self._relevant = np.asarray(relevant, dtype=bool)[self._order]
        ordered = values[self._order]
        # A threshold cannot separate rows of equal score.
        self._ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))

    def average_precision(self, weights: npt.ArrayLike | None = None) -> Floats:
        """Precision times gain in recall, summed over thresholds (Manning et al. 2008, section 8.4); 0 without rows."""
        row_weights = np.ones(len(self._order)) if weights is None else np.asarray(weights, dtype=np.float64)
        ordered = row_weights[..., self._order]
        hits = np.cumsum(ordered * self._relevant, axis=-1)[..., self._ends]
        rows = np.cumsum(ordered, axis=-1)[..., self._ends]
        gains = np.diff(hits, axis=-1, prepend=0.0)
        return ratio((ratio(hits, rows) * gains).sum(axis=-1), hits[..., -1])


def rank_labels(truth: npt.NDArray[Any], scores: npt.NDArray[Any]) -> list[RankedLabel | None]:
    """Rows ranked by their scores for each label; none for a label that no row has."""
    has_label = [truth == label for label in range(scores.shape[1])]
    return [RankedLabel(mask, scores[:, label]) if mask.any() else None for label, mask in enumerate(has_label)]


def never_given(
    predicted: npt.NDArray[Any], truth: npt.NDArray[Any], label_names: Sequence[str], *, least: int = 1
) -> list[str]:
    """Names of labels that a model gives to no row although at least ``least`` rows have them.

    Predicted and true labels are indices ``(rows,)`` or truth values ``(rows, labels)``.
    """

    def counts(labels: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        if labels.ndim == 2:
            return np.asarray(labels.sum(axis=0), dtype=np.int64)
        return np.bincount(labels, minlength=len(label_names))

    unused = (counts(predicted) == 0) & (counts(truth) >= least)
    return [label_names[label] for label in np.flatnonzero(unused).tolist()]


BINS = 15
# Bounds of the temperature; the lower one also keeps it above 0 where logits say nothing.
LEAST, MOST = 0.01, 100.0
# A parameter that gains less than this, in nats over all rows, is expected to lose on other rows (Akaike 1974).
_LEAST_GAIN = 1.0
# Halvings of that interval, after which it is smaller than the precision of a float.
_HALVINGS = 60


def fit_temperature(logits: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """The temperature whose softmax of ``logits / temperature`` has the lowest cross-entropy (equation 9).

    With few rows that are all right, the best temperature would be 0 and every probability 1. So each of ``n`` rows has
    the target ``(n + 1) / (n + classes)`` for its label and ``1 / (n + classes)`` for every other, as in Platt 1999
    ("Probabilistic Outputs for Support Vector Machines", section 2.2) for two classes. The cross-entropy is convex in
    the inverse temperature, so halving an interval finds its only minimum. The temperature stays 1 if another gains at
    most one nat over all rows: Akaike's criterion, which chooses as leave-one-out cross-validation does (Stone 1977).
    """
    scores, truth = np.asarray(logits, dtype=np.float64), np.asarray(labels)
    rows, classes = scores.shape
    if not rows:
        return 1.0
    scores = scores - scores.max(axis=1, keepdims=True)
    # The mean logit under the targets, which the mean expected logit equals at the best temperature.
    target = float((rows * scores[np.arange(rows), truth] + scores.sum(axis=1)).mean() / (rows + classes))
    low, high = np.log(1 / MOST), np.log(1 / LEAST)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        weights = np.exp(np.exp(middle) * scores)
        expected = float(((weights * scores).sum(axis=1) / weights.sum(axis=1)).mean())
        low, high = (middle, high) if expected < target else (low, middle)
    inverse = np.exp((low + high) / 2)
    losses = [np.log(np.exp(factor * scores).sum(axis=1)).sum() - factor * rows * target for factor in (1.0, inverse)]
    return float(1 / inverse) if losses[0] - losses[1] > _LEAST_GAIN else 1.0


def expected_calibration_error(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Mean difference between the probability of the most probable label and the share of rows that it is right on.

    Guo et al., equation 3: rows are put into `BINS` bins of that probability, open below and closed above, and each
    bin's difference is weighted by its share of the rows.
    """
    values, truth = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    top, right = values.max(axis=1), values.argmax(axis=1) == truth
    bins = np.clip(np.ceil(top * BINS).astype(np.int64) - 1, 0, BINS - 1)
    return float(np.abs(np.bincount(bins, weights=top - right, minlength=BINS)).sum() / len(top))


# Confidence level of the bounds, over all compared thresholds together.
LEVEL = 0.95
# Number of compared thresholds: after each twentieth of the rows given a label, the surest first.
SHARES = 20


@dataclass(frozen=True)
class PrecisionThreshold:
    """A threshold, the rows at or above it, how many of them are right, and a lower bound of the precision."""

    threshold: float
    rows: int
    right: int
    bound: float


def precision_thresholds(
    probabilities: npt.NDArray[np.float64], labels: npt.NDArray[np.int64], label: int | None = None
) -> list[PrecisionThreshold]:
    """Thresholds of a label from the highest to the lowest, each with a lower bound of the precision at or above it.

    Without a label they apply to whichever label is most probable. There is one after every twentieth of the rows that
    are given the label, in order of its probability. The bound is Clopper and Pearson's (1934), one-sided; its error of
    5 % is divided among the thresholds (Bonferroni), so that any of them may be chosen, as Geifman and El-Yaniv 2017
    ("Selective Classification for Deep Neural Networks", section 3) do.
    """
    answers, highest = probabilities.argmax(axis=1), probabilities.max(axis=1)
    is_given = answers == label if label is not None else np.ones(len(answers), dtype=np.bool_)
    order = np.argsort(-highest[is_given], kind="stable")
    confidences, num_right = highest[is_given][order], (answers == labels)[is_given][order].cumsum()
    ends = np.unique(np.ceil(np.arange(1, SHARES + 1) * len(confidences) / SHARES).astype(np.int64))
    # Equal probabilities cannot be told apart.
    counts = np.unique(np.searchsorted(-confidences, -confidences[ends[ends > 0] - 1], side="right"))
    share = (1 - LEVEL) / max(len(counts), 1)
    return [
        PrecisionThreshold(
            threshold=0.0 if count == len(confidences) else float(confidences[count - 1]),
            rows=count,
            right=int(num_right[count - 1]),
            bound=precision_bound(int(num_right[count - 1]), count, share),
        )
        for count in counts.tolist()
    ]


def lowest_shown(compared: Sequence[PrecisionThreshold], wanted: float) -> PrecisionThreshold | None:
    """The lowest threshold whose precision is shown to be at least ``wanted``; none if no threshold's is."""
    return next((threshold for threshold in reversed(compared) if threshold.bound >= wanted), None)


def precision_bound(right: int, rows: int, error: float) -> float:
    """One-sided lower bound of a share (Clopper and Pearson 1934): too high with a probability of at most ``error``."""
    return float(special.betaincinv(right, rows - right + 1, error)) if right else 0.0


def least_rows(wanted: float) -> int:
    """Number of rows, all right, that it takes before a threshold can show this precision."""
    return math.ceil(math.log((1 - LEVEL) / SHARES) / math.log(wanted))


def evaluate_logits(
    logits: npt.ArrayLike, labels: npt.ArrayLike, temperature: npt.ArrayLike | None = None
) -> MetricsRecord:
    """Computes accuracy, precision, recall, F1, loss, the confusion matrix, and average precision by label.

    With two classes precision, recall and F1 are those of label 1; with more they are macro means over the classes that
    occur among labels or predictions, as in scikit-learn. A ratio without a denominator is 0. The loss is computed in
    float64; among equal logits the lowest label is the prediction.

    Args:
        temperature: Divisor of the logits, one for all rows or one for each, ``(rows,)``. Calibration errors and
            average precision are of the probabilities that it gives; without it there are no calibration errors.
    """
    scores = np.asarray(logits, dtype=np.float64)
    truth = np.asarray(labels)
    rows, classes = scores.shape
    check_scores(scores)
    if truth.min() < 0 or truth.max() >= classes:
        outside = int(truth.max()) if truth.max() >= classes else int(truth.min())
        raise DataError(f"label {outside} is outside the model's {classes} classes; allowed: 0 to {classes - 1}")
    predictions = scores.argmax(axis=1)
    confusion = np.bincount(truth * classes + predictions, minlength=classes * classes).reshape(classes, classes)
    precision, recall, f1 = _precision_recall_f1(confusion)
    right = int(np.trace(confusion))
    log_probabilities = calibrated = log_softmax(scores)
    calibration = {}
    if temperature is not None:
        calibrated = log_softmax(scores / np.reshape(temperature, (-1, 1)))
        calibration = {
            "calibration_error": expected_calibration_error(np.exp(calibrated), truth),
            "uncalibrated_error": expected_calibration_error(np.exp(log_probabilities), truth),
        }
    return MetricsRecord(
        rows=rows,
        accuracy=right / rows,
        precision=precision,
        recall=recall,
        f1=f1,
        loss=float(-log_probabilities[np.arange(rows), truth].mean()),
        accuracy_interval=wilson_interval(right, rows),
        confusion_matrix=[[int(count) for count in row] for row in confusion],
        average_precision=[
            None if ranked is None else float(ranked.average_precision()) for ranked in rank_labels(truth, calibrated)
        ],
        **calibration,
    )


def check_scores(scores: Floats) -> None:
    """Refuses logits ``(rows, labels)``: raises `DataError` without rows, `RunError` if one is not finite."""
    if not len(scores):
        raise DataError("there is no row to evaluate (0 rows); give a split with at least one row")
    if bad := int((~np.isfinite(scores).all(axis=1)).sum()):
        raise RunError(
            f"logits of {bad} of {len(scores)} rows are not finite; the training diverged: lower the learning rate"
        )


def log_softmax(logits: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Logarithm of the softmax of each row in float64, ``(rows, classes)``; small scores are not rounded to 0."""
    scores: Floats = special.log_softmax(np.asarray(logits, dtype=np.float64), axis=-1)
    return scores


def _precision_recall_f1(confusion: npt.NDArray[Any]) -> tuple[float, float, float]:
    support, predicted = confusion.sum(axis=1), confusion.sum(axis=0)
    counted = np.array([False, True]) if len(confusion) == 2 else support + predicted > 0
    figures = figures_by_class(np.diag(confusion), support, predicted)
    precision, recall, f1 = (float(by_class[counted].mean()) for by_class in figures)
    return precision, recall, f1
