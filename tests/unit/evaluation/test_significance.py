from __future__ import annotations

import itertools
import math
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import f1_score

from recurra.evaluation.significance import (
    bootstrap_between,
    discordant_odds_ratio,
    holm,
    mean_interval,
    paired_bootstrap,
    paired_bootstrap_by_class,
    wilson_interval,
)
from recurra.tasks.classification.measures import macro_f1


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=20))
@settings(deadline=None)
def test_mean_interval_agrees_with_scipy(values: list[float]) -> None:
    mean, sd, low, high = mean_interval(values)
    assert mean == pytest.approx(np.mean(values))
    assert sd == pytest.approx(np.std(values, ddof=1), abs=1e-10)
    error = stats.sem(values)
    if error > 1e-9:
        expected = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=error)
        assert (low, high) == pytest.approx(expected)


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=8), st.integers(1, 1000))
def test_equal_gaps_have_no_spread_however_they_were_rounded(levels: list[int], gap: int) -> None:
    gaps = [(level + gap) / 1000 - level / 1000 for level in levels]
    mean, sd, low, high = mean_interval(gaps)
    assert mean == low == high == pytest.approx(gap / 1000) and sd == 0
    assert (mean_interval([*gaps, gap / 1000 + 1e-6]).sd or 0) > 0


@given(st.integers(1, 3000), st.data())
@settings(deadline=None)
def test_wilson_agrees_with_scipy(total: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, total))
    expected = stats.binomtest(successes, total).proportion_ci(0.95, method="wilson")
    assert wilson_interval(successes, total) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_bootstrap_agrees_with_resampling_rows() -> None:
    # The share of three seeds that are right.
    a, b = np.random.default_rng(1).integers(0, 4, size=(2, 400)) / 3
    gaps = a - b
    means = gaps[np.random.default_rng(2).integers(0, 400, size=(20_000, 400))].mean(axis=1)
    got = paired_bootstrap(a, b)
    assert got.difference == pytest.approx(gaps.mean())
    assert (got.low, got.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=0.0035)
    p = (np.abs(means - got.difference) >= abs(got.difference) - 1e-12).mean()
    assert got.p == pytest.approx(p, abs=0.02)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=6))
def test_bootstrap_of_seeds_is_that_of_every_possible_resample(rows: list[tuple[int, int]]) -> None:
    a, b = np.array([row[0] / 2 for row in rows]), np.array([row[1] / 3 for row in rows])
    got = paired_bootstrap(a, b)
    # Every way to draw as many rows with replacement, all equally likely; in sixths, so that nothing is rounded.
    sixths = [3 * first - 2 * second for first, second in rows]
    observed = sum(sixths)
    sums = sorted(sum(drawn) for drawn in itertools.product(sixths, repeat=len(rows)))
    scale = 6 * len(rows)
    assert got.difference == pytest.approx(observed / scale)
    extreme = sum(abs(value - observed) >= abs(observed) for value in sums)
    assert got.p == pytest.approx(max(extreme / len(sums), 1e-15), rel=1e-9)
    for level, end in ((0.025, got.low), (0.975, got.high)):
        position = round(end * scale)
        below, upto = sum(value < position for value in sums), sum(value <= position for value in sums)
        assert below / len(sums) - 1e-9 <= level <= upto / len(sums) + 1e-9


def test_a_drawn_p_value_is_never_0_and_counts_the_observed_difference() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random(40) + 5, rng.random(40)
    got = paired_bootstrap(a, b, samples=99)
    assert got.p == 1 / 100
    assert got.difference == pytest.approx((a - b).mean()) and got.low < got.difference < got.high
    # One resample and one row: the resample is the row, and as far from the difference as that is from 0 or nearer.
    assert paired_bootstrap([math.pi], [0.0], samples=1).p == 0.5


