"""The linear control: TF-IDF of words and word pairs with logistic regression.

A Transformer that does not beat it has learned nothing that needs a Transformer; where it wins, the split or the task
is to blame. It is run and recorded like any other model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save
from scipy.special import log_expit, log_softmax
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from recurra.core.errors import CheckpointError, DataError
from recurra.core.files import atomic_path, read_json, storage_errors, write_json

WEIGHTS_NAME = "linear.safetensors"
SETTINGS_NAME = "linear.json"
FORMAT = "recurra-linear"
FORMAT_VERSION = 1

# Words of one letter count: "n't" is "n" and "t", and dropping them would drop the negation.
TOKEN_PATTERN = r"(?u)\b\w+\b"
NGRAM_RANGE = (1, 2)
DEFAULT_C = 10.0
C_GRID = (1.0, 3.0, 10.0, 30.0)
# With the default tolerance of 1e-4 the solver stops while accuracies still move by half a point.
_SOLVER_TOLERANCE = 1e-6
_MAX_ITERATIONS = 5_000
# A class that training never showed: its probability is this, not 0, so that a loss on it stays finite.
_UNSEEN_LOG_PROBABILITY = -25.0

Floats = npt.NDArray[np.float64]


class LinearClassifier:
    """TF-IDF of 1-grams and 2-grams of words, then L2-regularised (multinomial) logistic regression.

    Choices: words are runs of letters and digits, those of one letter among them; raw term counts (not sublinear),
    smoothed inverse document frequency, rows scaled to length 1, all n-grams kept. The inverse regularisation ``C`` is
    the one of 1, 3, 10, 30 with the lowest loss on the selection split if that is given, and 10 otherwise. Weights are
    rounded to float32 after the fit, so that the model in memory and the one on disk are the same.

    Attributes:
        num_labels: Number of classes.
        independent: Whether each label has a regression of its own against all texts without it.
        inverse_regularisation: The ``C`` that was used.
    """

    def __init__(
        self,
        vocabulary: Sequence[str],
        idf: npt.ArrayLike,
        weight: npt.ArrayLike,
        bias: npt.ArrayLike,
        c: float,
        *,
        independent: bool = False,
    ) -> None:
        """Builds the model from its parts; most callers want `fit` or `load`.

        Args:
            vocabulary: N-grams, in the order of the columns of ``weight``.
            idf: Inverse document frequencies, shape ``(features,)``.
            weight: Shape ``(1, features)`` for two classes (the score of label 1), else ``(labels, features)``.
            bias: Shape ``(1,)`` or ``(labels,)``.
            c: The inverse regularisation it was fitted with.
            independent: Whether each label has a regression of its own, so that a text may have any number of them.
        """
        self.inverse_regularisation = float(c)
        self._terms = list(vocabulary)
        self._idf = np.asarray(idf, dtype=np.float32)
        self._weight = np.ascontiguousarray(weight, dtype=np.float32)
        self._bias = np.asarray(bias, dtype=np.float32)
        self.independent = independent
        self.num_labels = 2 if len(self._bias) == 1 else len(self._bias)
        self._vectorizer = _vectorizer({term: column for column, term in enumerate(self._terms)})
        self._vectorizer.idf_ = self._idf.astype(np.float64)

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
        """Fits the model.

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
        truth = np.asarray(labels, dtype=np.int64)
        independent = truth.ndim == 2
        if truth.shape != ((len(texts), num_labels) if independent else (len(texts),)):
            raise ValueError(f"{len(texts)} texts, but labels of shape {truth.shape}")
        _check_classes(truth, 2 if independent else num_labels)
        vectorizer = _vectorizer(None)
        try:
            features = vectorizer.fit_transform(texts)
        except ValueError as error:
            raise DataError(
                f"none of the {len(texts)} training texts has a word of letters or digits; give texts with words"
            ) from error
        terms = vectorizer.get_feature_names_out().tolist()

        best: Self | None = None
        best_loss = float("inf")
        for c in [DEFAULT_C] if selection is None else c_grid:
            if independent:
                parts = [_binary_regression(features, column, c, seed) for column in truth.T]
                weight, bias = np.stack([part[0] for part in parts]), np.array([part[1] for part in parts])
            else:
                weight, bias = _spread_over_labels(_regression(features, truth, c, seed), num_labels)
            candidate = cls(terms, vectorizer.idf_, weight, bias, c, independent=independent)
            loss = 0.0 if selection is None else candidate.loss(*selection)
            if loss < best_loss:
                best, best_loss = candidate, loss
        if best is None:
            raise ValueError(f"c_grid is {list(c_grid)}; at least one value is needed")
        return best

    @property
    def num_parameters(self) -> int:
        """Learned weights and biases (the inverse document frequencies are counts and not among them)."""
        return int(self._weight.size + self._bias.size)

    @property
    def num_features(self) -> int:
        """Distinct n-grams."""
        return len(self._terms)

    def logits(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Scores, shape ``(texts, labels)``, float32; their softmax gives the probabilities.

        With a regression a label, it is the logistic function of each that does.

        With two classes the score of label 1 is split evenly: the logits are minus and plus half of it.
        """
        if len(texts) == 0:
            return np.zeros((0, self.num_labels), dtype=np.float32)
        features = self._vectorizer.transform(texts)
        scores: Floats = features @ self._weight.astype(np.float64).T + self._bias.astype(np.float64)
        if len(self._bias) == 1:
            scores = np.concatenate([-scores / 2, scores / 2], axis=1)
        return scores.astype(np.float32)

    def loss(self, texts: Sequence[str], labels: npt.ArrayLike) -> float:
        """Mean cross-entropy in nats; with a regression a label, over labels too."""
        truth = np.asarray(labels, dtype=np.int64)
        if self.independent:
            return float(-log_expit(np.where(truth == 1, 1.0, -1.0) * self.logits(texts)).mean())
        logs = log_softmax(self.logits(texts).astype(np.float64), axis=1)
        return float(-logs[np.arange(len(truth)), truth].mean())

    def save(self, folder: Path | str) -> None:
        """Writes the weights (safetensors) and the vocabulary with the settings (JSON), no pickle.

        The settings carry a hash of the weights file and are written last: a folder whose save was cut short is
        recognised.

        Raises:
            StorageError: If it cannot be written.
        """
        target = Path(folder)
        weights = save({"weight": self._weight, "bias": self._bias, "idf": self._idf}, metadata={"format": FORMAT})
        with storage_errors(target):
            target.mkdir(parents=True, exist_ok=True)
        with atomic_path(target / WEIGHTS_NAME) as temporary:
            temporary.write_bytes(weights)
        settings = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "num_labels": self.num_labels,
            "ngram_range": list(NGRAM_RANGE),
            "token_pattern": TOKEN_PATTERN,
            "inverse_regularisation": self.inverse_regularisation,
            "weights_sha256": hashlib.sha256(weights).hexdigest(),
            "vocabulary": self._terms,
            **({"independent": True} if self.independent else {}),
        }
        write_json(target / SETTINGS_NAME, settings, indent=None)

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Reads what `save` wrote; the logits are equal to the last bit.

        Raises:
            CheckpointError: If a file is missing, truncated, or not ours.
        """
        settings = _read_settings(Path(folder) / SETTINGS_NAME)
        path = Path(folder) / WEIGHTS_NAME
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            tensors = load_file(path)
        except FileNotFoundError as error:
            raise CheckpointError(f"'{path}' is missing; train the linear model again") from error
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"'{path}' is not a whole safetensors file; train the linear model again") from error
        if digest != settings["weights_sha256"]:
            raise CheckpointError(f"'{path}' does not belong to '{SETTINGS_NAME}' beside it; train the model again")
        terms = settings["vocabulary"]
        labels = settings["num_labels"]
        independent = settings.get("independent") is True
        rows = 1 if labels == 2 and not independent else labels
        expected = {"weight": (rows, len(terms)), "bias": (rows,), "idf": (len(terms),)}
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        if shapes != expected:
            raise CheckpointError(f"'{path}' holds {shapes}, the settings say {expected}; train the model again")
        if not all(np.isfinite(tensor).all() for tensor in tensors.values()):
            raise CheckpointError(f"'{path}' holds weights that are not finite; train the linear model again")
        idf, weight, bias = (tensors[name] for name in ("idf", "weight", "bias"))
        return cls(terms, idf, weight, bias, settings["inverse_regularisation"], independent=independent)


