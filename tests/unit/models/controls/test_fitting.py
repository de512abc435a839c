from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.sparse import hstack
from scipy.sparse import random as random_rows
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.preprocessing import normalize
from sklearn.svm import LinearSVC

from recurra.core.errors import DataError
from recurra.core.label_record import are_unequal
from recurra.models.controls.fitting import Fit, cross_validate, fit_answers, matrix_of, out_of_fold
from recurra.models.controls.weights import SparseRows, cross_entropy, label_scores


def _clouds(rows: int, shares: list[float], seed: int = 0, width: int = 6) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.choice(len(shares), rows, p=shares)
    centres = np.random.default_rng(99).normal(size=(len(shares), width))
    return centres[labels] + rng.normal(scale=1.5, size=(rows, width)), labels


@pytest.mark.parametrize("shares", [[0.5, 0.5], [0.4, 0.3, 0.3]])
def test_the_scale_changes_no_decision_and_makes_probabilities_fit(shares: list[float]) -> None:
    features, labels = _clouds(400, shares)
    fresh, truth = _clouds(2000, shares, seed=1)
    found = cross_validate(features, labels, [Fit("hinge", 1.0)], num_labels=len(shares))
    peer = LinearSVC(C=1.0, random_state=0).fit(features, labels)
    logits = label_scores(fresh @ found.weight.T + found.bias, independent=False)
    assert (logits.argmax(axis=1) == peer.predict(fresh)).mean() > 0.995
    own = cross_entropy(logits, truth)
    assert all(own <= cross_entropy(logits * factor, truth) + 0.01 for factor in (0.25, 0.5, 2.0, 4.0))


def test_the_best_by_the_measure_is_chosen_and_unequal_classes_are_judged_by_macro_f1() -> None:
    features, labels = _clouds(600, [0.93, 0.07])
    fits = [Fit("logistic", 1e-4), Fit("logistic", 1e-4, balanced=True)]
    found = cross_validate(features, labels, fits, num_labels=2)
    assert found.measure == "macro F1"
    assert found.fit.balanced
    even, halves = _clouds(600, [0.5, 0.5])
    assert cross_validate(even, halves, fits, num_labels=2).measure == "accuracy"
    assert are_unequal([30, 10, 20]) and not are_unequal([29, 10, 20])
    assert not are_unequal([10, 0])


def test_the_figure_is_the_accuracy_on_rows_that_were_left_out() -> None:
    features, labels = _clouds(900, [0.5, 0.25, 0.25], width=2)
    fit = Fit("logistic", 1.0)
    logits, _ = out_of_fold(features, labels, [fit], num_labels=3)
    accuracy = (logits.argmax(axis=1) == labels).mean()
    assert 0.4 < accuracy < 0.95
    assert cross_validate(features, labels, [fit], num_labels=3).score == pytest.approx(accuracy, abs=0.01)


def test_independent_labels_and_labels_that_a_fold_lacks() -> None:
    features, first = _clouds(120, [0.5, 0.5])
    truth = np.stack([first, 1 - first, np.zeros_like(first)], axis=1)
    found = cross_validate(features, truth, [Fit("logistic", 1.0)], num_labels=3)
    assert found.measure == "log-likelihood" and found.weight.shape == (3, features.shape[1])
    assert not found.weight[2].any() and found.bias[2] < 0
    rare = np.where(np.arange(120) == 5, 2, first)
    weight = cross_validate(features, rare, [Fit("hinge", 1.0)], num_labels=4).weight
    assert weight.shape == (4, features.shape[1]) and not weight[3].any()
    two = cross_validate(features[:2], np.array([0, 1]), [Fit("hinge", 1.0)], num_labels=2)
    assert np.isfinite(two.weight).all()


@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("labels", [2, 3])
def test_answers_are_learned_by_the_cross_entropy_with_them(labels: int, independent: bool) -> None:
    rng = np.random.default_rng(4)
    features = rng.normal(size=(150, 4))
    logits = features @ rng.normal(size=(4, labels)) + rng.normal(size=(150, labels))
    answers = expit(logits) if independent else softmax(logits, axis=1)
    found = fit_answers(features, answers, [Fit("logistic", 0.7)], independent=independent)

    # The same loss, written out and minimised by SciPy: C times the cross-entropies, and the penalty of the weights.
    one = labels == 2 and not independent
    width = 1 if one else labels

    def scores(weights: np.ndarray) -> np.ndarray:
        table = weights.reshape(width, 5)
        return features @ table[:, :4].T + table[:, 4]

    def loss(weights: np.ndarray) -> float:
        each = scores(weights)
        if one:
            each = np.concatenate([np.zeros_like(each), each], axis=1)
        if independent:
            apart = -(answers * log_expit(each) + (1 - answers) * log_expit(-each)).sum()
        else:
            apart = -(answers * log_softmax(each, axis=1)).sum()
        return 0.7 * float(apart) + 0.5 * float((weights.reshape(width, 5)[:, :4] ** 2).sum())

    wanted = minimize(loss, np.zeros(width * 5), method="BFGS", options={"gtol": 1e-6}).x.reshape(width, 5)
    np.testing.assert_allclose(found.weight, wanted[:, :4], atol=2e-3)
    if one or independent:
        np.testing.assert_allclose(found.bias, wanted[:, 4], atol=2e-3)


def test_sure_answers_are_labels_and_the_fit_that_foretells_them_is_taken() -> None:
    features, labels = _clouds(600, [0.4, 0.3, 0.3])
    answers = np.eye(3)[labels]
    fits = [Fit("logistic", c) for c in (1e-6, 1.0)]
    found = fit_answers(features, answers, fits)
    assert found.fit.c == 1.0
    weight, bias = Fit("logistic", 1.0).weights(features, labels, num_labels=3, seed=0)
    np.testing.assert_allclose(found.weight, weight, atol=1e-4)
    np.testing.assert_allclose(found.bias, bias, atol=1e-4)
    with pytest.raises(DataError, match="1 texts are too few"):
        fit_answers(features[:1], answers[:1], fits)


def test_refuses_a_single_row() -> None:
    with pytest.raises(DataError, match="1 training rows"):
        cross_validate(np.zeros((1, 2)), np.zeros(1, dtype=int), [Fit("hinge", 1.0)], num_labels=2)


@pytest.mark.parametrize("labels", [1, 5])
def test_sparse_rows_are_scipys(labels: int) -> None:
    parts = [random_rows(40, width, density=0.1, random_state=width, format="csr") for width in (30, 7)]
    whole = hstack(parts, format="csr")
    weight = np.random.default_rng(0).normal(size=(labels, 37)).astype(np.float32)
    found = SparseRows.joined([SparseRows(part.data, part.indices, part.indptr, part.shape[1]) for part in parts])
    assert (matrix_of(found) != whole).nnz == 0
    assert np.array_equal(found.scores(weight), whole @ weight.astype(np.float64).T)
    assert np.array_equal(matrix_of(found.of_length_one()).toarray(), normalize(whole).toarray())


def test_cross_entropy_is_scipys() -> None:
    rng = np.random.default_rng(1)
    logits, truth = 30 * rng.normal(size=(50, 4)), rng.integers(0, 2, (50, 4))
    assert cross_entropy(logits, truth) == pytest.approx(-log_expit(np.where(truth == 1, logits, -logits)).mean())
    first = truth.argmax(axis=1)
    assert cross_entropy(logits, first) == pytest.approx(-log_softmax(logits, axis=1)[np.arange(50), first].mean())
    assert np.isfinite(cross_entropy(1e6 * logits, truth)) and np.isfinite(cross_entropy(1e6 * logits, first))
