"""Fits the linear controls with scikit-learn: the one of the papers, an expert's, and an expert's beside an encoder.

A Transformer that does not beat them has learned nothing that needs a Transformer; if they win, the split or the task
is to blame. They are run and recorded like any other model.

Targets are labels ``(texts,)`` from 0; or 0 and 1 a label, ``(texts, labels)``; or, as floats, a teacher's probability
of each label, ``(texts, labels)``. A text then counts once for each label, weighted by that probability, so that the
loss is the cross-entropy with the teacher's probabilities (Hinton, Vinyals and Dean 2015, "Distilling the Knowledge in
a Neural Network", with temperature 1).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar
from scipy.sparse import csr_matrix, hstack, issparse
from scipy.special import log_expit, log_softmax, softmax
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.naive_bayes import ComplementNB
from sklearn.svm import LinearSVC
from threadpoolctl import threadpool_limits
from tokenizers import Tokenizer

from recurra.core.errors import DataError
from recurra.core.record import are_unequal
from recurra.models.controls.linear import Floats, LinearModel, Vectorizer, features_of, fit_vectorizers, label_scores

Labels = npt.NDArray[np.int64]

DEFAULT_C = 10.0
C_GRID = (1.0, 3.0, 10.0, 30.0)
_LOGISTIC_C = (3.0, 10.0, 30.0)
_HINGE_C = (0.1, 0.3, 1.0)
_STATIC_C = (0.003, 0.01, 0.03, 0.1, 0.3)
# Values of C for states, each with a standard deviation of 1.
_STATES_C = (0.0003, 0.001, 0.003, 0.01, 0.03)
# Values of C for one SVM on both, where each kind of n-grams has length 1 and states have length 1 on average.
_JOINED_C = (0.03, 0.1, 0.3, 1.0)
# With more rows, states as a sparse matrix would take hundreds of MB, and the SVM minutes.
_MOST_ROWS_TOGETHER = 20_000
# With the default tolerance of 1e-4 the solver stops while accuracies still move by half a point. The rough tolerance
# is enough to choose between candidates, and takes a fifth of the time.
_TOLERANCE, _ROUGH_TOLERANCE = 1e-6, 1e-3
# Log-probability of a class that is not in training; it is finite, so that a loss on the class stays finite.
UNSEEN_LOG_PROBABILITY = -25.0
FOLDS = 5
# Labels with a lower probability from the teacher are left out: they would cost a row each and change nothing.
_LEAST_ANSWER = 1e-3
# With more rows the best C hardly changes, and every fold would take minutes.
MOST_ROWS = 3_000
# With more than `FEW_LABELS` labels, fits may go through so many features times labels: about 20 s on one core.
FEW_LABELS, MOST_WORK = 100, 300_000_000


@dataclass(frozen=True)
class Candidate:
    """One way to fit: logistic regression or linear SVM; for many labels naive Bayes, or ridge on dense features."""

    loss: Literal["logistic", "hinge", "bayes", "ridge"]
    c: float
    balanced: bool = False

    def __str__(self) -> str:
        if self.loss == "bayes":
            return "complement naive Bayes"
        name = {"logistic": "logistic regression", "hinge": "linear SVM", "ridge": "ridge regression"}[self.loss]
        return f"{name}, C = {self.c:g}{', balanced' if self.balanced else ''}"

    def estimator(self, seed: int, *, rough: bool) -> Any:
        """The scikit-learn estimator."""
        weights = "balanced" if self.balanced else None
        match self.loss:
            case "logistic":
                tolerance = _ROUGH_TOLERANCE if rough else _TOLERANCE
                return LogisticRegression(C=self.c, tol=tolerance, max_iter=5_000, class_weight=weights)
            case "hinge":
                return LinearSVC(C=self.c, random_state=seed, class_weight=weights)
            case "bayes":
                return ComplementNB()
            case _:
                return RidgeClassifier(alpha=1 / self.c, class_weight=weights)


@dataclass(frozen=True)
class Problem:
    """Features, ``(texts, features)``, sparse or dense, targets, and the weight of each text in a fit.

    Attributes:
        first: See `first_rows`; equal texts are left out together. With None all texts count as different.
    """

    features: Any
    targets: npt.NDArray[Any]
    num_labels: int
    independent: bool
    seed: int
    weights: npt.NDArray[np.float32] | None = None
    first: npt.NDArray[np.int64] | None = None

    def part(self, rows: npt.NDArray[Any]) -> Problem:
        """The problem with some of the texts."""
        weights, first = (None if values is None else values[rows] for values in (self.weights, self.first))
        return replace(self, features=self.features[rows], targets=self.targets[rows], weights=weights, first=first)

    def fit(self, candidate: Candidate, *, rough: bool = False) -> tuple[Floats, Floats]:
        """Weight and bias as `LinearModel` takes them."""
        if self.independent:
            pairs = (np.stack([1 - column, column], axis=1).astype(np.float64) for column in self.targets.T)
            binary = replace(self, num_labels=2, independent=False)
            parts = [replace(binary, targets=pair).fit(candidate, rough=rough) for pair in pairs]
            return np.concatenate([weight for weight, _ in parts]), np.concatenate([bias for _, bias in parts])
        features, labels, counts = self.features, self.targets, self.weights
        if labels.ndim == 2:
            # With many labels the limit is higher, so that no row counts hundreds of times.
            rows, labels = np.nonzero(self.targets >= max(_LEAST_ANSWER, 1e-5 * self.num_labels))
            features, counts = features[rows], self.targets[rows, labels]
        seen = np.unique(labels)
        weight = np.zeros((self.num_labels, features.shape[1]))
        bias = np.full(self.num_labels, UNSEEN_LOG_PROBABILITY)
        bias[seen] = 0.0
        if len(seen) > 1:
            # One thread, because others would only spin beside the sparse product and change the order of sums. No
            # warnings, because an unconverged fit is judged on unseen rows and labels of few rows are no numbers.
            with threadpool_limits(1, user_api="blas"), warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                fitted = candidate.estimator(self.seed, rough=rough).fit(features, labels, sample_weight=counts)
            if candidate.loss == "bayes":
                # In place, because with thousands of labels each copy takes hundreds of megabytes.
                log_weights = fitted.feature_log_prob_
                log_weights -= log_weights.mean(axis=0)
                weight[seen] = log_weights
            elif len(seen) == 2:
                weight[seen] = np.concatenate([-fitted.coef_ / 2, fitted.coef_ / 2])
                bias[seen] = np.concatenate([-fitted.intercept_ / 2, fitted.intercept_ / 2])
            else:
                weight[seen], bias[seen] = fitted.coef_, fitted.intercept_
        return (weight[1:] - weight[:1], bias[1:] - bias[:1]) if self.num_labels == 2 else (weight, bias)

    def left_out(self, candidate: Candidate, *, rough: bool = False) -> Floats:
        """Logits of every row, ``(rows, labels)``, from the fit without the row's fold."""
        classes: Any = self.targets
        if self.independent:
            classes = np.unique(classes >= 0.5, axis=0, return_inverse=True)[1].reshape(-1)
        elif classes.ndim == 2:
            classes = classes.argmax(axis=1)
        fold = np.empty(len(classes), dtype=np.int64)
        fold[np.argsort(classes, kind="stable")] = np.arange(len(classes)) % min(FOLDS, len(classes))
        if self.first is not None:
            _, earliest, text_index = np.unique(self.first, return_index=True, return_inverse=True)
            fold = fold[earliest[text_index]]
        scores = np.zeros((len(classes), 1 if self.num_labels == 2 and not self.independent else self.num_labels))
        for left_out in np.unique(fold):
            weight, bias = self.part(fold != left_out).fit(candidate, rough=rough)
            scores[fold == left_out] = self.features[fold == left_out] @ weight.T + bias
        return label_scores(scores, independent=self.independent)