def _vectorizer(vocabulary: dict[str, int] | None) -> TfidfVectorizer:
    # Texts are cleaned, so lower-case: lower-casing again could only differ from the training.
    return TfidfVectorizer(
        ngram_range=NGRAM_RANGE, token_pattern=TOKEN_PATTERN, lowercase=False, vocabulary=vocabulary, dtype=np.float64
    )


def _check_classes(truth: npt.NDArray[np.int64], num_labels: int) -> None:
    classes = np.unique(truth)
    if len(classes) < 2:
        raise DataError(f"training rows have the labels {classes.tolist()} only; at least two classes are needed")
    if classes[0] < 0 or classes[-1] >= num_labels:
        raise DataError(f"labels are {classes.tolist()}; allowed: 0 to {num_labels - 1}")


def _regression(features: Any, truth: npt.NDArray[np.int64], c: float, seed: int) -> LogisticRegression:
    regression = LogisticRegression(C=c, tol=_SOLVER_TOLERANCE, max_iter=_MAX_ITERATIONS, random_state=seed)
    # The products are sparse and on one thread anyhow; others would spin, and change the order of sums.
    with threadpool_limits(1, user_api="blas"):
        return regression.fit(features, truth)


def _binary_regression(features: Any, truth: npt.NDArray[np.int64], c: float, seed: int) -> tuple[Floats, float]:
    """Weights and bias of one label; one that all training rows have, or none, has a bias alone."""
    if truth.min() == truth.max():
        return np.zeros(features.shape[1]), _UNSEEN_LOG_PROBABILITY * (1 if truth[0] == 0 else -1)
    found = _regression(features, truth, c, seed)
    return found.coef_[0], float(found.intercept_[0])


