"""Intervals and paired tests: what a difference between two models is worth.

Everything here works on plain numbers or on arrays with one value an example; nothing knows about models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

# Above this number of discordant rows the chi-squared approximation of McNemar's test is good (Fagerland et al. 2013).
EXACT_DISCORDANT_LIMIT = 50
# Resamples are drawn in pieces of at most this many counts (8 bytes each), whatever the number of distinct differences.
_COUNTS_A_PIECE = 2_000_000


class MeanInterval(NamedTuple):
    """A mean over runs. All but ``mean`` are ``None`` when there is one run: one run says nothing about spread."""

    mean: float
    sd: float | None
    low: float | None
    high: float | None


class McNemarTest(NamedTuple):
    """McNemar's test. ``only_a`` rows are right under A and wrong under B, ``only_b`` the reverse."""

    p: float
    only_a: int
    only_b: int
    both_right: int
    both_wrong: int
    exact: bool


class BootstrapDifference(NamedTuple):
    """Difference A minus B of a mean over the same rows, its 95 % (or ``level``) interval and two-sided p-value."""

    difference: float
    low: float
    high: float
    p: float


def mean_interval(values: Sequence[float], level: float = 0.95) -> MeanInterval:
    """Mean of independent runs with a Student t interval.

    Args:
        values: One figure a run (a seed); at least one.
        level: Coverage of the interval.

    Returns:
        Mean, sample standard deviation (divisor n - 1), and the interval's ends; see `MeanInterval` for one run.

    Raises:
        ValueError: If there is no value, or one is not finite.
    """
    array = np.asarray(values, dtype=np.float64)
    _check_level(level)
    if array.ndim != 1 or array.size == 0 or not np.isfinite(array).all():
        raise ValueError(f"mean_interval needs finite numbers, at least one; got {values!r}")
    mean = float(array.mean())
    if array.size == 1:
        return MeanInterval(mean, None, None, None)
    sd = float(array.std(ddof=1))
    half = float(stats.t.ppf(0.5 + level / 2, array.size - 1)) * sd / math.sqrt(array.size)
    return MeanInterval(mean, sd, mean - half, mean + half)


def wilson_interval(successes: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a share; unlike the normal one it stays inside [0, 1] and works at 0 and 1.

    Args:
        successes: How many of the rows count.
        total: Number of rows, at least 1.
        level: Coverage of the interval.

    Raises:
        ValueError: If ``successes`` is not between 0 and ``total``, or there is no row.
    """
    _check_level(level)
    if total < 1 or not 0 <= successes <= total:
        raise ValueError(f"wilson_interval needs 0 <= successes <= total and a row; got {successes} of {total}")
    z = float(stats.norm.ppf(0.5 + level / 2))
    share = successes / total
    scale = 1 + z * z / total
    centre = (share + z * z / (2 * total)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    # At the ends the formula gives 0 and 1 exactly, but floating point may not.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == total else min(1.0, centre + half)
    return low, high


def mcnemar(correct_a: npt.ArrayLike, correct_b: npt.ArrayLike) -> McNemarTest:
    """McNemar's test of two models on the same rows.

    Exact binomial up to 50 discordant rows, above that chi-squared with Edwards' continuity correction.

    Args:
        correct_a: Whether A is right on each row, shape ``(rows,)``, boolean.
        correct_b: The same for B, the rows in the same order.

    Raises:
        ValueError: If the two differ in length, are empty or are not truth values.
    """
    a, b = _paired(correct_a, correct_b)
    if not (np.isin(a, (0.0, 1.0)).all() and np.isin(b, (0.0, 1.0)).all()):
        raise ValueError("McNemar's test needs right or wrong for each row; got values other than 0 and 1")
    only_a = int(((a == 1) & (b == 0)).sum())
    only_b = int(((a == 0) & (b == 1)).sum())
    both_right = int(((a == 1) & (b == 1)).sum())
    discordant = only_a + only_b
    exact = discordant <= EXACT_DISCORDANT_LIMIT
    if discordant == 0:
        p = 1.0
    elif exact:
        p = float(stats.binomtest(min(only_a, only_b), discordant, 0.5).pvalue)
    else:
        statistic = max(abs(only_a - only_b) - 1, 0) ** 2 / discordant
        p = float(stats.chi2.sf(statistic, 1))
    return McNemarTest(p, only_a, only_b, both_right, a.size - discordant - both_right, exact)


def paired_bootstrap(
    correct_a: npt.ArrayLike,
    correct_b: npt.ArrayLike,
    samples: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
) -> BootstrapDifference:
    """Paired bootstrap of the difference in accuracy (or of any mean over rows), A minus B.

    A resample of rows changes the mean difference only through how often each distinct difference is drawn, and those
    counts are multinomial; so they are drawn directly, which is the same distribution for a fraction of the work.

    Args:
        correct_a: Score of A on each row, shape ``(rows,)``; right or wrong, or the share of seeds that are right.
        correct_b: The same for B, the rows in the same order.
        samples: Number of resamples.
        seed: Makes the result reproducible.
        level: Coverage of the percentile interval.

    Returns:
        The difference, its interval, and the two-sided p-value of "no difference": the share of resamples that lie
        at least as far from the observed difference as that lies from zero (one is added above and below, so that it
        is never 0).

    Raises:
        ValueError: If the two differ in length or are empty.
    """
    a, b = _paired(correct_a, correct_b)
    _check_level(level)
    if samples < 1:
        raise ValueError(f"samples is {samples}; at least 1 is needed")
    values, counts = np.unique(np.round(a - b, 12), return_counts=True)
    rng = np.random.default_rng(seed)
    means = np.empty(samples)
    piece = max(1, _COUNTS_A_PIECE // values.size)
    for start in range(0, samples, piece):
        size = min(piece, samples - start)
        drawn = rng.multinomial(a.size, counts / a.size, size=size)
        means[start : start + size] = drawn @ values / a.size
    difference = float(counts @ values / a.size)
    low, high = np.quantile(means, [0.5 - level / 2, 0.5 + level / 2])
    # The slack keeps ties, which are common on a grid of 1 / rows, from being lost to rounding.
    extreme = int((np.abs(means - difference) >= abs(difference) - 1e-12).sum())
    return BootstrapDifference(difference, float(low), float(high), (extreme + 1) / (samples + 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction for several tests.

    Args:
        p_values: One p-value a test.

    Returns:
        Adjusted p-values, in the order given; each can be held against the wanted level directly.

    Raises:
        ValueError: If a value is not between 0 and 1.
    """
    array = np.asarray(p_values, dtype=np.float64)
    if array.size and not ((array >= 0) & (array <= 1)).all():
        raise ValueError(f"p-values lie between 0 and 1; got {list(p_values)}")
    order = np.argsort(array, kind="stable")
    factors = array.size - np.arange(array.size)
    stepped = np.minimum(np.maximum.accumulate(array[order] * factors), 1.0)
    adjusted = np.empty_like(array)
    adjusted[order] = stepped
    return [float(value) for value in adjusted]


def _paired(a: npt.ArrayLike, b: npt.ArrayLike) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    first = np.asarray(a, dtype=np.float64)
    second = np.asarray(b, dtype=np.float64)
    if first.ndim != 1 or first.shape != second.shape or first.size == 0:
        raise ValueError(f"a paired test needs the same rows twice; got shapes {first.shape} and {second.shape}")
    return first, second


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; it lies between 0 and 1, e.g. 0.95")
