"""Fitting the linear controls with scikit-learn: the papers' one, and what an expert would do instead.

A Transformer that does not beat them has learned nothing that needs a Transformer; where they win, the split or the
task is to blame. They are run and recorded like any other model.

Targets are labels ``(texts,)`` from 0; or 0 and 1 a label, ``(texts, labels)``; or, as floats, the probabilities that a
teacher gives each label, ``(texts, labels)``. A text then counts once for each label, as much as the teacher gives it:
the loss is the cross-entropy with the teacher's probabilities (Hinton, Vinyals and Dean 2015, "Distilling the Knowledge
in a Neural Network", with temperature 1).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar
from scipy.sparse import issparse
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
# Of states with a standard deviation of 1 each.
STATES_C = (0.0003, 0.001, 0.003, 0.01, 0.03)
# With the default tolerance of 1e-4 the solver stops while accuracies still move by half a point; to choose between
# candidates the second is enough, in a fifth of the time.
_TOLERANCE, _ROUGH_TOLERANCE = 1e-6, 1e-3
# A class that training never showed: its probability is this, not 0, so that a loss on it stays finite.
UNSEEN_LOG_PROBABILITY = -25.0
FOLDS = 5
# A label that a teacher gives less is not learned from: it would cost a row and move nothing.
_LEAST_ANSWER = 1e-3
# Beyond, the best C hardly moves, and every fold would cost minutes.
MOST_ROWS = 3_000
# With more labels than these, so many stored features times labels may be gone through in all: some 20 s of a core.
FEW_LABELS, MOST_WORK = 100, 300_000_000


@dataclass(frozen=True)
class Candidate:
    """One way of fitting: logistic regression, linear SVM; for many labels naive Bayes, ridge of vectors."""

    loss: Literal["logistic", "hinge", "bayes", "ridge"]
    c: float
    balanced: bool = False

    def __str__(self) -> str:
        if self.loss == "bayes":
            return "complement naive Bayes"
        name = {"logistic": "logistic regression", "hinge": "linear SVM", "ridge": "ridge regression"}[self.loss]
        return f"{name}, C = {self.c:g}{', balanced' if self.balanced else ''}"

    def estimator(self, seed: int, *, rough: bool) -> Any:
        """What scikit-learn fits."""
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
    """Features, ``(texts, features)``, sparse or dense, what is to be learned, and what each text counts in a fit.

    Attributes:
        first: See `first_rows`; equal texts are left out together. None takes all for different.
    """

    features: Any
    targets: npt.NDArray[Any]
    num_labels: int
    independent: bool
    seed: int
    weights: npt.NDArray[np.float32] | None = None
    first: npt.NDArray[np.int64] | None = None

    def part(self, rows: npt.NDArray[Any]) -> Problem:
        """Some of the texts."""
        weights, first = (None if each is None else each[rows] for each in (self.weights, self.first))
        return replace(self, features=self.features[rows], targets=self.targets[rows], weights=weights, first=first)

    def fit(self, candidate: Candidate, *, rough: bool = False) -> tuple[Floats, Floats]:
        """Weight and bias as `LinearModel` takes them."""
        if self.independent:
            pairs = (np.stack([1 - column, column], axis=1).astype(np.float64) for column in self.targets.T)
            one = replace(self, num_labels=2, independent=False)
            parts = [replace(one, targets=pair).fit(candidate, rough=rough) for pair in pairs]
            return np.concatenate([weight for weight, _ in parts]), np.concatenate([bias for _, bias in parts])
        features, labels, counts = self.features, self.targets, self.weights
        if labels.ndim == 2:
            # Of many labels fewer are learned from: no row may count hundreds of times.
            rows, labels = np.nonzero(self.targets >= max(_LEAST_ANSWER, 1e-5 * self.num_labels))
            features, counts = features[rows], self.targets[rows, labels]
        seen = np.unique(labels)
        weight = np.zeros((self.num_labels, features.shape[1]))
        bias = np.full(self.num_labels, UNSEEN_LOG_PROBABILITY)
        bias[seen] = 0.0
        if len(seen) > 1:
            # One thread: others would spin beside the sparse product, and change the order of sums. A fit that has not
            # settled is still judged on rows that it did not see, and a label of few rows is no number.
            with threadpool_limits(1, user_api="blas"), warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                fitted = candidate.estimator(self.seed, rough=rough).fit(features, labels, sample_weight=counts)
            if candidate.loss == "bayes":
                # In place: of thousands of labels each copy has hundreds of megabytes.
                logs = fitted.feature_log_prob_
                logs -= logs.mean(axis=0)
                weight[seen] = logs
            elif len(seen) == 2:
                weight[seen] = np.concatenate([-fitted.coef_ / 2, fitted.coef_ / 2])
                bias[seen] = np.concatenate([-fitted.intercept_ / 2, fitted.intercept_ / 2])
            else:
                weight[seen], bias[seen] = fitted.coef_, fitted.intercept_
        return (weight[1:] - weight[:1], bias[1:] - bias[:1]) if self.num_labels == 2 else (weight, bias)

    def left_out(self, candidate: Candidate, *, rough: bool = False) -> Floats:
        """Logits of every row, ``(rows, labels)``, from the fit on the other folds."""
        kinds: Any = self.targets
        if self.independent:
            kinds = np.unique(kinds >= 0.5, axis=0, return_inverse=True)[1].reshape(-1)
        elif kinds.ndim == 2:
            kinds = kinds.argmax(axis=1)
        fold = np.empty(len(kinds), dtype=np.int64)
        fold[np.argsort(kinds, kind="stable")] = np.arange(len(kinds)) % min(FOLDS, len(kinds))
        if self.first is not None:
            _, earliest, of_text = np.unique(self.first, return_index=True, return_inverse=True)
            fold = fold[earliest[of_text]]
        scores = np.zeros((len(kinds), 1 if self.num_labels == 2 and not self.independent else self.num_labels))
        for left_out in np.unique(fold):
            weight, bias = self.part(fold != left_out).fit(candidate, rough=rough)
            scores[fold == left_out] = self.features[fold == left_out] @ weight.T + bias
        return label_scores(scores, independent=self.independent)


def cross_entropy(logits: Floats, targets: npt.NDArray[Any], *, independent: bool) -> float:
    """Mean cross-entropy of logits with targets, nats a row; of independent labels a row and label."""
    if independent:
        return float(-(targets * log_expit(logits) + (1 - targets) * log_expit(-logits)).mean())
    logs = log_softmax(logits, axis=1)
    own = logs[np.arange(len(targets)), targets] if targets.ndim == 1 else (targets * logs).sum(axis=1)
    return float(-own.mean())


@dataclass(frozen=True)
class Choice:
    """The best of several candidates.

    The factor of its scores fits probabilities to rows left out (Guo et al. 2017) and changes no decision.
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

    The figure is accuracy, for unequal classes macro F1, and for independent labels and a teacher's answers the
    log-likelihood; of equals the likelier one wins. Unequal classes are tried with class weights too.
    """
    if len(problem.targets) < 2:
        raise DataError(f"{len(problem.targets)} training rows cannot be cross-validated; give at least two")
    sample = sample_of(problem)
    targets = sample.targets
    if targets.ndim == 1 and are_unequal(np.bincount(targets).tolist()):
        candidates = [*candidates, *(replace(each, balanced=True) for each in candidates)]
    choices = []
    for candidate in _affordable(candidates, problem):
        logits = sample.left_out(candidate, rough=True)
        choices.append(Choice(candidate, *judge(logits, targets, independent=problem.independent), logits))
    return max(choices, key=lambda choice: (choice.score, -choice.loss))


def sample_of(problem: Problem) -> Problem:
    """The rows that candidates are compared on, `MOST_ROWS` at most."""
    return problem.part(np.random.default_rng(problem.seed).permutation(len(problem.targets))[:MOST_ROWS])


def judge(logits: Floats, targets: npt.NDArray[Any], *, independent: bool) -> tuple[float, float, str, float]:
    """Factor, figure, its name and loss, as `Choice` has them, of logits of rows that were left out."""
    if targets.dtype.kind == "f":
        factor, loss = 1.0, cross_entropy(logits, targets, independent=independent)
    else:
        factor, loss = _calibration(logits, targets)
    if targets.ndim == 2:
        return factor, -loss, "log-likelihood", loss
    decisions = logits.argmax(axis=1)
    if not are_unequal(np.bincount(targets).tolist()):
        return factor, float((decisions == targets).mean()), "accuracy", loss
    # Of thousands of labels scikit-learn's takes as long as a fit.
    true, given = (np.bincount(labels, minlength=logits.shape[1]) for labels in (targets, decisions))
    hits, present = np.bincount(targets[decisions == targets], minlength=logits.shape[1]), true > 0
    score = float((2 * hits[present] / (true + given)[present]).mean())
    return factor, score, "macro F1", loss


def _affordable(candidates: Sequence[Candidate], problem: Problem) -> Sequence[Candidate]:
    """As many as may be tried; with thousands of labels one that goes through the features once a fold."""
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
    found = minimize_scalar(
        lambda log: cross_entropy(logits * np.exp(log), targets, independent=targets.ndim == 2),
        bounds=(-5.0, 5.0),
        method="bounded",
    )
    return float(np.exp(found.x)), float(found.fun)


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
    losses, models = [], []
    for candidate in candidates:
        models.append(_model(vectorizers, problem, candidate, str(candidate)))
        if selection is not None:
            logits = models[-1].logits(selection[0]).astype(np.float64)
            losses.append(cross_entropy(logits, np.asarray(selection[1]), independent=independent))
    return models[int(np.argmin(losses)) if losses else 0]


def fit_tuned(
    texts: Sequence[str],
    targets: npt.ArrayLike,
    *,
    num_labels: int = 2,
    independent: bool = False,
    seed: int = 0,
    weights: npt.NDArray[np.float32] | None = None,
) -> LinearModel:
    """The control that an expert would respect: words and characters, what fits them chosen by `choose`.

    Logistic regression is tried for two classes and for independent labels; for more classes it takes a minute where
    the SVM takes a second, and was level with it.
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
    """The static control: every word piece has a vector once and for all; their mean, then logistic regression.

    The vectors, ``(pieces, width)``, are those of `recurra.models.adaptation.convert.piece_vectors` (the method of
    model2vec; Tulkens and van Dongen 2024). As the model behind the mean is linear, each piece keeps one score a label.
    model2vec also cuts the vectors to 256 directions and scales texts to length 1; the first gains nothing here, the
    second would keep the vectors from becoming scores.
    """
    targets, independent = checked_targets(texts, targets, num_labels, independent=independent)
    pieces, wide = Vectorizer.of_pieces(tokenizer, len(vectors)), vectors.astype(np.float64)
    means = features_of([pieces], texts) @ wide
    # One scale a direction, so that the penalty weighs them alike; it goes into the scores.
    centre, spread = scale_of(means)
    problem = Problem((means - centre) / spread, targets, num_labels, independent, seed, weights)
    choice = choose(problem, [Candidate("logistic", c) for c in _STATIC_C])
    weight, bias = (choice.factor * part for part in problem.fit(choice.candidate))
    slopes, how = weight / spread, _how(problem, str(choice))
    return LinearModel([pieces], slopes @ wide.T, bias - slopes @ centre, choice.candidate.c, encoder=encoder, **how)


