"""Temperatures and calibration errors, held against slow and independent forms of their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from recurra.evaluation.metrics import expected_calibration_error, fit_temperature


def drawn(rows: int, classes: int, temperature: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits, and labels that come as the softmax of the logits at a temperature says."""
    rng = np.random.default_rng(seed)
    logits = 3 * rng.normal(size=(rows, classes))
    truth = (softmax(logits / temperature, axis=1).cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1)
    return logits, np.minimum(truth, classes - 1)


@given(rows=st.integers(2, 60), classes=st.integers(2, 4), seed=st.integers(0, 999), scale=st.floats(0.1, 20))
def test_no_other_temperature_has_a_lower_cross_entropy(rows: int, classes: int, seed: int, scale: float) -> None:
    logits, truth = drawn(rows, classes, 2.0, seed)
    logits *= scale
    targets = (rows * np.eye(classes)[truth] + 1) / (rows + classes)

    def loss(log_temperature: float) -> float:
        return float(-(targets * log_softmax(logits / np.exp(log_temperature), axis=1)).sum(axis=1).mean())

    best = minimize_scalar(loss, bounds=(np.log(0.01), np.log(100)), method="bounded", options={"xatol": 1e-9})
    found = fit_temperature(logits, truth)
    gain = rows * (loss(0.0) - best.fun)
    assert found == 1.0 if gain < 1 - 1e-6 else loss(np.log(found)) <= best.fun + 1e-9
    assert gain < 1 + 1e-6 or found != 1.0


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
@pytest.mark.parametrize("classes", [2, 5])
def test_the_temperature_that_labels_were_drawn_with_is_found(temperature: float, classes: int) -> None:
    logits, truth = drawn(20_000, classes, temperature, 1)
    assert fit_temperature(logits, truth) == pytest.approx(temperature, rel=0.05)


def test_few_rows_that_are_all_right_make_no_probability_certain() -> None:
    logits = np.array([[0.4, 0.0], [0.0, 0.5]] * 10)
    found = fit_temperature(logits, np.array([0, 1] * 10))
    # Of 22 rows, 20 of them ours, 21 are right: so sure may a model be on average.
    assert softmax(logits / found, axis=1).max(axis=1).mean() == pytest.approx(21 / 22, abs=0.005)


@given(rows=st.integers(1, 80), classes=st.integers(2, 4), seed=st.integers(0, 999))
def test_the_calibration_error_is_that_of_its_definition(rows: int, classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    # Few distinct values, so that some lie on the edge of a bin.
    probabilities = rng.multinomial(30, np.ones(classes) / classes, size=rows) / 30
    truth = rng.integers(0, classes, rows)
    expected = 0.0
    for place in range(15):
        inside = [row for row in range(rows) if place / 15 < probabilities[row].max() <= (place + 1) / 15 + 1e-15]
        if inside:
            sure = np.mean([probabilities[row].max() for row in inside])
            right = np.mean([probabilities[row].argmax() == truth[row] for row in inside])
            expected += len(inside) / rows * abs(sure - right)
    assert expected_calibration_error(probabilities, truth) == pytest.approx(expected, abs=1e-9)


def test_a_probability_below_the_first_bin_s_end_lies_in_the_first_bin() -> None:
    """Of twenty labels the most probable may have less than a fifteenth."""
    probabilities = np.full((4, 20), 0.05)
    assert expected_calibration_error(probabilities, [0, 1, 2, 0]) == pytest.approx(0.45)
    both = np.vstack([probabilities, np.r_[0.1, np.full(19, 0.9 / 19)][None]])
    assert expected_calibration_error(both, [0, 1, 2, 0, 0]) == pytest.approx((4 * 0.45 + 0.9) / 5)
