"""What every linear control is: one row of weights a label over the features of a text, in two files without pickle.

What predicts needs numpy alone, so that a small environment can; only `recurra.models.controls.fitting` takes SciPy and
scikit-learn.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from recurra.core.errors import CheckpointError, DataError
from recurra.core.files import atomic_path, read_json, storage_errors, write_json

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
# Whose features are made together: what is needed on the way would be several times as much as the features.
TEXTS_AT_ONCE = 4_096


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Features of texts that are not 0, text after text (compressed sparse rows).

    Attributes:
        values: The features, ``(entries,)``, float64.
        columns: Which each is, ``(entries,)``; 32 bits do.
        offsets: Where the entries of a text begin, and where the last one's end, ``(texts + 1,)``.
        width: How many features there are.
    """

    values: Floats
    columns: npt.NDArray[np.integer[Any]]
    offsets: Labels
    width: int

    @classmethod
    def joined(cls, parts: Sequence[SparseRows]) -> SparseRows:
        """Puts the features of the same texts side by side."""
        if len(parts) == 1:
            return parts[0]
        starts = np.cumsum([0, *(part.width for part in parts)]).tolist()
        order = np.argsort(np.concatenate([part.rows for part in parts]), kind="stable")
        columns = np.concatenate([part.columns + start for part, start in zip(parts, starts[:-1], strict=True)])
        values = np.concatenate([part.values for part in parts])
        offsets = np.sum([part.offsets for part in parts], axis=0)
        return cls(values[order], columns[order], offsets, starts[-1])

    @classmethod
    def stacked(cls, parts: Sequence[SparseRows]) -> SparseRows:
        """Puts the features of texts below those of others."""
        if len(parts) == 1:
            return parts[0]
        starts = np.cumsum([0, *(part.offsets[-1] for part in parts[:-1])])
        offsets = [part.offsets[:-1] + start for part, start in zip(parts, starts, strict=True)]
        return cls(
            np.concatenate([part.values for part in parts]),
            np.concatenate([part.columns for part in parts]),
            np.concatenate([*offsets, [starts[-1] + parts[-1].offsets[-1]]]),
            parts[0].width,
        )

    @property
    def rows(self) -> Labels:
        """The text of each entry, ``(entries,)``."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def of_length_one(self) -> SparseRows:
        """The same with rows whose squares sum to 1; a row of zeros, or without entries, stays so."""
        rows = self.rows
        lengths = np.sqrt(np.bincount(rows, weights=self.values**2, minlength=len(self.offsets) - 1))
        return SparseRows(self.values / np.where(lengths > 0, lengths, 1)[rows], self.columns, self.offsets, self.width)

    def scores(self, weight: npt.NDArray[np.float32]) -> Floats:
        """The product with the weights of each label, ``(labels, features)``: ``(texts, labels)``, summed in float64.

        The sums are made in the order of the entries, so that they do not depend on the other texts.
        """
        rows, texts = self.rows, len(self.offsets) - 1
        products = (self.values * label[self.columns].astype(np.float64) for label in weight)
        return np.stack([np.bincount(rows, weights=each, minlength=texts) for each in products], axis=1)


def in_parts(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """The texts, as many at once as features are made of, in one part at least; none depend on other texts."""
    return (texts[start : start + TEXTS_AT_ONCE] for start in range(0, max(1, len(texts)), TEXTS_AT_ONCE))


class LinearModel(ABC):
    """Scores of a text: its features times the weights, plus a bias a label.

    Attributes:
        num_labels: Number of classes.
        independent: Whether each label has a regression of its own against all texts without it.
        inverse_regularisation: The ``C`` that it was fitted with.
        fitted_by: How its weights were found, in a few words.
    """

    FORMAT: ClassVar[str]
    VERSIONS: ClassVar[tuple[int, ...]]
    SETTINGS_NAME: ClassVar[str]
    WEIGHTS_NAME: ClassVar[str]

    def __init__(
        self, weight: npt.ArrayLike, bias: npt.ArrayLike, c: float, *, independent: bool = False, fitted_by: str = ""
    ) -> None:
        """Takes the weights.

        Args:
            weight: ``(1, features)`` for two classes (the score of label 1), else ``(labels, features)``.
            bias: ``(1,)`` or ``(labels,)``.
            c: The inverse regularisation that they were fitted with.
            independent: Whether a text may have any number of labels.
            fitted_by: How they were found.
        """
        self.inverse_regularisation = float(c)
        self._weight = np.ascontiguousarray(weight, dtype=np.float32)
        self._bias = np.asarray(bias, dtype=np.float32)
        self.independent = independent
        self.fitted_by = fitted_by
        self.num_labels = 2 if len(self._bias) == 1 and not independent else len(self._bias)

    @abstractmethod
    def features(self, texts: Sequence[str]) -> SparseRows:
        """Features of cleaned texts, ``(texts, features)``."""

    @property
    @abstractmethod
    def description(self) -> str:
        """Features and fit in a line."""

    @property
    def weight(self) -> npt.NDArray[np.float32]:
        """One row of weights a label, one in all for two classes: ``(rows, features)``."""
        return self._weight

    @property
    def bias(self) -> npt.NDArray[np.float32]:
        """One a row of `weight`."""
        return self._bias

    @property
    @abstractmethod
    def features_per_word(self) -> float:
        """Features that a word of a text adds to it."""

    @property
    def num_parameters(self) -> int:
        """Learned weights and biases; what is counted from texts without their labels is not among them."""
        return int(self._weight.size + self._bias.size)

    @property
    def num_features(self) -> int:
        """Columns of the weights."""
        return int(self._weight.shape[1])

    def logits(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Scores, shape ``(texts, labels)``, float32; their softmax gives the probabilities.

        With a regression a label, it is the logistic function of each that does.

        With two classes the score of label 1 is split evenly: the logits are minus and plus half of it.
        """
        if len(texts) == 0:
            return np.zeros((0, self.num_labels), dtype=np.float32)
        parts = [self.features(part).scores(self._weight) for part in in_parts(texts)]
        scores = np.concatenate(parts) + self._bias.astype(np.float64)
        # What FP32 cannot hold becomes infinite, which the caller is told of; numpy need not warn as well.
        with np.errstate(over="ignore"):
            return label_scores(scores, independent=self.independent).astype(np.float32)

    def loss(self, texts: Sequence[str], labels: npt.ArrayLike) -> float:
        """Mean cross-entropy in nats; with a regression a label, over labels too."""
        truth = np.asarray(labels, dtype=np.int64)
        return cross_entropy(self.logits(texts).astype(np.float64), truth)

    def _save(self, folder: Path | str, tensors: Mapping[str, npt.NDArray[Any]], settings: Mapping[str, Any]) -> None:
        """Writes the weights (safetensors) and the settings (JSON), no pickle.

        The settings carry a hash of the weights file and are written last: a folder whose save was cut short is
        recognised.

        Raises:
            StorageError: If it cannot be written.
        """
        target = Path(folder)
        weights = save({"weight": self._weight, "bias": self._bias, **tensors}, metadata={"format": self.FORMAT})
        with storage_errors(target):
            target.mkdir(parents=True, exist_ok=True)
        with atomic_path(target / self.WEIGHTS_NAME) as temporary:
            temporary.write_bytes(weights)
        values = {
            "format": self.FORMAT,
            "num_labels": self.num_labels,
            "inverse_regularisation": self.inverse_regularisation,
            "weights_sha256": hashlib.sha256(weights).hexdigest(),
            "fitted_by": self.fitted_by,
            **settings,
            **({"independent": True} if self.independent else {}),
        }
        write_json(target / self.SETTINGS_NAME, values, indent=None)

    @classmethod
    def _read(cls, folder: Path | str) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Reads settings and weights that belong together, all finite; what is in the settings beside is unchecked.

        Raises:
            CheckpointError: If a file is missing, truncated, or not ours.
        """
        settings = cls._read_settings(Path(folder) / cls.SETTINGS_NAME)
        path = Path(folder) / cls.WEIGHTS_NAME
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            tensors = load_file(path)
        except FileNotFoundError as error:
            raise CheckpointError(f"'{path}' is missing; train the linear model again") from error
        # numpy itself refuses shapes and kinds of numbers that the format allows.
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise CheckpointError(f"'{path}' is not a whole safetensors file; train the linear model again") from error
        if digest != settings["weights_sha256"]:
            raise CheckpointError(f"'{path}' does not belong to '{cls.SETTINGS_NAME}' beside it; train the model again")
        if not all(np.isfinite(tensor).all() for tensor in tensors.values()):
            raise CheckpointError(f"'{path}' holds weights that are not finite; train the linear model again")
        return settings, tensors

    @classmethod
    def _check_shapes(
        cls, folder: Path | str, settings: Mapping[str, Any], tensors: Mapping[str, npt.NDArray[Any]], features: int,
        **others: tuple[int, ...],
    ) -> None:  # fmt: skip
        labels = settings["num_labels"]
        rows = 1 if labels == 2 and settings.get("independent") is not True else labels
        expected = {"weight": (rows, features), "bias": (rows,), **others}
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        if shapes != expected:
            path = Path(folder) / cls.WEIGHTS_NAME
            raise CheckpointError(f"'{path}' holds {shapes}, the settings say {expected}; train the model again")

    @classmethod
    def _read_settings(cls, path: Path) -> dict[str, Any]:
        try:
            settings = read_json(path)
        except FileNotFoundError as error:
            message = f"'{path}' is missing: not a linear model of ours; give a folder made by us"
            raise CheckpointError(message) from error
        except (OSError, ValueError) as error:
            raise CheckpointError(f"'{path}' is not whole JSON (truncated?); train the linear model again") from error
        if not isinstance(settings, dict) or settings.get("format") != cls.FORMAT:
            raise CheckpointError(f"'{path}' is not the settings of a linear model of ours; give a folder made by us")
        if settings.get("version") not in cls.VERSIONS:
            raise CheckpointError(
                f"'{path}' has format version {settings.get('version')}, this one reads {max(cls.VERSIONS)}; "
                "upgrade recurra"
            )
        valid = (
            isinstance(settings.get("num_labels"), int)
            and settings["num_labels"] >= (1 if settings.get("independent") is True else 2)
            and isinstance(settings.get("weights_sha256"), str)
            and isinstance(settings.get("inverse_regularisation"), int | float)
        )
        if not valid:
            raise foreign_settings(path)
        return settings

    @staticmethod
    def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of the constructor that the settings hold."""
        return {
            "c": settings["inverse_regularisation"],
            "independent": settings.get("independent") is True,
            "fitted_by": str(settings.get("fitted_by", "")),
        }

    @classmethod
    @abstractmethod
    def load(cls, folder: Path | str) -> Self:
        """Reads what ``save`` wrote; the logits are equal to the last bit.

        Raises:
            CheckpointError: If a file is missing, truncated, or not ours.
        """

    @abstractmethod
    def save(self, folder: Path | str) -> None:
        """Writes the model into a folder.

        Raises:
            StorageError: If it cannot be written.
        """


