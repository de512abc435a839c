"""When a row stops: rules that read what an exit's head says."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from recurra.core.errors import ConfigurationError, unknown
from recurra.models.configuration import RecurraConfig
from recurra.models.heads import check_exit

CONFIDENCE, ENTROPY, FIXED = "confidence", "entropy", "fixed"
RULES = (CONFIDENCE, ENTROPY, FIXED)


class ExitRule(ABC):
    """Decides after an exit which rows go no deeper. What that exit's head said is then the row's output."""

    @abstractmethod
    def leaves(self, logits: Tensor, recurrence: int, counted: Tensor | None = None) -> Tensor:
        """Decides for each row.

        Args:
            logits: What the head after ``recurrence`` says, ``(rows, classes)`` or ``(rows, positions, classes)``.
            recurrence: Recurrences computed so far.
            counted: ``(rows, positions)``, true at the positions that decide, by their mean; none means all.

        Returns:
            ``(rows,)``, true where a row leaves.
        """

    def asks(self, recurrence: int) -> bool:  # noqa: ARG002 - a rule's
        """Whether the head after ``recurrence`` has to be computed to decide."""
        return True

    def last(self, config: RecurraConfig) -> int:
        """Recurrence after which no row goes on, whatever is said."""
        return int(config.num_recurrences)

    def check(self, config: RecurraConfig, classes: int) -> None:  # noqa: ARG002 - a rule's
        """Holds the rule against a model with heads over ``classes`` classes.

        Raises:
            ConfigurationError: If it cannot decide anything there.
        """
        if not config.exits:
            raise ConfigurationError(
                "an exit rule needs exits, and this model was trained without; "
                "train one with exits, for example model.exits=[1], or leave the rule out"
            )

    @abstractmethod
    def describe(self) -> str:
        """Says it in a few words."""

    @abstractmethod
    def plain(self) -> dict[str, Any]:
        """As JSON values."""


@dataclass(frozen=True)
class ConfidenceRule(ExitRule):
    """Leaves when the largest probability is at least ``max(floor, start * decay ** recurrence)``.

    The defaults are the schedule of "CRT-Deep", section 3.3; what several positions say is averaged.

    Attributes:
        start: Threshold before the first recurrence.
        decay: What each recurrence multiplies it with.
        floor: What it does not fall below.

    Raises:
        ConfigurationError: For a value that is no probability above 0.
    """

    start: float = 0.92
    decay: float = 0.98
    floor: float = 0.80

    def __post_init__(self) -> None:
        for name in ("start", "decay", "floor"):
            value = getattr(self, name)
            if not (math.isfinite(value) and 0 < value <= 1):
                raise ConfigurationError(
                    f"{'threshold' if name != 'decay' else name} is {value:g}; allowed for rule '{CONFIDENCE}': "
                    "above 0, at most 1: a probability"
                )

    @classmethod
    def constant(cls, threshold: float) -> ConfidenceRule:
        """The same threshold after every recurrence."""
        return cls(start=threshold, decay=1.0, floor=threshold)

    def threshold(self, recurrence: int) -> float:
        """Least confidence with which a row leaves after ``recurrence`` recurrences."""
        return max(self.floor, self.start * self.decay**recurrence)

    def leaves(self, logits: Tensor, recurrence: int, counted: Tensor | None = None) -> Tensor:
        """Compares the mean confidence of each row."""
        return mean_of_rows(confidence(logits), counted) >= self.threshold(recurrence)

    def describe(self) -> str:
        """Says it in a few words."""
        if self.decay == 1:
            return f"confidence of at least {max(self.floor, self.start):g}"
        return f"confidence of at least max({self.floor:g}, {self.start:g} * {self.decay:g}^recurrence)"

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return {"rule": CONFIDENCE, "start": self.start, "decay": self.decay, "floor": self.floor}


@dataclass(frozen=True)
class EntropyRule(ExitRule):
    """Leaves when the entropy of what the head says, in nats, is at most ``threshold``; several positions' mean.

    Raises:
        ConfigurationError: For a threshold that is not above 0.
    """

    threshold: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.threshold) and self.threshold > 0):
            raise ConfigurationError(
                f"threshold is {self.threshold:g}; allowed for rule '{ENTROPY}': nats above 0, "
                "below the logarithm of the number of classes"
            )

    def leaves(self, logits: Tensor, recurrence: int, counted: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Compares the mean entropy of each row."""
        return mean_of_rows(entropy(logits), counted) <= self.threshold

    def check(self, config: RecurraConfig, classes: int) -> None:
        """Also refuses a threshold that every row meets."""
        super().check(config, classes)
        if self.threshold >= math.log(classes):
            raise ConfigurationError(
                f"threshold is {self.threshold:g}; allowed for rule '{ENTROPY}' of this model: above 0, below "
                f"{math.log(classes):.4g} nats, the entropy of {classes:,} equally probable classes"
            )

    def describe(self) -> str:
        """Says it in a few words."""
        return f"entropy of at most {self.threshold:g} nats"

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return {"rule": ENTROPY, "threshold": self.threshold}


