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
# Most labels that are explained for one text: few readers want more, and it bounds the size of a server's answer.
MOST_EXPLAINED_LABELS = 20


def sigmoid(scores: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
    """The logistic function without overflow, in NumPy, so that serving needs no SciPy."""
    falling = np.exp(-np.abs(scores.astype(np.float64)))
    return np.where(scores >= 0, 1.0, falling) / (1.0 + falling)


class LabelDecision(ABC):
    """Turns the logits of a model into probabilities and labels."""

    # Whether a text has exactly one label.
    exclusive: bool
    # What logits are divided by before they become probabilities.
    temperature: float
    # For each label, the probability below which a text gets no label instead of it; none if every text gets one.
    abstain_below: Probabilities | None = None

    def __init__(self, label_names: Sequence[str]) -> None:
        self.label_names = list(label_names)

    @abstractmethod
    def probabilities(self, logits: Floats) -> Probabilities:
        """Returns probabilities over the last axis, in the shape of the logits."""

    @abstractmethod
    def decide(self, scores: Floats) -> npt.NDArray[Any]:
        """Decides by probabilities ``(texts, labels)``: indices ``(texts,)``, or truth values ``(texts, labels)``."""

    def of_logits(self, logits: Floats) -> npt.NDArray[Any]:
        """Decides by logits, as `decide` does by probabilities."""
        return self.decide(self.probabilities(logits))

    def labels(self, probabilities: Probabilities) -> list[list[str]]:
        """The labels of each text."""
        return self._names(self.decide(probabilities))

    def explained(self, probabilities: Probabilities) -> list[list[int]]:
        """Indices of the labels that are explained for each text: the labels it gets, else the nearest one."""
        return _indices(self.decide(probabilities))

    @abstractmethod
    def text(self, labels: Sequence[str]) -> str:
        """The labels of one text as one text."""

    @abstractmethod
    def record(self) -> AnyDecisionRecord | None:
        """The form for records and manifests; none for the plain softmax of the logits."""

    def abstained(self, probabilities: Probabilities) -> Mask | None:
        """Which texts get no label because theirs is too improbable, ``(texts,)``; none if every text gets one."""
        if self.abstain_below is None:
            return None
        return np.asarray(probabilities.max(axis=1) < self.abstain_below[self.decide(probabilities)])

    @abstractmethod
    def abstaining_below(self, bounds: Bounds) -> LabelDecision:
        """A decision that gives no label below a bound of its probability, one bound for all or one for each."""

    def texts(self, decided: npt.NDArray[Any]) -> list[str]:
        """The labels of each text as one text; ``decided`` has the form of `decide`, and may be the true labels."""
        return [self.text(labels) for labels in self._names(decided)]

    def same(self, logits: Floats, others: npt.NDArray[Any]) -> Mask:
        """Whether each text gets exactly the labels ``others``, which have the form of `decide`; ``(texts,)``."""
        equal: Mask = np.equal(self.of_logits(logits), others)
        return equal if equal.ndim == 1 else np.all(equal, axis=1)

    def agreement(self, logits: Floats, others: npt.NDArray[Any]) -> float:
        """Share of texts with the same label; if each label is decided separately, share of equal decisions."""
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

    A temperature above 1 draws probabilities together, one below 1 apart; no label changes.
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
        # The largest logit is 0 after the shift; a quotient of minus infinity gives a probability of 0.
        with np.errstate(over="ignore"):
            return softmax(shifted / self.temperature)

    def decide(self, scores: Floats) -> npt.NDArray[Any]:
        return scores.argmax(axis=1)

    def of_logits(self, logits: Floats) -> npt.NDArray[Any]:
        """Decides by logits: the softmax keeps their order."""
        return self.decide(logits)

    def text(self, labels: Sequence[str]) -> str:
        return labels[0]

    def abstaining_below(self, bounds: Bounds) -> OneLabel:
        """Returns this decision with the higher of these bounds and its present ones."""
        requested = np.broadcast_to(np.asarray(bounds, dtype=np.float64), len(self.label_names))
        present = requested if self.abstain_below is None else self.abstain_below
        return OneLabel(self.label_names, self.temperature, np.maximum(present, requested).tolist())

    def record(self) -> OneLabelRecord | None:
        """Temperature and bounds; none for a temperature of 1 without bounds."""
        if self.temperature == 1 and self.abstain_below is None:
            return None
        bounds = None if self.abstain_below is None else self.abstain_below.tolist()
        return OneLabelRecord(temperature=self.temperature, abstain_below=bounds)


class AnyLabels(LabelDecision):
    """Any number of labels: each one whose probability reaches its threshold, perhaps none.

    Args:
        separator: Stands between labels in one text; ``json`` writes a JSON list.
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
        # An infinite quotient gives a probability of 0 or 1.
        with np.errstate(over="ignore"):
            return sigmoid(logits.astype(np.float64) / self.temperature)

    def decide(self, scores: Floats) -> Mask:
        return np.asarray(scores >= self.thresholds)

    def explained(self, probabilities: Probabilities) -> list[list[int]]:
        """The given labels, at most `MOST_EXPLAINED_LABELS` by distance above threshold; else the one nearest to it."""
        margins = probabilities - self.thresholds
        most = np.clip(self.decide(probabilities).sum(axis=1), 1, MOST_EXPLAINED_LABELS)
        order = np.argsort(-margins, axis=1, kind="stable")
        return [sorted(row[:count].tolist()) for row, count in zip(order, most.tolist(), strict=True)]

    def text(self, labels: Sequence[str]) -> str:
        """The joined labels; without labels the empty text, or an empty JSON list."""
        if self.separator == AS_JSON:
            return json.dumps(list(labels), ensure_ascii=False)
        return self.separator.join(labels)

    def abstaining_below(self, bounds: Bounds) -> LabelDecision:
        """Refuses, because the thresholds already withhold improbable labels."""
        del bounds
        raise ConfigurationError(
            "a multi-label model already has a threshold for each label; leave --abstain-below out"
        )

    def record(self) -> DecisionRecord:
        thresholds = self.thresholds.tolist()
        return DecisionRecord(thresholds=thresholds, separator=self.separator, temperature=self.temperature)


def read_decision(label_names: Sequence[str], record: AnyDecisionRecord | None) -> LabelDecision:
    """The decision of a record or manifest; none means one label at a temperature of 1."""
    if record is None:
        return OneLabel(label_names)
    bounds = record.abstain_below if isinstance(record, OneLabelRecord) else record.thresholds
    if bounds is not None and len(bounds) != len(label_names):
        raise CheckpointError(
            f"the model has {len(label_names)} labels and {len(bounds)} thresholds: they do not belong together; copy "
            "or train it again"
        )
    if isinstance(record, OneLabelRecord):
        return OneLabel(label_names, record.temperature, record.abstain_below)
    return AnyLabels(label_names, record.thresholds, record.separator, record.temperature)
