"""The linear controls: TF-IDF of words and word pairs with logistic regression, and what an expert would do instead.

A Transformer that does not beat them has learned nothing that needs a Transformer; where they win, the split or the
task is to blame. They are run and recorded like any other model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from recurra.core.errors import DataError
from recurra.models.controls.tfidf import TOKEN_PATTERN, Ngrams, Vectorizer, read_ngrams
from recurra.models.controls.weights import (
    Floats,
    Labels,
    LinearModel,
    SparseRows,
    checked_labels,
    foreign_settings,
    in_parts,
)

WEIGHTS_NAME = "linear.safetensors"
SETTINGS_NAME = "linear.json"
FORMAT = "recurra-linear"
# Version 1 knows one list of word n-grams, version 2 several lists of them.
FORMAT_VERSION = 2

DEFAULT_C = 10.0
C_GRID = (1.0, 3.0, 10.0, 30.0)
_LOGISTIC_C = (3.0, 10.0, 30.0)
_HINGE_C = (0.1, 0.3, 1.0)
# Of states with a standard deviation of 1 each.
_STATES_C = (0.001, 0.003, 0.01, 0.03)


WORD_PAIRS = (Ngrams("words", 1, 2),)
WORDS_AND_CHARACTERS = (Ngrams("words", 1, 2, sublinear=True), Ngrams("characters", 2, 5, sublinear=True))
# N-grams of one text alone are worth half a point and are half of the model; beyond so many rows they are left out.
_MANY_ROWS = 20_000


class LinearClassifier(LinearModel):
    """TF-IDF of n-grams, then a linear model.

    `fit` is the papers' control: 1-grams and 2-grams of words, L2-regularised (multinomial) logistic regression. Words
    are runs of letters and digits, those of one letter among them; raw term counts, all n-grams kept. The inverse
    regularisation ``C`` is the one of 1, 3, 10, 30 with the lowest loss on the selection split if that is given, and 10
    otherwise. `fit_tuned` is what an expert would try first: n-grams of words and of characters, logistic regression or
    a linear SVM, ``C`` and class weights by cross-validation on the training rows alone.

    Weights are rounded to float32 after the fit, so that the model in memory and the one on disk are the same.
    """

    FORMAT, VERSIONS, SETTINGS_NAME, WEIGHTS_NAME = FORMAT, (1, FORMAT_VERSION), SETTINGS_NAME, WEIGHTS_NAME

    def __init__(
        self, vectorizers: Sequence[Vectorizer], weight: npt.ArrayLike, bias: npt.ArrayLike, c: float, **how: Any
    ) -> None:
        """Builds the model from its parts; most callers want `fit`, `fit_tuned` or `load`.

        Args:
            vectorizers: In the order of the columns of ``weight``.
            weight: As `LinearModel` takes it.
            bias: Likewise.
            c: Likewise.
            how: Likewise.
        """
        super().__init__(weight, bias, c, **how)
        self._vectorizers = list(vectorizers)

    @classmethod
    def fit(
        cls,
        texts: Sequence[str],
        labels: npt.ArrayLike,
        *,
        num_labels: int = 2,
        seed: int = 0,
        selection: tuple[Sequence[str], npt.ArrayLike] | None = None,
        c_grid: Sequence[float] = C_GRID,
    ) -> Self:
        """Fits the papers' control.

        Args:
            texts: Cleaned training texts.
            labels: Integers from 0 to ``num_labels - 1``, shape ``(texts,)``; or 0 and 1 a label, ``(texts, labels)``,
                for a regression a label.
            num_labels: Number of classes.
            seed: Accepted like every model's; the solver is deterministic and does not use chance.
            selection: Texts and labels that choose ``C`` by the lowest loss.
            c_grid: Values of ``C`` to choose from.

        Raises:
            DataError: If there is one class only, or no text has a word.
            ValueError: If texts and labels differ in number.
        """
        from recurra.models.controls.fitting import Fit, matrix_of

        truth = checked_labels(texts, labels, num_labels)
        vectorizers, rows = _vectorized(WORD_PAIRS, texts)
        features = matrix_of(rows)
        best: Self | None = None
        best_loss = float("inf")
        for c in [DEFAULT_C] if selection is None else c_grid:
            fit = Fit("logistic", c)
            weight, bias = fit.weights(features, truth, num_labels=num_labels, seed=seed)
            candidate = cls(vectorizers, weight, bias, c, independent=truth.ndim == 2, fitted_by=str(fit))
            loss = 0.0 if selection is None else candidate.loss(*selection)
            if loss < best_loss:
                best, best_loss = candidate, loss
        if best is None:
            raise ValueError(f"c_grid is {list(c_grid)}; at least one value is needed")
        return best

    @classmethod
    def fit_tuned(cls, texts: Sequence[str], labels: npt.ArrayLike, *, num_labels: int = 2, seed: int = 0) -> Self:
        """Fits the control that an expert would respect; see `cross_validate` for what chooses.

        Logistic regression is tried for two classes and for independent labels; for more classes it takes a minute
        where the SVM takes a second, and was level with it. Class weights are tried for unequal classes.

        Args:
            texts: Cleaned training texts.
            labels: As `fit` takes them.
            num_labels: Number of classes.
            seed: Of the folds and the solver.

        Raises:
            DataError: If there is one class only, or no text has a word.
            ValueError: If texts and labels differ in number.
        """
        from recurra.models.controls.fitting import cross_validate, matrix_of

        truth = checked_labels(texts, labels, num_labels)
        vectorizers, rows = _vectorized(_tuned_kinds(len(texts)), texts)
        fits = _tuned_fits(truth, num_labels)
        found = cross_validate(matrix_of(rows), truth, fits, num_labels=num_labels, seed=seed)
        how = {"independent": truth.ndim == 2, "fitted_by": str(found)}
        return cls(vectorizers, found.weight, found.bias, found.fit.c, **how)

    @classmethod
    def fit_taught(
        cls, texts: Sequence[str], answers: npt.NDArray[np.float64], *, independent: bool = False, seed: int = 0
    ) -> Self:
        """Fits the features of `fit_tuned` to what a teacher says of texts, labelled or not.

        Args:
            texts: Cleaned texts.
            answers: The teacher's probabilities, ``(texts, labels)``.
            independent: Whether a text may have any number of labels.
            seed: Of the folds and the solver.

        Raises:
            DataError: If there are fewer than two texts, or none has a word.
        """
        from recurra.models.controls.fitting import Fit, fit_answers, matrix_of

        vectorizers, rows = _vectorized(_tuned_kinds(len(texts)), texts)
        fits = [Fit("logistic", c) for c in C_GRID]
        found = fit_answers(matrix_of(rows), answers, fits, independent=independent, seed=seed)
        how = {"independent": independent, "fitted_by": f"{found}, on a teacher's answers"}
        return cls(vectorizers, found.weight, found.bias, found.fit.c, **how)

    @property
    def vectorizers(self) -> Sequence[Vectorizer]:
        """What counts the n-grams, in the order of the columns."""
        return self._vectorizers

    @property
    def description(self) -> str:
        """Features and fit in a line."""
        kinds = " + ".join(str(each.ngrams) for each in self._vectorizers)
        each = " for each label" if self.independent else ""
        return f"TF-IDF ({kinds}) + {self.fitted_by or 'logistic regression'}{each}"

    @property
    def features_per_word(self) -> float:
        """N-grams that begin at a word, or lie within one of five letters."""
        return float(sum(each.ngrams.per_word for each in self._vectorizers))

    def features(self, texts: Sequence[str]) -> SparseRows:
        """TF-IDF of cleaned texts, ``(texts, n-grams)``."""
        return _features(self._vectorizers, texts)

    def telling_words(self, texts: Sequence[str], labels: npt.ArrayLike, most: int) -> list[list[str]]:
        """The n-grams of words that add most to a label's score in the texts that have it, the strongest first.

        What one adds is its weight times its mean feature over these texts; those that add nothing are left out.

        Args:
            texts: Cleaned texts.
            labels: As `fit` takes them.
            most: N-grams a label, at most.
        """
        words, truth = self._vectorizers[0], np.asarray(labels)
        rows = words.transform(texts)
        weight = np.vstack([-self._weight, self._weight]) if len(self._weight) < self.num_labels else self._weight
        found = []
        for label, of_label in enumerate(weight[:, : rows.width]):
            has = truth == label if truth.ndim == 1 else truth[:, label] == 1
            means = np.bincount(rows.columns, weights=rows.values * has[rows.rows], minlength=rows.width)
            adds = of_label * means / max(int(has.sum()), 1)
            order = np.argsort(-adds, kind="stable")[:most]
            found.append([words.terms[place] for place in order.tolist() if adds[place] > 0])
        return found

    def save(self, folder: Path | str) -> None:
        """Writes the weights (safetensors) and the n-grams with the settings (JSON)."""
        features = [{**asdict(each.ngrams), "terms": each.terms} for each in self._vectorizers]
        idf = np.concatenate([each.idf for each in self._vectorizers])
        self._save(folder, {"idf": idf}, {"version": FORMAT_VERSION, "features": features})

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Reads what `save` wrote; the logits are equal to the last bit.

        Raises:
            CheckpointError: If a file is missing, truncated, or not ours.
        """
        settings, tensors = cls._read(folder)
        kinds = _read_features(settings, Path(folder) / SETTINGS_NAME)
        ends = np.cumsum([len(terms) for _, terms in kinds])
        cls._check_shapes(folder, settings, tensors, int(ends[-1]), idf=(int(ends[-1]),))
        parts = np.split(tensors["idf"], ends[:-1])
        vectorizers = [Vectorizer(ngrams, terms, idf) for (ngrams, terms), idf in zip(kinds, parts, strict=True)]
        return cls(vectorizers, tensors["weight"], tensors["bias"], **cls._given(settings))