def cross_entropy(logits: Floats, targets: npt.NDArray[Any], *, independent: bool) -> float:
    """Mean cross-entropy of logits with targets in nats a row; for independent labels, nats a row and label."""
    if independent:
        return float(-(targets * log_expit(logits) + (1 - targets) * log_expit(-logits)).mean())
    logs = log_softmax(logits, axis=1)
    log_likelihoods = logs[np.arange(len(targets)), targets] if targets.ndim == 1 else (targets * logs).sum(axis=1)
    return float(-log_likelihoods.mean())


@dataclass(frozen=True)
class Choice:
    """The best of several candidates.

    Its scores times ``factor`` give probabilities calibrated on left-out rows (Guo et al. 2017); no decision changes.
    """

    candidate: Candidate
    factor: float
    score: float
    measure: str
    loss: float
    logits: Floats = field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.candidate}, by {FOLDS}-fold cross-validation ({self.measure} {self.score:.3f})"


def choose(problem: Problem, candidates: Sequence[Candidate]) -> Choice:
    """Chooses the candidate with the best figure on rows that it did not see, `MOST_ROWS` at most.

    The figure is accuracy, for unequal classes macro F1, and for independent labels or a teacher's answers the
    log-likelihood. Among equals the lower loss wins. Unequal classes are also tried with class weights.
    """
    if len(problem.targets) < 2:
        raise DataError(f"{len(problem.targets)} training rows cannot be cross-validated; give at least two")
    sample = sample_of(problem)
    targets = sample.targets
    if targets.ndim == 1 and are_unequal(np.bincount(targets).tolist()):
        candidates = [*candidates, *(replace(candidate, balanced=True) for candidate in candidates)]
    choices = []
    for candidate in _affordable(candidates, problem):
        logits = sample.left_out(candidate, rough=True)
        choices.append(Choice(candidate, *judge(logits, targets, independent=problem.independent), logits))
    return max(choices, key=lambda choice: (choice.score, -choice.loss))


