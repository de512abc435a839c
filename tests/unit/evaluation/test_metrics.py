"""Figures of a classifier, temperatures, thresholds and rankings, against scikit-learn, SciPy and definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from scipy.stats import binomtest
from sklearn import metrics as reference

from recurra.core.errors import DataError, RunError
from recurra.evaluation.metrics import (
    RankedLabel,
    evaluate_logits,
    expected_calibration_error,
    fit_temperature,
    precision_bound,
    precision_thresholds,
    rank_labels,
)


@given(classes=st.integers(2, 5), rows=st.integers(1, 60), seed=st.integers(0, 2**32 - 1), scale=st.floats(0.01, 50))
@settings(max_examples=60)
def test_agrees_with_scikit_learn(classes: int, rows: int, seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(rows, classes)) * scale).astype(np.float32)
    # Few distinct labels at times, so that absent classes are met too.
    labels = rng.integers(0, rng.integers(1, classes + 1), size=rows)
    predicted = logits.argmax(axis=1)
    average = "binary" if classes == 2 else "macro"
    precision, recall, f1, _ = reference.precision_recall_fscore_support(
        labels, predicted, zero_division=0, average=average
    )
    probabilities = softmax(logits.astype(np.float64), axis=1)
    got = evaluate_logits(logits, labels)
    assert got.rows == rows
    assert got.accuracy == pytest.approx(reference.accuracy_score(labels, predicted))
    assert (got.precision, got.recall, got.f1) == pytest.approx((precision, recall, f1))
    confusion = reference.confusion_matrix(labels, predicted, labels=range(classes))
    assert got.confusion_matrix == confusion.tolist()
    chosen = probabilities[np.arange(rows), labels]
    if chosen.min() > 1e-12:  # scikit-learn clips smaller ones
        expected = reference.log_loss(labels, probabilities, labels=range(classes))
        assert got.loss == pytest.approx(expected, rel=1e-9, abs=1e-12)
    low, high = got.accuracy_interval
    assert 0 <= low <= got.accuracy <= high <= 1


def test_refuses_what_it_cannot_judge_and_the_loss_of_logits_that_overflow_is_exact() -> None:
    for logits, labels, error, words in (
        ([[0.0, 1.0]], [2], DataError, "label 2"),
        ([[0.0, 1.0]], [-1], DataError, "label -1"),
        (np.zeros((0, 2)), np.zeros(0, dtype=int), DataError, "0 rows"),
        ([[0.0, math.nan], [0.0, 1.0]], [0, 1], RunError, "1 of 2 rows"),
    ):
        with pytest.raises(error, match=words) as caught:
            evaluate_logits(logits, labels)
        assert "\n" not in str(caught.value)
    got = evaluate_logits(np.array([[0.0, 1000.0], [1000.0, 0.0]], dtype=np.float32), [0, 0])
    assert got.loss == pytest.approx(500.0)


@given(rows=st.integers(2, 60), classes=st.integers(2, 4), seed=st.integers(0, 999), scale=st.floats(0.1, 20))
def test_no_other_temperature_has_a_lower_cross_entropy(rows: int, classes: int, seed: int, scale: float) -> None:
    # Labels come as the softmax of the logits at a temperature of 2 says.
    rng = np.random.default_rng(seed)
    logits = 3 * rng.normal(size=(rows, classes))
    truth = (softmax(logits / 2.0, axis=1).cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1).clip(max=classes - 1)
    logits *= scale
    targets = (rows * np.eye(classes)[truth] + 1) / (rows + classes)

    def loss(log_temperature: float) -> float:
        return float(-(targets * log_softmax(logits / np.exp(log_temperature), axis=1)).sum(axis=1).mean())

    best = minimize_scalar(loss, bounds=(np.log(0.01), np.log(100)), method="bounded", options={"xatol": 1e-9})
    found = fit_temperature(logits, truth)
    gain = rows * (loss(0.0) - best.fun)
    assert found == 1.0 if gain < 1 - 1e-6 else loss(np.log(found)) <= best.fun + 1e-9
    assert gain < 1 + 1e-6 or found != 1.0


@given(rows=st.integers(1, 80), classes=st.integers(2, 20), seed=st.integers(0, 999))
@example(rows=8, classes=20, seed=0)
def test_the_calibration_error_is_that_of_its_definition(rows: int, classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    # Few distinct values, so that some lie on the edge of a bin; of twenty labels the first has less than a fifteenth.
    probabilities = rng.multinomial(30, np.ones(classes) / classes, size=rows) / 30
    probabilities[0] = 1 / classes
    truth = rng.integers(0, classes, rows)
    expected = 0.0
    for place in range(15):
        inside = [row for row in range(rows) if place / 15 < probabilities[row].max() <= (place + 1) / 15 + 1e-15]
        if inside:
            sure = np.mean([probabilities[row].max() for row in inside])
            right = np.mean([probabilities[row].argmax() == truth[row] for row in inside])
            expected += len(inside) / rows * abs(sure - right)
    assert expected_calibration_error(probabilities, truth) == pytest.approx(expected, abs=1e-9)


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
        error = 0.05 / len(found)
        wanted = binomtest(one.right, one.rows, alternative="greater").proportion_ci(1 - error, method="exact").low
        assert [one.bound, precision_bound(one.right, one.rows, error)] == pytest.approx([wanted] * 2, abs=1e-9)
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
        found = precision_thresholds(probabilities, np.where(right, answers, 1 - answers))
        shown = [one for one in found if one.bound >= wanted]
        if shown:
            chosen += 1
            lowest = max(shown[-1].threshold, 0.5)
            missed += np.clip(2 * np.linspace(lowest, 1, 2_001) - 0.95, 0, 1).mean() < wanted
    assert chosen > 500 and missed / chosen <= 0.05


@given(rows=st.lists(st.tuples(st.booleans(), *[st.integers(0, most) for most in (4, 3, 3)]), min_size=1, max_size=30))
def test_with_weights_and_ties_it_is_the_figure_of_scikit_learn(rows: list[tuple[bool, int, int, int]]) -> None:
    relevant, scores, *weights = (np.array(part) for part in zip(*rows, strict=True))
    found = RankedLabel(relevant, scores).average_precision(np.stack(weights))
    for value, weight in zip(found, weights, strict=True):
        if (weight * relevant).sum():
            wanted = reference.average_precision_score(relevant, scores, sample_weight=weight)
            assert value == pytest.approx(wanted)
        else:
            assert value == 0


def test_a_label_that_no_row_has_is_not_ranked() -> None:
    first, second, third = rank_labels(np.array([0, 2, 2]), np.array([[3.0, 9.0, 1.0], [2.0, 9.0, 2.0], [1.0, 9.0, 0]]))
    assert first is not None and first.average_precision() == 1 and second is None
    # In the order of the third label: right, wrong, right.
    assert third is not None and third.average_precision() == pytest.approx((1 + 2 / 3) / 2)
