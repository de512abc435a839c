"""Quality of predictions on one split, from logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from recurra.core.errors import DataError, RunError
from recurra.core.record import MetricsRecord
from recurra.evaluation.calibration import expected_calibration_error
from recurra.evaluation.ranking import rank_labels
from recurra.evaluation.significance import wilson_interval


def evaluate_logits(
    logits: npt.ArrayLike, labels: npt.ArrayLike, probabilities: npt.ArrayLike | None = None
) -> MetricsRecord:
    """Computes accuracy, precision, recall, F1, loss, the confusion matrix, and average precision by label.

    With two classes precision, recall and F1 are those of label 1. With more they are macro means over the classes
    that occur among labels or predictions (scikit-learn's convention: a class that never occurs counts for nothing).
    A ratio without a denominator is 0. The loss is computed in float64 whatever the type of the logits; of equal
    logits the lowest label is the prediction.

    Args:
        logits: Scores, shape ``(rows, classes)``; their softmax gives the probabilities.
        labels: True labels, integers, shape ``(rows,)``.
        probabilities: What the model makes of the logits, likewise; if given, its calibration is measured.

    Raises:
        DataError: If there is no row, or a label lies outside the classes.
        RunError: If a logit is not finite.
        ValueError: If the shapes do not fit.
    """
    scores = np.asarray(logits, dtype=np.float64)
    truth = np.asarray(labels)
    if scores.ndim != 2 or scores.shape[1] < 2 or truth.shape != scores.shape[:1]:
        raise ValueError(f"logits (rows, classes >= 2) and labels (rows,) needed; got {scores.shape} and {truth.shape}")
    rows, classes = scores.shape
    if rows == 0:
        raise DataError("there is no row to evaluate (0 rows); give a split with at least one row")
    if not np.issubdtype(truth.dtype, np.integer):
        raise ValueError(f"labels are {truth.dtype}; integers are needed")
    if truth.min() < 0 or truth.max() >= classes:
        outside = int(truth.max()) if truth.max() >= classes else int(truth.min())
        raise DataError(f"label {outside} is outside the model's {classes} classes; allowed: 0 to {classes - 1}")
    if not np.isfinite(scores).all():
        bad = int((~np.isfinite(scores).all(axis=1)).sum())
        raise RunError(f"logits of {bad} of {rows} rows are not finite; the training diverged: lower the learning rate")

    predictions = scores.argmax(axis=1)
    confusion = np.bincount(truth * classes + predictions, minlength=classes * classes).reshape(classes, classes)
    precision, recall, f1 = _precision_recall_f1(confusion)
    right = int(np.trace(confusion))
    log_probabilities = log_softmax(scores)
    calibration = {}
    if probabilities is not None:
        plain = np.exp(log_probabilities)
        calibration = {
            "calibration_error": expected_calibration_error(probabilities, truth),
            "uncalibrated_error": expected_calibration_error(plain, truth),
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
            None if ranked is None else float(ranked.average_precision())
            for ranked in rank_labels(truth, log_probabilities)
        ],
        **calibration,
    )


def log_softmax(logits: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Logarithm of the softmax of each row in float64, ``(rows, classes)``: no score is lost where another is large."""
    scores = np.asarray(logits, dtype=np.float64)
    shifted = scores - scores.max(axis=-1, keepdims=True)
    found: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return found


def _precision_recall_f1(confusion: npt.NDArray[Any]) -> tuple[float, float, float]:
    right = np.diag(confusion).astype(np.float64)
    predicted = confusion.sum(axis=0)
    true = confusion.sum(axis=1)
    precision = right / np.maximum(predicted, 1)
    recall = right / np.maximum(true, 1)
    # Equal to the harmonic mean, and defined where precision and recall are both 0.
    f1 = 2 * right / np.maximum(predicted + true, 1)
    if len(confusion) == 2:
        return float(precision[1]), float(recall[1]), float(f1[1])
    occurs = (predicted + true) > 0
    return float(precision[occurs].mean()), float(recall[occurs].mean()), float(f1[occurs].mean())