def test_the_bootstrap_of_large_costs_is_that_of_small_ones_on_a_larger_scale() -> None:
    rng, most = np.random.default_rng(5), 10**9
    a, b = rng.random(2000) < 0.2, rng.random(2000) < 0.17
    small, large = paired_bootstrap(a, b), paired_bootstrap(most * a, most * b)
    assert np.divide(large[:3], most) == pytest.approx(small[:3]) and large.p == pytest.approx(small.p)
    # Without a common step the sums may be anything up to the cost, so they are drawn.
    mixed = paired_bootstrap(most * a, (most - 1) * b)
    assert mixed.p == pytest.approx(small.p, abs=0.03)


def test_the_bootstrap_between_rows_is_that_of_every_possible_draw() -> None:
    values, of_a = np.array([1.0, 0.5, 0.0, -0.5, 0.5, 9.0]), np.array([True, True, True, False, False, False])
    of_b = np.array([False, False, False, True, True, False])

    def gap(rows: Sequence[int]) -> float:
        a, b = ([values[row] for row in rows if side[row]] for side in (of_a, of_b))
        return float(np.mean(a or [0.0]) - np.mean(b or [0.0]))

    every = np.array([gap(rows) for rows in itertools.product(range(5), repeat=5)])
    got = bootstrap_between(values, of_a, of_b)
    assert got.difference == pytest.approx(0.5)
    assert (got.low, got.high) == pytest.approx(tuple(np.quantile(every, [0.025, 0.975])), abs=0.1)
    assert got.p == pytest.approx((np.abs(every - 0.5) >= 0.5 - 1e-12).mean(), abs=0.02)


def test_holm_by_hand_and_bounds() -> None:
    # Sorted 0.01, 0.02, 0.04 with factors 3, 2, 1.
    assert holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([]) == [] and holm([0.9, 0.8]) == [1.0, 1.0]
    # The odds ratio of discordant rows, with half a row on each side.
    assert [discordant_odds_ratio(*rows) for rows in ((0, 0), (7, 2), (2, 7))] == [1, 3, pytest.approx(1 / 3)]


def test_bootstrap_of_macro_f1_is_the_resampling_of_rows() -> None:
    rng = np.random.default_rng(4)
    truth = rng.choice(3, 300, p=[0.7, 0.2, 0.1])
    said = [np.where(rng.random(300) < share, truth, rng.integers(0, 3, 300)) for share in (0.8, 0.75, 0.5)]

    def score(rows: np.ndarray, predicted: np.ndarray) -> float:
        true, given = truth[rows], predicted[rows]
        of_class = [2 * ((true == c) & (given == c)).sum() / ((true == c).sum() + (given == c).sum()) for c in range(3)]
        return float(np.mean(of_class))

    every = np.arange(300)
    assert score(every, said[0]) == pytest.approx(f1_score(truth, said[0], average="macro"))

    def gap(rows: np.ndarray) -> float:
        return (score(rows, said[0]) + score(rows, said[1])) / 2 - score(rows, said[2])

    found = paired_bootstrap_by_class(truth, said[:2], said[2:], labels=3, score=macro_f1)
    drawn = [gap(rng.integers(0, 300, 300)) for _ in range(1500)]
    assert found.difference == pytest.approx(gap(every))
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=0.01)
    assert found.p < 0.01
    back = paired_bootstrap_by_class(truth, said[2:], said[:2], labels=3, score=macro_f1)
    assert back.difference == pytest.approx(-found.difference)
    assert paired_bootstrap_by_class(truth, said[:1], said[:1], labels=3, score=macro_f1).p == 1.0


def test_a_paired_bootstrap_of_many_labels_takes_little_memory() -> None:
    truth = np.arange(2000)
    tracemalloc.start()
    try:
        paired_bootstrap_by_class(truth, truth[None], truth[None, ::-1], labels=2000, score=macro_f1)
        # Three dense matrices of rows and labels would take 96 MB, and their products more.
        assert tracemalloc.get_traced_memory()[1] < 150e6
    finally:
        tracemalloc.stop()
