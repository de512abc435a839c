"""Figures with their 95 % intervals: over seeds where there are several, over examples where there is one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from recurra.core.record import MetricsRecord
from recurra.evaluation.significance import mean_interval
from recurra.study.report.summary import Estimate

BOOTSTRAP_SAMPLES = 2000
BOOTSTRAP_SEED = 20


def accuracy_estimate(metrics: Sequence[MetricsRecord]) -> Estimate:
    """Accuracy with Student's t interval over seeds; with one seed, or equal ones, with Wilson's over examples.

    Seeds that all give the same figure (a deterministic model) would get an interval of no width, which claims a
    certainty that nobody has: the examples are a sample too.
    """
    values = tuple(item.accuracy for item in metrics)
    return _over_seeds(values) or _over_examples(values, metrics[0].accuracy_interval)


def f1_estimate(metrics: Sequence[MetricsRecord]) -> Estimate:
    """F1 with Student's t interval over seeds; with one seed, or equal ones, with a bootstrap over examples."""
    values = tuple(item.f1 for item in metrics)
    return _over_seeds(values) or _over_examples(values, bootstrap_f1(metrics[0].confusion_matrix))


def _over_seeds(values: tuple[float, ...]) -> Estimate | None:
    if len(set(values)) < 2:
        return None
    mean, sd, low, high = mean_interval(values)
    if low is None or high is None:
        return None
    return Estimate(float(mean), float(sd or 0.0), max(0.0, float(low)), min(1.0, float(high)), values, "seeds")


def _over_examples(values: tuple[float, ...], interval: tuple[float, float] | None) -> Estimate:
    sd = 0.0 if len(values) > 1 else None
    if interval is None:
        return Estimate(values[0], sd, None, None, values, "none")
    return Estimate(values[0], sd, interval[0], interval[1], values, "examples")


def f1_of(matrices: NDArray[np.float64]) -> NDArray[np.float64]:
    """F1 of confusion matrices ``(..., labels, labels)``: of label 1 for two labels, the macro mean for more.

    As in `recurra.evaluation.metrics`, a label that neither occurs nor is predicted counts for nothing in the mean.
    """
    right = np.diagonal(matrices, axis1=-2, axis2=-1)
    total = matrices.sum(axis=-1) + matrices.sum(axis=-2)
    scores: NDArray[np.float64] = np.divide(2 * right, total, out=np.zeros_like(total), where=total > 0)
    if scores.shape[-1] == 2:
        return scores[..., 1]
    macro: NDArray[np.float64] = scores.sum(axis=-1) / np.maximum((total > 0).sum(axis=-1), 1)
    return macro


def bootstrap_f1(confusion_matrix: Sequence[Sequence[int]]) -> tuple[float, float] | None:
    """95 % percentile interval of F1 over examples.

    Drawing rows with replacement is drawing cells of the confusion matrix from a multinomial, so the predictions
    themselves are not needed.

    Args:
        confusion_matrix: ``[true][predicted]`` counts.
    """
    matrix = np.asarray(confusion_matrix, dtype=np.float64)
    rows = int(matrix.sum())
    if rows == 0 or matrix.shape[0] < 2:
        return None
    generator = np.random.default_rng(BOOTSTRAP_SEED)
    draws = generator.multinomial(rows, matrix.ravel() / rows, size=BOOTSTRAP_SAMPLES)
    scores = f1_of(draws.reshape(-1, *matrix.shape).astype(np.float64))
    low, high = np.quantile(scores, [0.025, 0.975])
    return float(low), float(high)