@dataclass(frozen=True)
class FixedExit(ExitRule):
    """Leaves after one and the same exit, whatever it says."""

    after: int

    def leaves(self, logits: Tensor, recurrence: int, counted: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """All rows or none."""
        return torch.full(logits.shape[:1], recurrence >= self.after, device=logits.device)

    def asks(self, recurrence: int) -> bool:
        """Only the exit itself speaks."""
        return recurrence >= self.after

    def last(self, config: RecurraConfig) -> int:  # noqa: ARG002 - a rule's
        """The exit."""
        return self.after

    def check(self, config: RecurraConfig, classes: int) -> None:  # noqa: ARG002 - a rule's
        """Holds it against the heads that were trained."""
        check_exit(config, self.after)

    def describe(self) -> str:
        """Says it in a few words."""
        return f"always after recurrence {self.after}"

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return {"rule": FIXED, "after": self.after}


def make_rule(name: str | None, *, threshold: float | None = None, after: int | None = None) -> ExitRule | None:
    """Returns the rule that a user names.

    Args:
        name: One of `RULES`; none means no rule, or ``fixed`` if ``after`` is given.
        threshold: Of ``confidence`` (none takes the papers' schedule) or ``entropy``.
        after: Recurrence of ``fixed``.

    Raises:
        ConfigurationError: For an unknown name, a value out of range, or one that the rule has no use for.
    """
    chosen = FIXED if name is None and after is not None else name
    if chosen is not None and chosen not in RULES:
        raise ConfigurationError(unknown("exit rule", chosen, RULES))
    if after is not None and chosen != FIXED:
        raise ConfigurationError(f"an exit is for rule '{FIXED}', not for '{chosen}'; give one or the other")
    if threshold is not None and chosen not in (CONFIDENCE, ENTROPY):
        raise ConfigurationError(f"a threshold is for rule '{CONFIDENCE}' or '{ENTROPY}'; name one of them")
    if chosen == CONFIDENCE:
        return ConfidenceRule() if threshold is None else ConfidenceRule.constant(threshold)
    if chosen == ENTROPY:
        if threshold is None:
            raise ConfigurationError(f"rule '{ENTROPY}' needs a threshold in nats, for example 0.5")
        return EntropyRule(threshold)
    if chosen == FIXED:
        if after is None:
            raise ConfigurationError(f"rule '{FIXED}' needs the exit after which a row leaves")
        return FixedExit(after)
    return None


def confidence(logits: Tensor) -> Tensor:
    """Largest probability over the last axis."""
    return (logits - logits.amax(-1, keepdim=True)).exp().sum(-1).reciprocal()


def entropy(logits: Tensor) -> Tensor:
    """Entropy over the last axis, in nats."""
    scores = logits.log_softmax(-1)
    return -(scores.exp() * scores).sum(-1)


def mean_of_rows(values: Tensor, counted: Tensor | None) -> Tensor:
    """Means of ``(rows, positions)`` over the positions that count; ``(rows,)`` as it is."""
    if values.dim() == 1:
        return values
    if counted is None:
        return values.mean(1)
    weights = counted.to(values.dtype)
    return (values * weights).sum(1) / weights.sum(1).clamp(min=1)