def foreign_settings(path: Path) -> CheckpointError:
    """The error for settings that nobody of ours wrote."""
    return CheckpointError(f"'{path}' has settings that this version does not write; train the linear model again")


def checked_labels(texts: Sequence[str], labels: npt.ArrayLike, num_labels: int) -> Labels:
    """Labels as integers ``(texts,)``; or 0 and 1 a label, ``(texts, labels)``.

    Raises:
        DataError: If they are of one class alone, or beyond the number of labels.
        ValueError: If texts and labels differ in number.
    """
    truth = np.asarray(labels, dtype=np.int64)
    independent = truth.ndim == 2
    if truth.shape != ((len(texts), num_labels) if independent else (len(texts),)):
        raise ValueError(f"{len(texts)} texts, but labels of shape {truth.shape}")
    num_labels = 2 if independent else num_labels
    classes = np.unique(truth)
    if len(classes) < 2:
        raise DataError(f"training rows have the labels {classes.tolist()} only; at least two classes are needed")
    if classes[0] < 0 or classes[-1] >= num_labels:
        raise DataError(f"labels are {classes.tolist()}; allowed: 0 to {num_labels - 1}")
    return truth


def label_scores(scores: Floats, *, independent: bool) -> Floats:
    """Logits ``(texts, labels)`` from scores; two classes share one score, minus and plus half of it."""
    if scores.shape[1] == 1 and not independent:
        return np.concatenate([-scores / 2, scores / 2], axis=1)
    return scores


def cross_entropy(logits: Floats, truth: Labels) -> float:
    """Mean cross-entropy in nats of logits ``(texts, labels)``; of 0 and 1 a label, over labels too."""
    if truth.ndim == 2:
        return float(np.logaddexp(0.0, np.where(truth == 1, -1.0, 1.0) * logits).mean())
    shifted = logits - logits.max(axis=1, keepdims=True)
    normalizers = np.log(np.exp(shifted).sum(axis=1))
    return float(-(shifted[np.arange(len(truth)), truth] - normalizers).mean())