def sample_of(problem: Problem) -> Problem:
    """The rows that candidates are compared on, `MOST_ROWS` at most."""
    return problem.part(np.random.default_rng(problem.seed).permutation(len(problem.targets))[:MOST_ROWS])


def judge(logits: Floats, targets: npt.NDArray[Any], *, independent: bool) -> tuple[float, float, str, float]:
    """Factor, figure, its name and loss, as in `Choice`, for logits of left-out rows."""
    if targets.dtype.kind == "f":
        factor, loss = 1.0, cross_entropy(logits, targets, independent=independent)
    else:
        factor, loss = _calibration(logits, targets)
    if targets.ndim == 2:
        return factor, -loss, "log-likelihood", loss
    decisions = logits.argmax(axis=1)
    if not are_unequal(np.bincount(targets).tolist()):
        return factor, float((decisions == targets).mean()), "accuracy", loss
    # With thousands of labels, scikit-learn's macro F1 takes as long as a fit.
    support, predicted = (np.bincount(labels, minlength=logits.shape[1]) for labels in (targets, decisions))
    hits, present = np.bincount(targets[decisions == targets], minlength=logits.shape[1]), support > 0
    score = float((2 * hits[present] / (support + predicted)[present]).mean())
    return factor, score, "macro F1", loss


def _affordable(candidates: Sequence[Candidate], problem: Problem) -> Sequence[Candidate]:
    """The candidates that time allows; with thousands of labels one that reads the features once a fold."""
    if problem.num_labels <= FEW_LABELS:
        return candidates
    entries = problem.features.nnz if issparse(problem.features) else problem.features.size
    work = problem.num_labels * entries * (10 if candidates[0].loss == "logistic" else 1)
    share = (FOLDS - 1) * min(1.0, MOST_ROWS / len(problem.targets))
    affordable = candidates[: max(0, int((MOST_WORK / work - 1) / share))]
    if affordable or problem.independent:
        return affordable or candidates[:1]
    return [Candidate("bayes", 1.0) if issparse(problem.features) else Candidate("ridge", candidates[0].c)]


def _calibration(logits: Floats, targets: Labels) -> tuple[float, float]:
    """The factor of the logits with the lowest loss, and that loss."""
    optimum = minimize_scalar(
        lambda log: cross_entropy(logits * np.exp(log), targets, independent=targets.ndim == 2),
        bounds=(-5.0, 5.0),
        method="bounded",
    )
    return float(np.exp(optimum.x)), float(optimum.fun)


