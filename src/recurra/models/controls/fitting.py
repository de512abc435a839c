"""Fitting the weights of a linear control: logistic regression or a linear SVM, chosen by cross-validation if asked."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.sparse import csr_matrix
from scipy.special import log_expit, log_softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.svm import LinearSVC
from threadpoolctl import threadpool_limits

from recurra.core.errors import DataError
from recurra.core.label_record import are_unequal
from recurra.models.controls.weights import Floats, Labels, SparseRows, cross_entropy, label_scores

# With the default tolerance of 1e-4 the solver stops while accuracies still move by half a point.
_SOLVER_TOLERANCE = 1e-6
# Enough to choose between fits, in a fifth of the time.
_ROUGH_TOLERANCE = 1e-3
_MAX_ITERATIONS = 5_000
# A class that training never showed: its probability is this, not 0, so that a loss on it stays finite.
UNSEEN_LOG_PROBABILITY = -25.0
FOLDS = 5
# A label that a teacher gives less is not learned from: it would cost a row and move nothing.
_LEAST_ANSWER = 1e-3
# Beyond, the best C hardly moves, and every fold would cost minutes.
MOST_ROWS = 3_000


def matrix_of(rows: SparseRows) -> csr_matrix:
    """Features as solvers take them, ``(texts, features)``."""
    return csr_matrix((rows.values, rows.columns, rows.offsets), shape=(len(rows.offsets) - 1, rows.width))


@dataclass(frozen=True)
class Fit:
    """One way of fitting.

    Attributes:
        loss: ``logistic`` (regression) or ``hinge`` (squared, one class against the others: a linear SVM).
        c: Inverse regularisation.
        balanced: Whether classes weigh the same, however many rows they have.
    """

    loss: Literal["logistic", "hinge"]
    c: float
    balanced: bool = False

    def __str__(self) -> str:
        name = "logistic regression" if self.loss == "logistic" else "linear SVM"
        return f"{name}, C = {self.c:g}{', balanced' if self.balanced else ''}"

    def weights(
        self,
        features: Any,
        truth: Labels,
        *,
        num_labels: int,
        seed: int,
        rough: bool = False,
        counts: Floats | None = None,
    ) -> tuple[Floats, Floats]:
        """Fits.

        Args:
            features: Sparse or dense, ``(rows, features)``.
            truth: Labels ``(rows,)``, or 0 and 1 a label, ``(rows, labels)``.
            num_labels: Number of labels, among them those that no row has.
            seed: Of the solver's order of rows, where it has one.
            rough: Whether the solver may stop early.
            counts: How often each row counts, ``(rows,)``, with one label a row; none counts all once.

        Returns:
            Weight and bias as `recurra.models.controls.weights.LinearModel` takes them.
        """
        if truth.ndim == 2:
            parts = [self._one_label(features, column, seed, rough=rough) for column in truth.T]
            return np.stack([part[0] for part in parts]), np.array([part[1] for part in parts])
        seen = np.unique(truth)
        if len(seen) == 1:
            weight, bias = np.zeros((num_labels, features.shape[1])), np.full(num_labels, UNSEEN_LOG_PROBABILITY)
            bias[seen] = 0.0
            return (weight[1:] - weight[:1], bias[1:] - bias[:1]) if num_labels == 2 else (weight, bias)
        found = self._estimator(features, truth, seed, rough=rough, counts=counts)
        return _spread_over_labels(found.coef_, found.intercept_, seen, num_labels)

    def _one_label(self, features: Any, truth: Labels, seed: int, *, rough: bool) -> tuple[Floats, float]:
        """Weights and bias of one label; one that all training rows have, or none, has a bias alone."""
        if truth.min() == truth.max():
            return np.zeros(features.shape[1]), UNSEEN_LOG_PROBABILITY * (1 if truth[0] == 0 else -1)
        found = self._estimator(features, truth, seed, rough=rough)
        return found.coef_[0], float(found.intercept_[0])

    def _estimator(self, features: Any, truth: Labels, seed: int, *, rough: bool, counts: Floats | None = None) -> Any:
        tolerance = _ROUGH_TOLERANCE if rough else _SOLVER_TOLERANCE
        weights = "balanced" if self.balanced else None
        # The products are sparse and on one thread anyhow; others would spin, and change the order of sums.
        with threadpool_limits(1, user_api="blas"), warnings.catch_warnings():
            if self.loss == "logistic":
                estimator: Any = LogisticRegression(
                    C=self.c, tol=tolerance, max_iter=_MAX_ITERATIONS, random_state=seed, class_weight=weights
                )
            else:
                # A fit that has not settled is still judged on rows that it did not see.
                warnings.simplefilter("ignore", ConvergenceWarning)
                estimator = LinearSVC(C=self.c, random_state=seed, class_weight=weights)
            return estimator.fit(features, truth, sample_weight=counts)


def with_class_weights(fits: Sequence[Fit], truth: Labels) -> list[Fit]:
    """The same fits, and for unequal classes each once more with class weights."""
    unequal = truth.ndim == 1 and are_unequal(np.bincount(truth).tolist())
    return [*fits, *(replace(fit, balanced=True) for fit in fits if unequal)]


@dataclass(frozen=True)
class CrossValidated:
    """The best of several fits, refitted on all rows.

    Attributes:
        weight: As `recurra.models.controls.weights.LinearModel` takes it; scores are scaled so that probabilities fit.
        bias: Likewise.
        fit: Which one.
        score: Its cross-validated figure.
        measure: What the figure is: ``accuracy``, ``macro F1`` or ``log-likelihood``.
    """

    weight: Floats
    bias: Floats
    fit: Fit
    score: float
    measure: str

    def __str__(self) -> str:
        return f"{self.fit}, by {FOLDS}-fold cross-validation ({self.measure} {self.score:.3f})"


def cross_validate(
    features: Any, truth: Labels, fits: Sequence[Fit], *, num_labels: int, seed: int = 0
) -> CrossValidated:
    """Chooses the fit with the best figure on rows that it did not see, and refits it on all rows.

    The figure is accuracy, for unequal classes macro F1, and for independent labels the log-likelihood; of equals the
    likelier fit wins. At most `MOST_ROWS` rows are used for the choice. One factor for all scores makes probabilities
    fit the rows that were left out (temperature scaling: Guo et al. 2017, "On Calibration of Modern Neural Networks");
    it changes no decision.

    Args:
        features: ``(rows, features)``, sparse or dense.
        truth: As `Fit.weights` takes it.
        fits: What to choose from.
        num_labels: Number of labels.
        seed: Of the folds and the solver.

    Raises:
        DataError: If there are fewer than two rows.
    """
    chosen, factor, score, measure = _choose(features, truth, fits, num_labels=num_labels, seed=seed)
    weight, bias = chosen.weights(features, truth, num_labels=num_labels, seed=seed)
    return CrossValidated(weight * factor, bias * factor, chosen, score, measure)


def out_of_fold(
    features: Any, truth: Labels, fits: Sequence[Fit], *, num_labels: int, seed: int = 0
) -> tuple[Floats, Fit]:
    """Logits of every row from a fit that did not see it, calibrated as those of `cross_validate` are.

    Args:
        features: As `cross_validate` takes them.
        truth: Likewise.
        fits: Likewise; the best of them is used.
        num_labels: Number of labels.
        seed: Of the folds and the solver.

    Returns:
        Logits ``(rows, labels)``, and the fit that gave them.

    Raises:
        DataError: If there are fewer than two rows.
    """
    chosen, _, _, _ = _choose(features, truth, fits, num_labels=num_labels, seed=seed)
    order = np.random.default_rng(seed).permutation(len(truth))
    logits = np.zeros((len(truth), num_labels))
    logits[order] = _left_out(features[order], truth[order], chosen, num_labels=num_labels, seed=seed)
    return calibrated(logits, truth), chosen


def calibrated(logits: Floats, truth: Labels) -> Floats:
    """Logits of rows that no fit saw, times the factor with which their probabilities fit the labels best."""
    factor, _ = _calibration(logits, truth)
    return logits * factor


def fit_answers(
    features: Any, answers: Floats, fits: Sequence[Fit], *, independent: bool = False, seed: int = 0
) -> CrossValidated:
    """Chooses the fit that foretells a teacher's answers best on rows that it did not see, and refits it on all rows.

    A row counts once for each label, as much as the teacher gives it: the loss is the cross-entropy with the teacher's
    probabilities (Hinton, Vinyals and Dean 2015, "Distilling the Knowledge in a Neural Network", with temperature 1).
    Labels that it gives less than `_LEAST_ANSWER` are left out. At most `MOST_ROWS` rows are used for the choice.

    Args:
        features: ``(rows, features)``, sparse or dense.
        answers: Probabilities, ``(rows, labels)``.
        fits: What to choose from, logistic regressions.
        independent: Whether each label is answered for itself.
        seed: Of the folds and the solver.

    Raises:
        DataError: If there are fewer than two rows.
    """
    if len(answers) < 2:
        raise DataError(f"{len(answers)} texts are too few to learn answers from; give at least two")
    rows = np.random.default_rng(seed).permutation(len(answers))[:MOST_ROWS]
    part, sample = features[rows], answers[rows]
    fold = _folds((sample >= 0.5).astype(np.int64) if independent else sample.argmax(axis=1))
    best: tuple[float, Fit] | None = None
    for fit in fits:
        scores = np.zeros((len(sample), 1 if sample.shape[1] == 2 and not independent else sample.shape[1]))
        for left_out in np.unique(fold):
            inside = fold != left_out
            weight, bias = _learn(part[inside], sample[inside], fit, independent=independent, seed=seed, rough=True)
            scores[~inside] = part[~inside] @ weight.T + bias
        loss = _distance(label_scores(scores, independent=independent), sample, independent=independent)
        if best is None or loss < best[0]:
            best = loss, fit
    if best is None:
        raise ValueError("no fit to choose from")
    loss, chosen = best
    weight, bias = _learn(features, answers, chosen, independent=independent, seed=seed)
    return CrossValidated(weight, bias, chosen, -loss, "log-likelihood")


def _learn(
    features: Any, answers: Floats, fit: Fit, *, independent: bool, seed: int, rough: bool = False
) -> tuple[Floats, Floats]:
    """Weight and bias of a fit on rows that count as much for each label as the answers say."""
    if independent:
        both = (np.stack([1 - column, column], axis=1) for column in answers.T)
        parts = [_learn(features, each, fit, independent=False, seed=seed, rough=rough) for each in both]
        return np.concatenate([weight for weight, _ in parts]), np.concatenate([bias for _, bias in parts])
    rows, labels = np.nonzero(answers >= _LEAST_ANSWER)
    counts = answers[rows, labels]
    return fit.weights(features[rows], labels, num_labels=answers.shape[1], seed=seed, rough=rough, counts=counts)


def _distance(logits: Floats, answers: Floats, *, independent: bool) -> float:
    """Cross-entropy with answers, nats a row; of independent labels a row and label."""
    if independent:
        return float(-(answers * log_expit(logits) + (1 - answers) * log_expit(-logits)).mean())
    return float(-(answers * log_softmax(logits, axis=1)).sum(axis=1).mean())


def _choose(
    features: Any, truth: Labels, fits: Sequence[Fit], *, num_labels: int, seed: int
) -> tuple[Fit, float, float, str]:
    """The best fit, the factor of its scores, its figure, and what the figure is."""
    if len(truth) < 2:
        raise DataError(f"{len(truth)} training rows cannot be cross-validated; give at least two")
    rows = np.random.default_rng(seed).permutation(len(truth))[:MOST_ROWS]
    part, sample = features[rows], truth[rows]
    measure, judge = _measure(sample)
    best: tuple[tuple[float, float], Fit, float] | None = None
    for fit in fits:
        logits = _left_out(part, sample, fit, num_labels=num_labels, seed=seed, rough=True)
        factor, loss = _calibration(logits, sample)
        rank = (judge(logits, loss), -loss)
        if best is None or rank > best[0]:
            best = rank, fit, factor
    if best is None:
        raise ValueError("no fit to choose from")
    (score, _), chosen, factor = best
    return chosen, factor, score, measure


def _left_out(features: Any, truth: Labels, fit: Fit, *, num_labels: int, seed: int, rough: bool = False) -> Floats:
    """Logits of every row, ``(rows, labels)``, from the fit on the other folds."""
    fold = _folds(truth)
    scores = np.zeros((len(truth), 1 if num_labels == 2 and truth.ndim == 1 else num_labels))
    for left_out in np.unique(fold):
        inside = fold != left_out
        weight, bias = fit.weights(features[inside], truth[inside], num_labels=num_labels, seed=seed, rough=rough)
        scores[~inside] = features[~inside] @ weight.T + bias
    return label_scores(scores, independent=truth.ndim == 2)


def _folds(truth: Labels) -> Labels:
    """The fold of each row: rows of a label, or of a set of labels, go round the folds."""
    kinds = truth if truth.ndim == 1 else np.unique(truth, axis=0, return_inverse=True)[1].reshape(-1)
    fold = np.empty(len(truth), dtype=np.int64)
    fold[np.argsort(kinds, kind="stable")] = np.arange(len(truth)) % min(FOLDS, len(truth))
    return fold


def _measure(truth: Labels) -> tuple[str, Any]:
    if truth.ndim == 2:
        return "log-likelihood", lambda _logits, loss: -loss
    if are_unequal(np.bincount(truth).tolist()):
        labels = np.unique(truth)
        return "macro F1", lambda logits, _loss: float(
            f1_score(truth, logits.argmax(axis=1), labels=labels, average="macro", zero_division=0.0)
        )
    return "accuracy", lambda logits, _loss: float((logits.argmax(axis=1) == truth).mean())


def _calibration(logits: Floats, truth: Labels) -> tuple[float, float]:
    """The factor of the logits with the lowest loss, and that loss."""
    found = minimize_scalar(
        lambda log: cross_entropy(logits * np.exp(log), truth), bounds=(-5.0, 5.0), method="bounded"
    )
    return float(np.exp(found.x)), float(found.fun)


def _spread_over_labels(weight: Floats, bias: Floats, seen: Labels, num_labels: int) -> tuple[Floats, Floats]:
    """Weights with a row for every label, also for labels that training never showed."""
    if len(seen) == num_labels:
        return weight, bias
    if len(seen) == 2:
        weight, bias = np.concatenate([-weight / 2, weight / 2]), np.concatenate([-bias / 2, bias / 2])
    full_weight = np.zeros((num_labels, weight.shape[1]))
    full_bias = np.full(num_labels, UNSEEN_LOG_PROBABILITY)
    full_weight[seen], full_bias[seen] = weight, bias
    return full_weight, full_bias
