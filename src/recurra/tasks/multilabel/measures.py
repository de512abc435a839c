"""What multi-label models are judged by: thresholds, figures of a split, and the measures of a report. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recurra.core.errors import DataError, RunError
from recurra.core.label_record import LabelFiguresRecord, MultiLabelMetricsRecord
from recurra.deployment.decision import LabelDecision, sigmoid
from recurra.evaluation.calibration import expected_calibration_error
from recurra.tasks.estimates import Estimate
from recurra.tasks.labelling.columns import CalibrationErrors
from recurra.tasks.measures import Measure
from recurra.tasks.summary import ModelSummary

BOOTSTRAP_SAMPLES = 2000
BOOTSTRAP_SEED = 20
DEFAULT_THRESHOLD = 0.5

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def as_two_labels(logits: npt.ArrayLike, labels: npt.ArrayLike) -> tuple[Floats, Integers]:
    """Every decision about one label of one text as a row of two labels, no and yes: what the softmax is the same of.

    Args:
        logits: ``(rows, labels)``.
        labels: 0 and 1, likewise.

    Returns:
        Logits ``(rows * labels, 2)``, the first 0, and labels ``(rows * labels,)``.
    """
    yes = np.asarray(logits, dtype=np.float64).ravel()
    return np.stack([np.zeros_like(yes), yes], axis=1), np.asarray(labels, dtype=np.int64).ravel()


def decision_error(probabilities: Floats, labels: Integers) -> float:
    """Expected calibration error of all decisions: how far the probability of what is said is from the share right.

    Args:
        probabilities: ``(rows, labels)``.
        labels: 0 and 1, likewise.
    """
    yes = probabilities.ravel()
    return expected_calibration_error(np.stack([1 - yes, yes], axis=1), labels.ravel())


def choose_thresholds(probabilities: Floats, labels: Integers) -> list[float]:
    """Chooses for each label the threshold with the highest F1 on rows that are reported nowhere else.

    Only what lies between two probabilities that occur can be told apart. Of such gaps with equal F1 the one nearest to
    0.5 is taken, then the higher one; in it 0.5 itself, if it lies there, else its middle. A label that no row has, so
    that every F1 is 0, gets 0.5.

    Args:
        probabilities: ``(rows, labels)``.
        labels: 0 and 1, likewise.
    """
    return [_threshold(*columns) for columns in zip(probabilities.T, labels.T, strict=True)]


def _threshold(probabilities: Floats, truth: Integers) -> float:
    if not truth.any():
        return DEFAULT_THRESHOLD
    values, places = np.unique(probabilities, return_inverse=True)
    # Rows at or above each value, and those of them that have the label.
    given = np.bincount(places, minlength=len(values))[::-1].cumsum()[::-1]
    right = np.bincount(places, weights=truth, minlength=len(values))[::-1].cumsum()[::-1]
    f1 = 2 * right / (given + truth.sum())
    below = np.concatenate([[0.0], values[:-1]])
    middle = (below + values) / 2
    # Of two neighbouring numbers the middle is one of them: it must stay above the lower.
    cuts = np.where(middle > below, middle, values)
    cuts = np.where((below < DEFAULT_THRESHOLD) & (values >= DEFAULT_THRESHOLD), DEFAULT_THRESHOLD, cuts)
    best = np.flatnonzero(f1 >= f1.max() - 1e-12)
    return float(min(cuts[best].tolist(), key=lambda cut: (abs(cut - DEFAULT_THRESHOLD), -cut)))


def measure_labels(logits: npt.ArrayLike, labels: npt.ArrayLike, decision: LabelDecision) -> MultiLabelMetricsRecord:
    """Computes the figures of a split.

    Args:
        logits: ``(rows, labels)``.
        labels: True labels, 0 and 1, likewise.
        decision: What makes labels of logits.

    Raises:
        DataError: If there is no row.
        RunError: If a logit is not finite.
    """
    scores, truth = np.asarray(logits, dtype=np.float64), np.asarray(labels, dtype=np.int64)
    if scores.shape != truth.shape or scores.ndim != 2:
        raise ValueError(f"logits and labels (rows, labels) needed; got {scores.shape} and {truth.shape}")
    if not len(scores):
        raise DataError("there is no row to evaluate (0 rows); give a split with at least one row")
    if not np.isfinite(scores).all():
        bad = int((~np.isfinite(scores).all(axis=1)).sum())
        raise RunError(
            f"logits of {bad} of {len(scores)} rows are not finite; the training diverged: lower the learning rate"
        )
    return measure_decided(
        scores, truth, decision.of_logits(scores), decision.probabilities(scores), decision.label_names
    )


def measure_decided(
    scores: Floats,
    truth: Integers,
    said: npt.NDArray[np.bool_],
    probabilities: Floats,
    label_names: Sequence[str],
) -> MultiLabelMetricsRecord:
    """The same of rows whose labels and probabilities are there already, as those of several models are.

    Args:
        scores: Finite logits, ``(rows, labels)``.
        truth: True labels, 0 and 1, likewise.
        said: The labels that are given, likewise.
        probabilities: Calibrated, likewise.
        label_names: Of the columns.
    """
    given = said.astype(np.int64)
    both = given * truth
    right, predicted, support = both.sum(axis=0), given.sum(axis=0), truth.sum(axis=0)
    f1 = 2 * right / np.maximum(predicted + support, 1)
    # -log of the probability of what is true, without overflow.
    losses = np.logaddexp(0.0, np.where(truth == 1, -scores, scores))
    by_label = {
        name: LabelFiguresRecord(
            precision=float(right[index] / max(predicted[index], 1)),
            recall=float(right[index] / max(support[index], 1)),
            f1=float(f1[index]),
            support=int(support[index]),
            predicted=int(predicted[index]),
        )
        for index, name in enumerate(label_names)
    }
    total = int(predicted.sum() + support.sum())
    return MultiLabelMetricsRecord(
        rows=len(scores),
        micro_f1=float(2 * right.sum() / max(total, 1)),
        micro_f1_interval=bootstrap_micro_f1(both.sum(axis=1), given.sum(axis=1) + truth.sum(axis=1)),
        macro_f1=float(f1.mean()),
        subset_accuracy=float((given == truth).all(axis=1).mean()),
        hamming_loss=float((given != truth).mean()),
        loss=float(losses.mean()),
        labels=by_label,
        calibration_error=decision_error(probabilities, truth),
        uncalibrated_error=decision_error(sigmoid(scores), truth),
    )


def bootstrap_micro_f1(right: Integers, total: Integers) -> tuple[float, float]:
    """95 % percentile interval of micro F1 over rows.

    Rows with equal counts are alike: drawing rows with replacement is drawing kinds of rows from a multinomial.

    Args:
        right: Labels of each row that were given and are true, ``(rows,)``.
        total: Labels that were given, and labels that are true, together, ``(rows,)``.
    """
    kinds, counts = np.unique(np.stack([right, total], axis=1), axis=0, return_counts=True)
    generator = np.random.default_rng(BOOTSTRAP_SEED)
    draws = generator.multinomial(len(right), counts / counts.sum(), size=BOOTSTRAP_SAMPLES)
    sums = draws @ kinds
    low, high = np.quantile(2 * sums[:, 0] / np.maximum(sums[:, 1], 1), [0.025, 0.975])
    return float(low), float(high)


@dataclass(frozen=True)
class MultiLabelScore:
    """Quality of a model on one split over its seeds; ``labels`` has mean precision, recall and F1 of each label."""

    split: str
    rows: int
    micro_f1: Estimate
    macro_f1: Estimate
    subset_accuracy: Estimate
    hamming_loss: float
    loss: float
    calibration: CalibrationErrors | None
    labels: dict[str, tuple[float, float, float]]
    support: dict[str, int]


def _measure(key: str, heading: str, **more: Any) -> Measure:
    def read(metrics: MultiLabelMetricsRecord) -> float:
        return float(getattr(metrics, key))

    def of(model: ModelSummary, split: str) -> Estimate | None:
        found: Estimate | None = getattr(model.scores.get(split), key, None)
        return found

    return Measure(
        key, heading, "points", higher_is_better=True, read=read, of=of, limits=(0.0, 1.0), scale=100.0, gap_digits=1,
        **more,
    )  # fmt: skip


def _interval(metrics: MultiLabelMetricsRecord) -> tuple[float, float]:
    return metrics.micro_f1_interval


MICRO_F1 = _measure("micro_f1", "Micro F1", over_rows=_interval)
MACRO_F1 = _measure("macro_f1", "Macro F1")
SUBSET_ACCURACY = _measure("subset_accuracy", "All labels right")
