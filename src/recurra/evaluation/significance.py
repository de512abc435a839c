"""Intervals and paired tests of the difference between two models.

All functions work on plain numbers or on arrays with one value for each example.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import fft, special
from scipy.sparse import eye_array

# Every interval is a 95 % interval.
_ENDS = 0.5 - 0.95 / 2, 0.5 + 0.95 / 2
# Resamples are drawn in pieces of at most this many counts (8 bytes each), whatever the number of distinct differences.
_COUNTS_A_PIECE = 2_000_000
# Finest grid of values (in steps per 1) whose bootstrap is computed exactly; means over a few seeds lie on such a grid.
_FINEST_GRID = 120
# Widest distribution that is computed exactly; whole numbers, as costs are, may spread over any width.
_MOST_WIDTH = 2**21
# Probability that the exact bootstrap neglects, and its smallest p-value.
_NEGLIGIBLE = 1e-15
# Values that differ by less are equal up to rounding: 0.8 - 0.7 and 0.9 - 0.8 differ in the last bit.
_ROUNDING = 1e-12


# A figure ``(...)`` from counts for each class ``(..., labels)``: rows of the class that are right, all rows of the
# class, and rows predicted as the class.
ClassScore = Callable[[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]], npt.NDArray[Any]]


class MeanInterval(NamedTuple):
    """A mean over runs. All but ``mean`` are ``None`` when there is one run: one run says nothing about spread."""

    mean: float
    sd: float | None
    low: float | None
    high: float | None

    @property
    def half(self) -> float | None:
        """Half of the interval; 0 if all runs are equal."""
        return None if self.high is None or self.low is None else (self.high - self.low) / 2


class BootstrapDifference(NamedTuple):
    """Difference A minus B of a mean over the same rows, its 95 % interval and two-sided p-value."""

    difference: float
    low: float
    high: float
    p: float


def mean_interval(values: Sequence[float]) -> MeanInterval:
    """Mean of independent runs with a Student t interval."""
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return MeanInterval(mean, None, None, None)
    # For a few numbers this is faster than arrays, and a large study computes tens of thousands of intervals.
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    if max(values) - min(values) <= _ROUNDING * max(1.0, *map(abs, values)):
        sd = 0.0
    half = _student(count - 1) * sd / math.sqrt(count)
    return MeanInterval(mean, sd, mean - half, mean + half)


@cache
def _student(degrees: int) -> float:
    return float(special.stdtrit(degrees, _ENDS[1]))


def wilson_interval(successes: int, total: int) -> tuple[float, float]:
    """Wilson score interval of a share; unlike the normal one it stays inside [0, 1] and works at 0 and 1."""
    z = float(special.ndtri(_ENDS[1]))
    share = successes / total
    scale = 1 + z * z / total
    centre = (share + z * z / (2 * total)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    # At the ends the formula gives 0 and 1 exactly, but floating point may not.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == total else min(1.0, centre + half)
    return low, high


def discordant_odds_ratio(only_a: int, only_b: int) -> float:
    """Effect size of a paired comparison: for each row that B alone gets right, how many A alone gets right.

    This is the conditional (matched-pairs) odds ratio of McNemar's table, b / c (Fleiss, Levin and Paik, "Statistical
    Methods for Rates and Proportions", 2003, section 13.1). Rows that both models get right or wrong do not show which
    is better and do not count. Half a row is added to each side, so that a side without rows gives a finite ratio
    (Haldane 1956); without discordant rows the ratio is 1.
    """
    return (only_a + 0.5) / (only_b + 0.5)


def paired_bootstrap(correct_a: npt.ArrayLike, correct_b: npt.ArrayLike, samples: int = 10_000) -> BootstrapDifference:
    """Paired bootstrap of the difference in accuracy (or of any mean over rows), A minus B.

    Scores that are shares of a few seeds differ by multiples of one step. Then the distribution of the mean over
    resampled rows is computed exactly (the characteristic function of one row to the power of the number of rows),
    unless it is too wide.
    Otherwise the counts of distinct differences are drawn from a multinomial, which is the same as drawing rows. The
    two-sided p-value is the share of resamples at least as far from the observed difference as that is from zero. It
    is never 0: with drawn samples 1 is added to numerator and denominator, and an exact one is at least 1e-15.
    """
    a, b = (np.asarray(values, dtype=np.float64) for values in (correct_a, correct_b))
    differences = np.subtract(*np.stack([a, b]))
    values, counts = np.unique(differences.round(12), return_counts=True)
    grid = _grid(values)
    exact = None if grid is None else _exact_bootstrap(np.rint(values * grid).astype(np.int64), counts, grid)
    rows = counts.sum()
    return exact or weighted_bootstrap(lambda weights: weights @ values / rows, counts, samples=samples)


def paired_bootstrap_by_class(
    truth: npt.ArrayLike, predicted_a: npt.ArrayLike, predicted_b: npt.ArrayLike, *, labels: int, score: ClassScore
) -> BootstrapDifference:
    """Paired bootstrap of the difference in a figure of class counts, A minus B, each averaged over its seeds.

    Such a figure (F1, balanced accuracy) is not a mean over rows, so the counts of each combination of label and
    predictions are drawn from a multinomial, which is the same as drawing rows.
    """
    true, a, b = (np.asarray(values, dtype=np.int64) for values in (truth, predicted_a, predicted_b))
    combinations, counts = np.unique(np.vstack([true, a, b]), axis=1, return_counts=True)
    one_hot = eye_array(labels, format="csr")
    occurs = one_hot[combinations[0]]
    answers = [one_hot[row] for row in combinations[1:]]
    hits = [occurs.multiply(answer).tocsr() for answer in answers]

    def gap(weights: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        support = weights @ occurs
        scores = [score(weights @ hit, support, weights @ answer) for hit, answer in zip(hits, answers, strict=True)]
        result: npt.NDArray[np.float64] = np.mean(scores[: len(a)], axis=0) - np.mean(scores[len(a) :], axis=0)
        return result

    return weighted_bootstrap(gap, counts)


def resampled(
    score: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]],
    counts: npt.ArrayLike,
    *,
    samples: int = 2_000,
    seed: int = 0,
    width: int = 1,
) -> npt.NDArray[np.float64]:
    """A figure on resamples of rows, ``(samples,)``; ``counts`` of rows that are alike, ``(kinds,)``.

    Drawing rows with replacement is drawing kinds of rows from a multinomial, and a kind without rows is never drawn.
    ``score`` computes the figure from ``(samples, kinds)`` and holds ``width`` numbers a sample, or one a kind.
    """
    observed = np.asarray(counts, dtype=np.float64)
    rows, rng = int(observed.sum()), np.random.default_rng(seed)
    piece = max(1, _COUNTS_A_PIECE // max(width, observed.size))
    return np.concatenate(
        [
            score(rng.multinomial(rows, observed / rows, size=min(piece, samples - start)).astype(np.float64))
            for start in range(0, samples, piece)
        ]
    )


def weighted_bootstrap(
    gap: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]], counts: npt.ArrayLike, *, samples: int = 2_000
) -> BootstrapDifference:
    """Bootstrap of a difference; ``gap`` computes it from how often each row, or kind of row, occurs."""
    gaps = resampled(gap, counts, samples=samples)
    difference = float(gap(np.asarray(counts, dtype=np.float64)))
    low, high = np.quantile(gaps, _ENDS)
    # The slack keeps ties, which are common on a grid of 1 / rows, from being lost to rounding.
    num_extreme = int((np.abs(gaps - difference) >= abs(difference) - 1e-12).sum())
    return BootstrapDifference(difference, float(low), float(high), (num_extreme + 1) / (samples + 1))


def bootstrap_between(
    values: npt.NDArray[np.float64], of_a: npt.NDArray[np.bool_], of_b: npt.NDArray[np.bool_]
) -> BootstrapDifference:
    """Bootstrap of the mean over rows of A minus the mean over rows of B; the rows of both are drawn together."""
    both = of_a | of_b
    (distinct, is_a), counts = np.unique(np.stack([values[both].round(12), of_a[both]]), axis=1, return_counts=True)

    def gap(weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        # A draw of few rows may have no row of one side.
        a, b = (weights @ (distinct * side) / np.maximum(weights @ side, 1) for side in (is_a, 1 - is_a))
        difference: npt.NDArray[np.float64] = a - b
        return difference

    return weighted_bootstrap(gap, counts, samples=10_000)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction for several tests."""
    array = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(array, kind="stable")
    factors = array.size - np.arange(array.size)
    stepped = np.minimum(np.maximum.accumulate(array[order] * factors), 1.0)
    adjusted = np.empty_like(array)
    adjusted[order] = stepped
    return [float(value) for value in adjusted]