def out_of_fold_probabilities(
    texts: Sequence[str],
    labels: npt.ArrayLike,
    *,
    num_labels: int,
    states: npt.NDArray[np.float32] | None = None,
    seed: int = 0,
) -> tuple[Floats, str]:
    """Probabilities of every text from a control as `LinearClassifier.fit_tuned` makes it that did not see its label.

    Args:
        texts: Cleaned texts.
        labels: One a text, integers from 0 to ``num_labels - 1``, shape ``(texts,)``.
        num_labels: Number of classes.
        states: What an encoder makes of each text, ``(texts, width)``: a logistic regression on them judges too, and
            the mean of the two's log-probabilities is calibrated anew.
        seed: Of the folds and the solver.

    Returns:
        Calibrated probabilities ``(texts, num_labels)``, and what gave them in a line.

    Raises:
        DataError: If there is one class only, or no text has a word.
        ValueError: If texts and labels differ in number.
    """
    from scipy.special import log_softmax, softmax

    from recurra.models.controls.fitting import FOLDS, Fit, calibrated, matrix_of, out_of_fold, with_class_weights

    truth = checked_labels(texts, labels, num_labels)
    _, rows = _vectorized(_tuned_kinds(len(texts)), texts)
    logits, fit = out_of_fold(matrix_of(rows), truth, _tuned_fits(truth, num_labels), num_labels=num_labels, seed=seed)
    judges = f"TF-IDF ({' + '.join(map(str, WORDS_AND_CHARACTERS))}) + {fit}"
    if states is not None:
        spread = states.std(axis=0, dtype=np.float64)
        scaled = (states - states.mean(axis=0, dtype=np.float64)) / np.where(spread > 0, spread, 1.0)
        fits = with_class_weights([Fit("logistic", c) for c in _STATES_C], truth)
        others, fit = out_of_fold(scaled, truth, fits, num_labels=num_labels, seed=seed)
        logits = calibrated(log_softmax(logits, axis=1) + log_softmax(others, axis=1), truth)
        judges = f"{judges}, and mean token states + {fit}"
    return softmax(logits, axis=1), f"{judges}, out of {FOLDS} folds"