def fit_linear(
    texts: Sequence[str],
    labels: npt.ArrayLike,
    *,
    num_labels: int = 2,
    seed: int = 0,
    selection: tuple[Sequence[str], npt.ArrayLike] | None = None,
    weights: npt.NDArray[np.float32] | None = None,
) -> LinearModel:
    """The papers' control: logistic regression on TF-IDF of words and pairs.

    ``C`` is the one of `C_GRID` with the lowest loss on the selection split; 10 without one or with too many labels.
    """
    truth, independent = checked_targets(texts, labels, num_labels)
    vectorizers = fit_vectorizers(texts, characters=False, num_labels=num_labels)
    problem = Problem(features_of(vectorizers, texts), truth, num_labels, independent, seed, weights)
    candidates = _affordable([Candidate("logistic", c) for c in C_GRID], problem)
    if selection is None or len(candidates) < len(C_GRID):
        candidates = _affordable([Candidate("logistic", DEFAULT_C)], problem)
    models = [_model(vectorizers, problem, candidate, str(candidate)) for candidate in candidates]
    if selection is None:
        return models[0]
    logits = [model.logits(selection[0]).astype(np.float64) for model in models]
    losses = [cross_entropy(scores, np.asarray(selection[1]), independent=independent) for scores in logits]
    return models[int(np.argmin(losses))]


def fit_tuned(
    texts: Sequence[str],
    targets: npt.ArrayLike,
    *,
    num_labels: int = 2,
    independent: bool = False,
    seed: int = 0,
    weights: npt.NDArray[np.float32] | None = None,
) -> LinearModel:
    """The control that an expert would respect: words and characters, fitted by the best candidate of `choose`.

    Logistic regression is tried for two classes and for independent labels. For more classes it takes a minute where
    the SVM takes a second, and is no better.
    """
    vectorizers, problem, candidates = tuned_problem(texts, targets, num_labels, seed, weights, independent=independent)
    choice = choose(problem, candidates)
    return _model(vectorizers, problem, choice.candidate, str(choice), choice.factor)


def fit_static(
    texts: Sequence[str],
    targets: npt.ArrayLike,
    vectors: npt.NDArray[np.float32],
    tokenizer: Tokenizer,
    *,
    encoder: str,
    num_labels: int = 2,
    independent: bool = False,
    seed: int = 0,
    weights: npt.NDArray[np.float32] | None = None,
) -> LinearModel:
    """The static control: logistic regression on the mean of a text's word-piece vectors, which do not change.

    The vectors, ``(pieces, width)``, are those of `recurra.models.adaptation.convert.piece_vectors` (the method of
    model2vec; Tulkens and van Dongen 2024). The model on the mean is linear, so each piece keeps one score a label.
    model2vec also cuts the vectors to 256 directions, which gains nothing here, and scales texts to length 1, which
    would prevent such scores.
    """
    targets, independent = checked_targets(texts, targets, num_labels, independent=independent)
    pieces, wide = Vectorizer.of_pieces(tokenizer, len(vectors)), vectors.astype(np.float64)
    means = features_of([pieces], texts) @ wide
    # Each direction is scaled, so that the penalty weighs all alike; the scale goes into the scores.
    centre, spread = scale_of(means)
    problem = Problem((means - centre) / spread, targets, num_labels, independent, seed, weights)
    choice = choose(problem, [Candidate("logistic", c) for c in _STATIC_C])
    weight, bias = (choice.factor * part for part in problem.fit(choice.candidate))
    slopes, how = weight / spread, _how(problem, str(choice))
    return LinearModel([pieces], slopes @ wide.T, bias - slopes @ centre, choice.candidate.c, encoder=encoder, **how)