def out_of_fold_probabilities(
    texts: Sequence[str],
    labels: npt.ArrayLike,
    *,
    num_labels: int,
    states: npt.NDArray[np.float32] | None = None,
    seed: int = 0,
) -> tuple[Floats, str]:
    """Calibrated probabilities ``(texts, labels)`` from fits like `fit_tuned` without the text, and what gave them.

    With ``states`` of an encoder, ``(texts, width)``, a logistic regression on them judges too, by the mean of both
    logs.
    """
    vectorizers, problem, candidates = tuned_problem(texts, labels, num_labels, seed)
    logits, candidate = _out_of_fold(problem, candidates)
    judges = f"TF-IDF ({' + '.join(map(str, vectorizers))}) + {candidate}"
    if states is not None:
        centre, spread = scale_of(states.astype(np.float64))
        problem = replace(problem, features=(states - centre) / spread)
        others, candidate = _out_of_fold(problem, [Candidate("logistic", c) for c in STATES_C])
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
    """What makes probabilities of the logits, by the rows whose label another text has: of others it is never seen."""
    judged = of_several_texts(problem.targets, np.arange(len(logits)) if problem.first is None else problem.first)
    rows = judged if judged.any() else slice(None)
    return _calibration(logits[rows], problem.targets[rows])[0]


def scale_of(rows: Floats) -> tuple[Floats, Floats]:
    """Mean and standard deviation of each column; of one that is the same everywhere 1."""
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
    """Features, what is to be learned of them, and the candidates."""
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
    """The first row with the text of each row."""
    seen: dict[str, int] = {}
    return np.array([seen.setdefault(text, row) for row, text in enumerate(texts)])


def of_several_texts(labels: Labels, first: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Rows whose label stands at another text too, by `first_rows`: a judge without the text has seen that label."""
    return np.bincount(np.unique(np.stack([labels, first], axis=1), axis=0)[:, 0])[labels] > 1


def checked_targets(
    texts: Sequence[str], targets: npt.ArrayLike, num_labels: int, *, independent: bool = False
) -> tuple[npt.NDArray[Any], bool]:
    """Targets as the module has them, and whether a text may have any number of labels."""
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
