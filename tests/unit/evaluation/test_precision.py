"""Thresholds for a wanted precision: the bound, what a threshold counts, and how often the promise is kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from recurra.evaluation.metrics import precision_bound, precision_thresholds


@given(rows=st.integers(1, 400), share=st.floats(0, 1), error=st.floats(0.001, 0.2))
def test_the_bound_is_that_of_an_independent_library(rows: int, share: float, error: float) -> None:
    right = round(share * rows)
    wanted = binomtest(right, rows, alternative="greater").proportion_ci(1 - error, method="exact").low
    assert precision_bound(right, rows, error) == pytest.approx(wanted, abs=1e-9)


@given(rows=st.integers(0, 120), seed=st.integers(0, 999), digits=st.integers(1, 6))
def test_a_threshold_counts_the_rows_that_keep_the_label(rows: int, seed: int, digits: int) -> None:
    rng = np.random.default_rng(seed)
    sure = rng.random(rows).round(digits)
    probabilities, labels = np.stack([1 - sure, sure], axis=1), rng.integers(0, 2, rows)
    found = precision_thresholds(probabilities, labels, 1)
    given_it = probabilities.argmax(axis=1) == 1
    assert len(found) <= 20 and bool(found) == bool(given_it.any())
    for one in found:
        kept = given_it & (sure >= one.threshold)
        assert (one.rows, one.right) == (kept.sum(), labels[kept].sum())
        assert one.bound == pytest.approx(precision_bound(one.right, one.rows, 0.05 / len(found)))
    assert [one.threshold for one in found] == sorted((one.threshold for one in found), reverse=True)
    assert not found or found[-1].threshold == 0


def test_answers_are_right_as_often_as_is_said_in_nineteen_draws_of_twenty() -> None:
    rng = np.random.default_rng(1)
    wanted, chosen, missed = 0.85, 0, 0
    for _ in range(1_000):
        sure, answers = rng.uniform(0.5, 1, 800), rng.integers(0, 2, 800)
        right = rng.random(800) < 2 * sure - 0.95
        rows = np.arange(800)
        probabilities = np.empty((800, 2))
        probabilities[rows, answers], probabilities[rows, 1 - answers] = sure, 1 - sure
        shown = [
            one
            for one in precision_thresholds(probabilities, np.where(right, answers, 1 - answers))
            if one.bound >= wanted
        ]
        if shown:
            chosen += 1
            lowest = max(shown[-1].threshold, 0.5)
            missed += np.clip(2 * np.linspace(lowest, 1, 2_001) - 0.95, 0, 1).mean() < wanted
    assert chosen > 500 and missed / chosen <= 0.05
