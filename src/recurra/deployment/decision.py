"""How logits become probabilities and labels: one label a text, or any number of them. Imports no torch."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from recurra.core.errors import CheckpointError, ConfigurationError
from recurra.core.record_parts import AnyDecisionRecord, DecisionRecord, OneLabelRecord
from recurra.deployment.engines.computation import softmax

Floats = npt.NDArray[np.floating[Any]]
Probabilities = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Bounds = float | Sequence[float]
AS_JSON = "json"
# Of one text: nobody reads the words of more, and a server's answer stays in proportion to its work.
MOST_EXPLAINED_LABELS = 20


def sigmoid(scores: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
    """The logistic function, without overflow; by NumPy alone, for serving needs no SciPy."""
    falling = np.exp(-np.abs(scores.astype(np.float64)))
    return np.where(scores >= 0, 1.0, falling) / (1.0 + falling)


class LabelDecision(ABC):
    """What the logits of a model mean."""

    # Whether a text has exactly one label.
    exclusive: bool

    def __init__(self, label_names: Sequence[str]) -> None:
        self.label_names = list(label_names)

    @abstractmethod
    def probabilities(self, logits: Floats) -> Probabilities:
        """Returns probabilities over the last axis, in the shape of the logits."""

    @abstractmethod
    def decide(self, scores: Floats) -> npt.NDArray[Any]:
        """Decides by probabilities ``(texts, labels)``: label indices ``(texts,)``, or truth values as the scores."""

    def of_logits(self, logits: Floats) -> npt.NDArray[Any]:
        """The same by logits."""
        return self.decide(self.probabilities(logits))

    def labels(self, probabilities: Probabilities) -> list[list[str]]:
        """The labels of each text."""
        return self._names(self.decide(probabilities))

    def explained(self, probabilities: Probabilities) -> list[list[int]]:
        """Indices of the labels of each text whose words are told: those that it gets, else the nearest to it."""
        return _indices(self.decide(probabilities))

    @abstractmethod
    def text(self, labels: Sequence[str]) -> str:
        """The labels of one text as one text."""

    @abstractmethod
    def record(self) -> AnyDecisionRecord | None:
        """What records and manifests keep; none for the softmax of the logits as they are."""

    @property
    def abstains(self) -> bool:
        """Whether a text may get no label where it would have one."""
        return False

    def abstained(self, probabilities: Probabilities) -> Mask | None:
        """Which texts get none for that, ``(texts,)``; nothing if all get theirs."""
        del probabilities
        return None

    @abstractmethod
    def abstaining_below(self, bounds: Bounds) -> LabelDecision:
        """The same that gives no label where its probability is lower than a bound, one for all or one for each."""

    def texts(self, probabilities: Probabilities) -> list[str]:
        """The labels of each text as one text."""
        return [self.text(labels) for labels in self.labels(probabilities)]

    def truth_texts(self, truth: npt.NDArray[Any]) -> list[str]:
        """The same of true labels: indices ``(texts,)``, or 0 and 1 ``(texts, labels)``."""
        return [self.text(labels) for labels in self._names(truth)]

    def same(self, logits: Floats, others: npt.NDArray[Any]) -> Mask:
        """Whether each text gets just these labels, ``(texts,)``; they come as `decide` gives them."""
        equal: Mask = np.equal(self.of_logits(logits), others)
        return equal if equal.ndim == 1 else np.all(equal, axis=1)

    def agreement(self, logits: Floats, others: npt.NDArray[Any]) -> float:
        """Share of labels that are the same: of texts, or where each label is decided for itself of all decisions."""
        return float(np.equal(self.of_logits(logits), others).mean())

    def _names(self, decided: npt.NDArray[Any]) -> list[list[str]]:
        return [[self.label_names[index] for index in row] for row in _indices(decided)]


def _indices(decided: npt.NDArray[Any]) -> list[list[int]]:
    """Labels of each text, given as one index each, ``(texts,)``, or as truth values ``(texts, labels)``."""
    if decided.ndim == 1:
        return [[index] for index in decided.tolist()]
    return [np.flatnonzero(row).tolist() for row in decided]


class OneLabel(LabelDecision):
    """The most probable label, by the softmax of the logits divided by a temperature.

    Args:
        temperature: Above 1 it draws probabilities together, below 1 apart; no label changes.
        abstain_below: Of each label, the probability below which a text that would get it gets none; no bounds give
            every text a label.
    """

    exclusive = True

    def __init__(
        self, label_names: Sequence[str], temperature: float = 1.0, abstain_below: Sequence[float] | None = None
    ) -> None:
        super().__init__(label_names)
        self.temperature = temperature
        self.abstain_below = None if abstain_below is None else np.asarray(abstain_below, dtype=np.float64)

    def probabilities(self, logits: Floats) -> Probabilities:
        shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
        # The largest is 0 and stays so; a quotient below all numbers is a probability of 0.
        with np.errstate(over="ignore"):
            return softmax(shifted / self.temperature)

    def decide(self, scores: Floats) -> npt.NDArray[Any]:
        return scores.argmax(axis=1)

    def of_logits(self, logits: Floats) -> npt.NDArray[Any]:
        """The same: the softmax keeps the order."""
        return self.decide(logits)

    def text(self, labels: Sequence[str]) -> str:
        return labels[0]

    @property
    def abstains(self) -> bool:
        return self.abstain_below is not None

    def abstained(self, probabilities: Probabilities) -> Mask | None:
        """Where the highest probability is lower than the bound of its label."""
        if self.abstain_below is None:
            return None
        return np.asarray(probabilities.max(axis=1) < self.abstain_below[self.decide(probabilities)])

    def abstaining_below(self, bounds: Bounds) -> OneLabel:
        """With these bounds, or with its own where they are higher."""
        wanted = np.broadcast_to(np.asarray(bounds, dtype=np.float64), len(self.label_names))
        own = wanted if self.abstain_below is None else self.abstain_below
        return OneLabel(self.label_names, self.temperature, np.maximum(own, wanted).tolist())

    def record(self) -> OneLabelRecord | None:
        """Temperature and bounds; nothing at 1 and without them."""
        if self.temperature == 1 and self.abstain_below is None:
            return None
        bounds = None if self.abstain_below is None else self.abstain_below.tolist()
        return OneLabelRecord(temperature=self.temperature, abstain_below=bounds)


class AnyLabels(LabelDecision):
    """Each label for itself: a text has those whose probability is not below their threshold, perhaps none.

    Args:
        separator: What stands between labels in one text; ``json`` writes a JSON list.
        temperature: Above 1 it draws the probabilities of all labels towards one half, below 1 away from it.
    """

    exclusive = False

    def __init__(
        self, label_names: Sequence[str], thresholds: Sequence[float], separator: str, temperature: float = 1.0
    ) -> None:
        super().__init__(label_names)
        self.thresholds = np.asarray(thresholds, dtype=np.float64)
        self.separator = separator
        self.temperature = temperature

    def probabilities(self, logits: Floats) -> Probabilities:
        """The logistic function at the temperature."""
        # A quotient beyond all numbers is a probability of 0 or 1.
        with np.errstate(over="ignore"):
            values: Probabilities = sigmoid(logits.astype(np.float64) / self.temperature)
        return values

    def decide(self, scores: Floats) -> Mask:
        return np.asarray(scores >= self.thresholds)

    def explained(self, probabilities: Probabilities) -> list[list[int]]:
        """Those given, the `MOST_EXPLAINED_LABELS` farthest above their thresholds; else the one nearest to its own."""
        margins = probabilities - self.thresholds
        most = np.clip(self.decide(probabilities).sum(axis=1), 1, MOST_EXPLAINED_LABELS)
        order = np.argsort(-margins, axis=1, kind="stable")
        return [sorted(row[:count].tolist()) for row, count in zip(order, most.tolist(), strict=True)]

    def text(self, labels: Sequence[str]) -> str:
        """Joined; none give the empty text, or an empty list in JSON."""
        if self.separator == AS_JSON:
            return json.dumps(list(labels), ensure_ascii=False)
        return self.separator.join(labels)

    def abstaining_below(self, bounds: Bounds) -> LabelDecision:
        """Refuses: a label that is not likely enough is not given anyway."""
        del bounds
        raise ConfigurationError(
            "a multi-label model has a threshold for each label and gives none where none is reached; "
            "leave --abstain-below out"
        )

    def record(self) -> DecisionRecord:
        return DecisionRecord(
            thresholds=self.thresholds.tolist(), separator=self.separator, temperature=self.temperature
        )


def read_decision(label_names: Sequence[str], record: AnyDecisionRecord | None) -> LabelDecision:
    """The decision that a record or manifest keeps; none is a temperature of 1."""
    if record is None:
        return OneLabel(label_names)
    bounds = record.abstain_below if isinstance(record, OneLabelRecord) else record.thresholds
    if bounds is not None and len(bounds) != len(label_names):
        raise CheckpointError(
            f"the model has {len(label_names)} labels and {len(bounds)} thresholds: they are not of one model; "
            "copy or train it again"
        )
    if isinstance(record, OneLabelRecord):
        return OneLabel(label_names, record.temperature, record.abstain_below)
    return AnyLabels(label_names, record.thresholds, record.separator, record.temperature)
