"""What classifiers are judged by: accuracy first, then F1, with their intervals over rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from recurra.core.record import MetricsRecord
from recurra.tasks.classification.summary import ClassifierSummary
from recurra.tasks.estimates import Estimate
from recurra.tasks.measures import Measure

BOOTSTRAP_SAMPLES = 2000
BOOTSTRAP_SEED = 20


def _accuracy(metrics: MetricsRecord) -> float:
    return metrics.accuracy


def _accuracy_of(model: ClassifierSummary, split: str) -> Estimate | None:
    return model.scores[split].accuracy if split in model.scores else None


def _wilson(metrics: MetricsRecord) -> tuple[float, float]:
    return metrics.accuracy_interval


def _f1(metrics: MetricsRecord) -> float:
    return metrics.f1


def _f1_of(model: ClassifierSummary, split: str) -> Estimate | None:
    return model.scores[split].f1 if split in model.scores else None


def _f1_over_rows(metrics: MetricsRecord) -> tuple[float, float] | None:
    return bootstrap_f1(metrics.confusion_matrix)


ACCURACY = Measure(
    "accuracy",
    "Accuracy",
    "points",
    higher_is_better=True,
    read=_accuracy,
    of=_accuracy_of,
    over_rows=_wilson,
    paired_by_rows=True,
    better="more accurate",
    limits=(0.0, 1.0),
    scale=100.0,
    gap_digits=1,
)
F1 = Measure(
    "f1",
    "F1",
    "points",
    higher_is_better=True,
    read=_f1,
    of=_f1_of,
    over_rows=_f1_over_rows,
    limits=(0.0, 1.0),
    scale=100.0,
    gap_digits=1,
)


def _macro_f1(metrics: MetricsRecord) -> float:
    return float(f1_of(np.asarray(metrics.confusion_matrix, dtype=np.float64), macro=True))


def _macro_f1_of_labels(truth: NDArray[np.int64], predicted: NDArray[np.int64]) -> float:
    labels = int(max(truth.max(), predicted.max())) + 1
    counts = np.bincount(truth * labels + predicted, minlength=labels**2).reshape(labels, labels)
    return float(f1_of(counts.astype(np.float64), macro=True))


def _macro_f1_of(model: ClassifierSummary, split: str) -> Estimate | None:
    return model.scores[split].macro_f1 if split in model.scores else None


def _macro_f1_over_rows(metrics: MetricsRecord) -> tuple[float, float] | None:
    return bootstrap_f1(metrics.confusion_matrix, macro=True)


# For unequal classes: there accuracy is high for who ignores the rare ones.
MACRO_F1 = replace(
    F1,
    key="macro_f1",
    heading="Macro F1",
    read=_macro_f1,
    of=_macro_f1_of,
    over_rows=_macro_f1_over_rows,
    paired_by_rows=True,
    of_labels=_macro_f1_of_labels,
    better="better by macro F1",
)


def f1_of(matrices: NDArray[np.float64], *, macro: bool = False) -> NDArray[np.float64]:
    """F1 of confusion matrices ``(..., labels, labels)``: of label 1 for two labels, the macro mean for more.

    With ``macro`` it is the mean over labels for two of them too.

    As in `recurra.evaluation.metrics`, a label that neither occurs nor is predicted counts for nothing in the mean.
    """
    right = np.diagonal(matrices, axis1=-2, axis2=-1)
    total = matrices.sum(axis=-1) + matrices.sum(axis=-2)
    scores: NDArray[np.float64] = np.divide(2 * right, total, out=np.zeros_like(total), where=total > 0)
    if scores.shape[-1] == 2 and not macro:
        return scores[..., 1]
    mean: NDArray[np.float64] = scores.sum(axis=-1) / np.maximum((total > 0).sum(axis=-1), 1)
    return mean


def label_figures(matrix: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Precision, recall and F1 of each label, ``(labels,)``, from a confusion matrix ``[true][predicted]``.

    What would be divided by nothing is 0, as in `f1_of`.
    """
    right, said, true = np.diagonal(matrix), matrix.sum(axis=0), matrix.sum(axis=1)

    def share(of: NDArray[np.float64], part: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.divide(part, of, out=np.zeros_like(part), where=of > 0)

    return share(said, right.copy()), share(true, right.copy()), share(said + true, 2 * right)


def bootstrap_f1(confusion_matrix: Sequence[Sequence[int]], *, macro: bool = False) -> tuple[float, float] | None:
    """95 % percentile interval of F1 over examples.

    Drawing rows with replacement is drawing cells of the confusion matrix from a multinomial, so the predictions
    themselves are not needed.

    Args:
        confusion_matrix: ``[true][predicted]`` counts.
        macro: As `f1_of` takes it.
    """
    matrix = np.asarray(confusion_matrix, dtype=np.float64)
    rows = int(matrix.sum())
    if rows == 0 or matrix.shape[0] < 2:
        return None
    generator = np.random.default_rng(BOOTSTRAP_SEED)
    draws = generator.multinomial(rows, matrix.ravel() / rows, size=BOOTSTRAP_SAMPLES)
    scores = f1_of(draws.reshape(-1, *matrix.shape).astype(np.float64), macro=macro)
    low, high = np.quantile(scores, [0.025, 0.975])
    return float(low), float(high)