def _tuned_kinds(rows: int) -> list[Ngrams]:
    least = 1 if rows <= _MANY_ROWS else 2
    return [replace(ngrams, least_texts=least) for ngrams in WORDS_AND_CHARACTERS]


def _tuned_fits(truth: Labels, num_labels: int) -> list[Any]:
    from recurra.models.controls.fitting import Fit, with_class_weights

    fits = [Fit("hinge", c) for c in _HINGE_C] if truth.ndim == 1 else []
    if num_labels == 2 or truth.ndim == 2:
        fits += [Fit("logistic", c) for c in _LOGISTIC_C]
    return with_class_weights(fits, truth)


def _vectorized(kinds: Sequence[Ngrams], texts: Sequence[str]) -> tuple[list[Vectorizer], SparseRows]:
    vectorizers = [Vectorizer.fit(ngrams, texts) for ngrams in kinds]
    if not vectorizers[0].terms:
        raise DataError(
            f"none of the {len(texts)} training texts has a word of letters or digits; give texts with words"
        )
    return vectorizers, SparseRows.stacked([_features(vectorizers, part) for part in in_parts(texts)])


def _features(vectorizers: Sequence[Vectorizer], texts: Sequence[str]) -> SparseRows:
    return SparseRows.joined([vectorizer.transform(texts) for vectorizer in vectorizers])


def _read_features(settings: Mapping[str, Any], path: Path) -> list[tuple[Ngrams, list[str]]]:
    """The n-grams that settings of either version name.

    Raises:
        CheckpointError: If no version of ours writes such.
    """
    entries = settings.get("features")
    if settings["version"] == 1:
        if settings.get("ngram_range") != [1, 2] or settings.get("token_pattern") != TOKEN_PATTERN:
            raise foreign_settings(path)
        entries = [{**asdict(WORD_PAIRS[0]), "terms": settings.get("vocabulary")}]
    if not isinstance(entries, list) or not 1 <= len(entries) <= 2:
        raise foreign_settings(path)
    return [read_ngrams(entry, path) for entry in entries]
