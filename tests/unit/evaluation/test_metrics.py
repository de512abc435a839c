from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from recurra.core.errors import DataError, RunError
from recurra.evaluation.metrics import evaluate_logits


@given(classes=st.integers(2, 5), rows=st.integers(1, 60), seed=st.integers(0, 2**32 - 1), scale=st.floats(0.01, 50))
@settings(max_examples=150, deadline=None)
def test_agrees_with_scikit_learn(classes: int, rows: int, seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(rows, classes)) * scale).astype(np.float32)
    # Few distinct labels at times, so that absent classes are met too.
    labels = rng.integers(0, rng.integers(1, classes + 1), size=rows)
    predicted = logits.argmax(axis=1)
    average = {"average": "binary"} if classes == 2 else {"average": "macro"}
    precision, recall, f1, _ = reference.precision_recall_fscore_support(labels, predicted, zero_division=0, **average)
    exact = logits.astype(np.float64)
    probabilities = np.exp(exact - exact.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True)

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


def test_loss_of_logits_that_overflow_single_precision_is_exact() -> None:
    got = evaluate_logits(np.array([[0.0, 1000.0], [1000.0, 0.0]], dtype=np.float32), [0, 0])
    assert got.loss == pytest.approx(500.0)


def test_the_positive_class_is_label_1() -> None:
    got = evaluate_logits([[1, 0], [1, 0], [0, 1], [1, 0]], [0, 0, 1, 1])
    assert (got.precision, got.recall) == (1.0, 0.5)


@pytest.mark.parametrize(
    ("logits", "labels", "error", "words"),
    [
        ([[0.0, 1.0]], [2], DataError, "label 2"),
        ([[0.0, 1.0]], [-1], DataError, "label -1"),
        (np.zeros((0, 2)), np.zeros(0, dtype=int), DataError, "0 rows"),
        ([[0.0, math.nan], [0.0, 1.0]], [0, 1], RunError, "1 of 2 rows"),
    ],
)
def test_refuses_what_it_cannot_judge(logits: object, labels: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        evaluate_logits(logits, labels)
    assert "\n" not in str(caught.value)