def _grid(values: npt.NDArray[np.float64]) -> int | None:
    """The smallest number whose product with every value is whole; none if it is above `_FINEST_GRID`."""
    if values.size > 2 * _FINEST_GRID + 1:
        return None
    steps = np.arange(1, _FINEST_GRID + 1)
    scaled = np.outer(steps, values)
    whole = (np.abs(scaled - np.rint(scaled)) < 1e-8).all(axis=1)
    return int(steps[whole.argmax()]) if whole.any() else None


def _exact_bootstrap(
    values: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], grid: int
) -> BootstrapDifference | None:
    """The exact bootstrap of the mean of ``values / grid``, where each value occurs as often as counted.

    The distribution of the sum is computed modulo a width outside of which less than `_NEGLIGIBLE` probability lies
    (Bernstein's inequality), so that its size follows the spread of the sum and not its range. There is none above
    `_MOST_WIDTH`.
    """
    step = int(np.gcd.reduce(values)) or 1
    values = values // step
    rows = int(counts.sum())
    observed = int(counts @ values)
    mean = observed / rows
    variance = float(counts @ (values - mean) ** 2)
    reach, tail = float(np.abs(values - mean).max()), math.log(2 / _NEGLIGIBLE)
    half = math.ceil(reach * tail / 3 + math.sqrt((reach * tail / 3) ** 2 + 2 * variance * tail))
    if 2 * half + 1 > _MOST_WIDTH:
        return None
    width = fft.next_fast_len(2 * half + 1, real=True)
    one_row = np.bincount((values % width), weights=counts / rows, minlength=width)
    sums = np.roll(fft.irfft(_power(fft.rfft(one_row), rows), width), width // 2 - observed % width)
    sums = np.maximum(sums, 0.0)
    offsets = np.arange(width) - width // 2
    alpha = _ENDS[0]
    low = offsets[int(np.searchsorted(np.cumsum(sums), alpha))]
    high = offsets[width - 1 - int(np.searchsorted(np.cumsum(sums[::-1]), alpha))]
    p = float(sums[np.abs(offsets) >= abs(observed)].sum())
    scale = rows * grid
    difference, lowest, highest = (float(total * step) / scale for total in (observed, observed + low, observed + high))
    return BootstrapDifference(difference, lowest, highest, min(max(p, _NEGLIGIBLE), 1.0))


def _power(base: npt.NDArray[np.complex128], exponent: int) -> npt.NDArray[np.complex128]:
    """Repeated squaring: faster than a complex power, and exact where the base is 0."""
    result = np.ones_like(base)
    while exponent:
        if exponent & 1:
            result = result * base
        base = base * base
        exponent >>= 1
    return result