def _spread_over_labels(regression: LogisticRegression, num_labels: int) -> tuple[Floats, Floats]:
    """Weights with a row for every label, also for labels that training never showed."""
    weight, bias, seen = regression.coef_, regression.intercept_, regression.classes_
    if len(seen) == num_labels:
        return weight, bias
    if len(seen) == 2:
        weight, bias = np.concatenate([-weight / 2, weight / 2]), np.concatenate([-bias / 2, bias / 2])
    full_weight = np.zeros((num_labels, weight.shape[1]))
    full_bias = np.full(num_labels, _UNSEEN_LOG_PROBABILITY)
    full_weight[seen], full_bias[seen] = weight, bias
    return full_weight, full_bias


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        settings = read_json(path)
    except FileNotFoundError as error:
        raise CheckpointError(f"'{path}' is missing: not a linear model of ours; give a folder made by us") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"'{path}' is not whole JSON (truncated?); train the linear model again") from error
    ours = isinstance(settings, dict) and settings.get("format") == FORMAT
    if not ours:
        raise CheckpointError(f"'{path}' is not the settings of a linear model of ours; give a folder made by us")
    if settings.get("version") != FORMAT_VERSION:
        version = settings.get("version")
        raise CheckpointError(
            f"'{path}' has format version {version}, this one reads {FORMAT_VERSION}; upgrade recurra"
        )
    same = settings.get("ngram_range") == list(NGRAM_RANGE) and settings.get("token_pattern") == TOKEN_PATTERN
    terms, labels = settings.get("vocabulary"), settings.get("num_labels")
    valid = (
        isinstance(terms, list)
        and all(isinstance(term, str) for term in terms)
        and len(set(terms)) == len(terms) > 0
        and isinstance(labels, int)
        and labels >= 2
        and isinstance(settings.get("weights_sha256"), str)
        and isinstance(settings.get("inverse_regularisation"), int | float)
    )
    if not same or not valid:
        raise CheckpointError(f"'{path}' has settings that this version does not write; train the linear model again")
    return settings
