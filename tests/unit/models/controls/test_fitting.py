from __future__ import annotations

import time

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.svm import LinearSVC

from recurra.core.errors import DataError
from recurra.core.record import are_unequal
from recurra.models.controls.fitting import (
    Candidate,
    Problem,
    choose,
    cross_entropy,
    fit_linear,
    fit_tuned,
    out_of_fold_probabilities,
)
from recurra.models.controls.linear import label_scores


def _problem(features: np.ndarray, targets: np.ndarray, labels: int, *, independent: bool = False) -> Problem:
    return Problem(features, targets, labels, independent, 0)


def _clouds(rows: int, shares: list[float], seed: int = 0, width: int = 6) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.choice(len(shares), rows, p=shares)
    centres = np.random.default_rng(99).normal(size=(len(shares), width))
    return centres[labels] + rng.normal(scale=1.5, size=(rows, width)), labels


@pytest.mark.parametrize("shares", [[0.5, 0.5], [0.4, 0.3, 0.3]])
def test_the_factor_changes_no_decision_and_makes_probabilities_fit(shares: list[float]) -> None:
    features, labels = _clouds(400, shares)
    fresh, truth = _clouds(2000, shares, seed=1)
    problem = _problem(features, labels, len(shares))
    choice = choose(problem, [Candidate("hinge", 1.0)])
    weight, bias = problem.fit(choice.candidate)
    peer = LinearSVC(C=1.0, random_state=0).fit(features, labels)
    logits = choice.factor * label_scores(fresh @ weight.T + bias, independent=False)
    assert (logits.argmax(axis=1) == peer.predict(fresh)).mean() > 0.995
    own = cross_entropy(logits, truth, independent=False)
    assert all(own <= cross_entropy(logits * by, truth, independent=False) + 0.01 for by in (0.25, 0.5, 2.0, 4.0))


def test_the_best_by_the_measure_is_chosen_and_unequal_classes_are_judged_by_macro_f1() -> None:
    unequal = choose(_problem(*_clouds(600, [0.93, 0.07]), 2), [Candidate("logistic", 1e-4)])
    assert unequal.measure == "macro F1" and unequal.candidate.balanced
    features, labels = _clouds(900, [0.5, 0.25, 0.25], width=2)
    problem, candidates = _problem(features, labels, 3), [Candidate("logistic", c) for c in (1e-6, 1.0)]
    choice = choose(problem, candidates)
    assert choice.measure == "accuracy" and choice.candidate.c == 1.0
    accuracy = (problem.left_out(choice.candidate).argmax(axis=1) == labels).mean()
    assert choice.score == pytest.approx(accuracy, abs=0.01) and 0.4 < accuracy < 0.95
    assert are_unequal([30, 10, 20]) and not are_unequal([29, 10, 20]) and not are_unequal([10, 0])


def test_equal_texts_are_left_out_together() -> None:
    """Of labels by chance nothing can be known, but from the same text in another fold; and nothing is claimed."""
    texts = [f"word{number} word{number}x" for number in range(150)] * 2
    labels = np.random.default_rng(0).integers(0, 2, 150).tolist() * 2
    probabilities, _ = out_of_fold_probabilities(texts, labels, num_labels=2)
    assert (probabilities.argmax(axis=1) == labels).mean() < 0.65 and abs(probabilities - 0.5).mean() < 0.1
    assert (fit_tuned(texts, np.array(labels)).logits(texts).argmax(axis=1) == labels).mean() > 0.95


def test_independent_labels_and_labels_that_a_fold_lacks() -> None:
    features, first = _clouds(120, [0.5, 0.5])
    problem = _problem(features, np.stack([first, 1 - first, np.zeros_like(first)], axis=1), 3, independent=True)
    assert choose(problem, [Candidate("logistic", 1.0)]).measure == "log-likelihood"
    weight, bias = problem.fit(Candidate("logistic", 1.0))
    assert weight.shape == (3, features.shape[1]) and not weight[2].any() and bias[2] == -25
    rare = _problem(features, np.where(np.arange(120) == 5, 2, first), 4)
    assert np.isfinite(rare.left_out(Candidate("hinge", 1.0))).all()
    weight, bias = rare.fit(Candidate("hinge", 1.0))
    assert not weight[3].any() and bias[3] == -25
    two = _problem(features[:2], np.array([0, 1]), 2).fit(Candidate("hinge", 1.0))
    assert np.isfinite(two[0]).all()
    with pytest.raises(DataError, match="1 training rows"):
        choose(_problem(features[:1], first[:1], 2), [Candidate("hinge", 1.0)])


@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("labels", [2, 3])
def test_answers_are_learned_by_the_cross_entropy_with_them(labels: int, independent: bool) -> None:
    rng = np.random.default_rng(4)
    features = rng.normal(size=(150, 4))
    logits = features @ rng.normal(size=(4, labels)) + rng.normal(size=(150, labels))
    answers = expit(logits) if independent else softmax(logits, axis=1)
    problem = _problem(features, answers, labels, independent=independent)
    assert choose(problem, [Candidate("logistic", 0.7)]).factor == 1
    weight, bias = problem.fit(Candidate("logistic", 0.7))

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
    np.testing.assert_allclose(weight, wanted[:, :4], atol=2e-3)
    if one or independent:
        np.testing.assert_allclose(bias, wanted[:, 4], atol=2e-3)


def test_the_c_of_the_lowest_loss_on_the_selection_split_is_chosen_and_the_seed_is_that_of_the_folds() -> None:
    texts = ["good film", "bad film", "good plot", "bad plot", "dull", "fun"] * 10
    labels = np.array([1, 0, 1, 0, 0, 1] * 10)
    noise = np.where(np.random.default_rng(0).random(60) < 0.3, 1 - labels, labels)
    assert fit_linear(texts, labels, selection=(texts, 1 - labels)).inverse_regularisation == 1
    assert fit_linear(texts, labels, selection=(texts, labels)).inverse_regularisation == 30
    first, second, again = (fit_tuned(texts, noise, seed=seed).logits(texts) for seed in (0, 1, 0))
    assert np.array_equal(first, again) and not np.array_equal(first, second)


@pytest.mark.slow
def test_hundreds_of_labels_of_three_rows_are_fitted_in_seconds() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(300), 3)
    texts = [" ".join([*(f"w{word}" for word in rng.integers(0, 500, 40)), f"own{label}"]) for label in labels]
    for fit in (fit_tuned, fit_linear):
        start = time.process_time()
        model = fit(texts, labels, num_labels=300)
        assert time.process_time() - start < 20
        assert (model.logits(texts).argmax(axis=1) == labels).mean() > 0.9