@dataclass(frozen=True)
class JoinedFit:
    """A fitted model of words, and weights and bias of the states."""

    words: LinearModel
    weight: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]

    def logits(self, texts: Sequence[str], states: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Logits of cleaned texts and their mean states, ``(texts, labels)``."""
        return self.words.logits(texts) + states @ self.weight.T + self.bias


def fit_joined(
    texts: Sequence[str],
    targets: npt.ArrayLike,
    states: npt.NDArray[np.float32],
    *,
    encoder: str,
    num_labels: int = 2,
    independent: bool = False,
    seed: int = 0,
    weights: npt.NDArray[np.float32] | None = None,
) -> JoinedFit:
    """Fits the mean of two models' log-probabilities, or one SVM on both, whichever cross-validates better.

    The two are the tuned control and a logistic regression on mean states, ``(texts, width)``, each calibrated. For
    independent labels, more than `FEW_LABELS` labels or `_MOST_ROWS_TOGETHER` texts, only the mean is fitted.

    The mean of two models' log-probabilities has the softmax of the mean of their logits. So both fits are stored and
    computed alike: weights of n-grams, weights of the mean state of a text's tokens, and a bias.
    """
    vectorizers, problem, candidates = tuned_problem(texts, targets, num_labels, seed, weights, independent=independent)
    centre, spread = scale_of(states.astype(np.float64))
    scaled = (states - centre) / spread
    apart = replace(problem, features=scaled)
    words_choice = choose(problem, candidates)
    states_choice = choose(apart, [Candidate("logistic", c) for c in _STATES_C])
    choices = (words_choice, states_choice)
    mean = np.mean([best.logits * best.factor for best in choices], axis=0)
    factor, score, measure, loss = judge(mean, sample_of(problem).targets, independent=problem.independent)
    means_only = problem.independent or num_labels > FEW_LABELS or len(texts) > _MOST_ROWS_TOGETHER
    joint, scale = problem, 1 / np.sqrt(scaled.shape[1])
    choice = None
    if not means_only:
        # The best SVM on n-grams and states side by side.
        joint = replace(problem, features=hstack([problem.features, csr_matrix(scaled * scale)]).tocsr())
        choice = choose(joint, [Candidate("hinge", c) for c in _JOINED_C])
    if choice is None or (score, -loss) >= (choice.score, -choice.loss):
        parts = [problem.fit(words_choice.candidate), apart.fit(states_choice.candidate)]
        (weight, bias), (states_weight, states_bias) = (
            [part * best.factor * factor / 2 for part in fitted] for fitted, best in zip(parts, choices, strict=True)
        )
        fitted_by = (
            f"{words_choice.candidate}, and mean token states of {encoder} + {states_choice.candidate}, "
            f"log-probabilities averaged, by {FOLDS}-fold cross-validation ({measure} {score:.3f})"
        )
        c = words_choice.candidate.c
    else:
        weight, bias = (choice.factor * part for part in joint.fit(choice.candidate))
        weight, states_weight = weight[:, : -scaled.shape[1]], weight[:, -scaled.shape[1] :] * scale
        states_bias, c = np.zeros_like(bias), choice.candidate.c
        fitted_by = f"mean token states of {encoder} + {choice}"
    slopes = states_weight / spread
    offsets = states_bias - slopes @ centre
    # The single score of two classes is split as in `LinearModel.logits`.
    slopes, offsets = (label_scores(part, independent=problem.independent).T for part in (slopes.T, offsets[None]))
    words = LinearModel(vectorizers, weight, bias, c, independent=problem.independent, fitted_by=fitted_by)
    return JoinedFit(words, slopes.astype(np.float32), offsets[:, 0].astype(np.float32))


def out_of_fold_probabilities(
    texts: Sequence[str],
    labels: npt.ArrayLike,
    *,
    num_labels: int,
    states: npt.NDArray[np.float32] | None = None,
    seed: int = 0,
) -> tuple[Floats, str]:
    """Calibrated probabilities ``(texts, labels)`` from fits like `fit_tuned` without the text, and a description.

    With ``states`` of an encoder, ``(texts, width)``, they come from the mean of these log-probabilities and those of a
    logistic regression on the states.
    """
    vectorizers, problem, candidates = tuned_problem(texts, labels, num_labels, seed)
    logits, candidate = _out_of_fold(problem, candidates)
    judges = f"TF-IDF ({' + '.join(map(str, vectorizers))}) + {candidate}"
    if states is not None:
        centre, spread = scale_of(states.astype(np.float64))
        problem = replace(problem, features=(states - centre) / spread)
        others, candidate = _out_of_fold(problem, [Candidate("logistic", c) for c in _STATES_C])
        logits = log_softmax(logits, axis=1) + log_softmax(others, axis=1)
        logits *= _factor(logits, problem)
        judges = f"{judges}, and mean token states + {candidate}"
    return softmax(logits, axis=1), f"{judges}, out of {FOLDS} folds"


def _out_of_fold(problem: Problem, candidates: Sequence[Candidate]) -> tuple[Floats, Candidate]:
    candidate = choose(problem, candidates).candidate
    order = np.random.default_rng(problem.seed).permutation(len(problem.targets))
    logits = np.zeros((len(order), problem.num_labels))
    logits[order] = problem.part(order).left_out(candidate)
    return logits * _factor(logits, problem), candidate


def _factor(logits: Floats, problem: Problem) -> float:
    """The calibrating factor of the logits, by rows whose label another text has: no fit saw the other labels."""
    judged = of_several_texts(problem.targets, np.arange(len(logits)) if problem.first is None else problem.first)
    rows = judged if judged.any() else slice(None)
    return _calibration(logits[rows], problem.targets[rows])[0]


def scale_of(rows: Floats) -> tuple[Floats, Floats]:
    """Mean and standard deviation of each column; 1 for the deviation of a constant column."""
    spread = rows.std(axis=0)
    return rows.mean(axis=0), np.where(spread > 0, spread, 1.0)


def _model(
    vectorizers: Sequence[Vectorizer], problem: Problem, candidate: Candidate, fitted_by: str, factor: float = 1.0
) -> LinearModel:
    weight, bias = problem.fit(candidate)
    return LinearModel(vectorizers, weight * factor, bias * factor, candidate.c, **_how(problem, fitted_by))


def _how(problem: Problem, fitted_by: str) -> dict[str, Any]:
    taught = ", on a teacher's answers" if problem.targets.dtype.kind == "f" else ""
    return {"independent": problem.independent, "fitted_by": fitted_by + taught}


def tuned_problem(
    texts: Sequence[str],
    targets: npt.ArrayLike,
    num_labels: int,
    seed: int,
    weights: npt.NDArray[np.float32] | None = None,
    *,
    independent: bool = False,
) -> tuple[list[Vectorizer], Problem, list[Candidate]]:
    """Vectorizers, the problem of features and targets, and the candidates."""
    checked, independent = checked_targets(texts, targets, num_labels, independent=independent)
    vectorizers = fit_vectorizers(texts, characters=True, num_labels=num_labels)
    problem = Problem(
        features_of(vectorizers, texts), checked, num_labels, independent, seed, weights, first_rows(texts)
    )
    if checked.dtype.kind == "f":
        return vectorizers, problem, [Candidate("logistic", c) for c in C_GRID]
    candidates = [] if independent else [Candidate("hinge", c) for c in _HINGE_C]
    if independent or num_labels == 2:
        candidates += [Candidate("logistic", c) for c in _LOGISTIC_C]
    return vectorizers, problem, candidates


def first_rows(texts: Sequence[str]) -> npt.NDArray[np.int64]:
    """For each row, the first row with the same text."""
    seen: dict[str, int] = {}
    return np.array([seen.setdefault(text, row) for row, text in enumerate(texts)])


def of_several_texts(labels: Labels, first: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Whether another text has each row's label too, by `first_rows`: a fit without the text has seen the label."""
    return np.bincount(np.unique(np.stack([labels, first], axis=1), axis=0)[:, 0])[labels] > 1


def checked_targets(
    texts: Sequence[str], targets: npt.ArrayLike, num_labels: int, *, independent: bool = False
) -> tuple[npt.NDArray[Any], bool]:
    """Targets in the form that the module describes, and whether a text may have any number of labels."""
    truth = np.asarray(targets)
    if truth.dtype.kind == "f":
        if len(texts) < 2:
            raise DataError(f"{len(texts)} texts are too few to learn answers from; give at least two")
        return truth, independent
    truth, independent = truth.astype(np.int64), truth.ndim == 2
    if truth.shape != ((len(texts), num_labels) if independent else (len(texts),)):
        raise ValueError(f"{len(texts)} texts, but labels of shape {truth.shape}")
    classes = np.unique(truth)
    if len(classes) < 2:
        raise DataError(f"training rows have the labels {classes.tolist()} only; at least two classes are needed")
    most = 2 if independent else num_labels
    if classes[0] < 0 or classes[-1] >= most:
        raise DataError(f"labels are {classes.tolist()}; allowed: 0 to {most - 1}")
    return truth, independent
