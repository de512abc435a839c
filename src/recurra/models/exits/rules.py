"""The exit rules. A new one is a registered class here, and a test: all else finds it by its name. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from recurra.core.errors import ConfigurationError
from recurra.models.exits.measures import CONFIDENCE, ENTROPY, ExitMeasure, confidence, entropy, every_row
from recurra.models.exits.registry import register_rule
from recurra.models.exits.rule import Bound, Decision, ExitRule, HasExits, ThresholdRule, check_exit


@register_rule
@dataclass(frozen=True)
class ConfidenceRule(ThresholdRule):
    """Stops when the largest probability is at least ``max(floor, start * decay ** recurrence)``.

    The defaults are the schedule of "CRT-Deep", section 3.3; what several positions say is averaged.

    Attributes:
        start: Threshold before the first recurrence.
        decay: What each recurrence multiplies it with.
        floor: What it does not fall below.

    Raises:
        ConfigurationError: For a value that is no probability above 0.
    """

    name: ClassVar[str] = "confidence"
    summary: ClassVar[str] = "confidence (the papers' schedule)"
    measure: ClassVar[ExitMeasure] = ExitMeasure(CONFIDENCE, confidence, rises=True)

    start: float = 0.92
    decay: float = 0.98
    floor: float = 0.80

    def __post_init__(self) -> None:
        for name in ("start", "decay", "floor"):
            value = getattr(self, name)
            if not (math.isfinite(value) and 0 < value <= 1):
                raise ConfigurationError(
                    f"{'threshold' if name != 'decay' else name} is {value:g}; allowed for rule '{self.name}': "
                    "above 0, at most 1: a probability"
                )

    @classmethod
    def make(cls, **options: Any) -> Self:
        """The papers' schedule, or a constant ``threshold``."""
        return cls.constant(options["threshold"]) if options else cls()

    @classmethod
    def constant(cls, threshold: float) -> Self:
        """The same threshold after every recurrence."""
        return cls(start=threshold, decay=1.0, floor=threshold)

    def threshold(self, recurrence: int) -> float:
        """Least confidence with which a row stops after ``recurrence`` recurrences."""
        return max(self.floor, self.start * self.decay**recurrence)

    def bound(self, recurrence: int) -> float:
        """Least confidence."""
        return self.threshold(recurrence)

    def describe(self) -> str:
        """Says it in a few words."""
        if self.decay == 1:
            return f"confidence of at least {max(self.floor, self.start):g}"
        return f"confidence of at least max({self.floor:g}, {self.start:g} * {self.decay:g}^recurrence)"


@register_rule
@dataclass(frozen=True)
class EntropyRule(ThresholdRule):
    """Stops when the entropy of what the head says, in nats, is at most ``threshold``; several positions' mean.

    Raises:
        ConfigurationError: For a threshold that is not above 0.
    """

    name: ClassVar[str] = "entropy"
    summary: ClassVar[str] = "entropy"
    measure: ClassVar[ExitMeasure] = ExitMeasure(ENTROPY, entropy, rises=False)

    threshold: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.threshold) and self.threshold > 0):
            raise ConfigurationError(
                f"threshold is {self.threshold:g}; allowed for rule '{self.name}': nats above 0, "
                "below the logarithm of the number of classes"
            )

    @classmethod
    def make(cls, **options: Any) -> Self:
        """With a ``threshold``, which must be given."""
        if not options:
            raise ConfigurationError(f"rule '{cls.name}' needs a threshold in nats, for example 0.5")
        return cls(**options)

    def bound(self, recurrence: int) -> float:  # noqa: ARG002 - a rule's
        """Most entropy, in nats."""
        return self.threshold

    def check(self, config: HasExits, classes: int) -> None:
        """Also refuses a threshold that every row meets."""
        super().check(config, classes)
        if self.threshold >= math.log(classes):
            raise ConfigurationError(
                f"threshold is {self.threshold:g}; allowed for rule '{self.name}' of this model: above 0, below "
                f"{math.log(classes):.4g} nats, the entropy of {classes:,} equally probable classes"
            )

    def describe(self) -> str:
        """Says it in a few words."""
        return f"entropy of at most {self.threshold:g} nats"


@register_rule
@dataclass(frozen=True)
class FixedExit(ExitRule):
    """Stops after one and the same exit, whatever it says."""

    name: ClassVar[str] = "fixed"
    summary: ClassVar[str] = "fixed"
    options: ClassVar[frozenset[str]] = frozenset({"after"})

    after: int

    @classmethod
    def make(cls, **options: Any) -> Self:
        """With the exit as ``after``, which must be given."""
        if not options:
            raise ConfigurationError(f"rule '{cls.name}' needs the exit after which a row stops")
        return cls(**options)

    def decide(self, logits: Any, recurrence: int, *, counted: Any = None, state: Any = None) -> Decision:  # noqa: ARG002
        """All or none, whatever they say."""
        rows = every_row(logits)
        return Decision(rows if recurrence >= self.after else ~rows)

    def asks(self, recurrence: int) -> bool:
        """Only of the exit itself."""
        return recurrence >= self.after

    def last(self, config: HasExits) -> int:  # noqa: ARG002 - a rule's
        """The exit."""
        return self.after

    @property
    def always_after(self) -> int:
        """The exit."""
        return self.after

    def as_bound(self, recurrence: int) -> Bound:
        """Any confidence will do from the exit on, and none before."""
        return Bound(CONFIDENCE, 0.0 if recurrence >= self.after else math.inf)

    def check(self, config: HasExits, classes: int) -> None:  # noqa: ARG002 - a rule's
        """Holds it against the heads that were trained."""
        check_exit(config, self.after)

    def describe(self) -> str:
        """Says it in a few words."""
        return f"always after recurrence {self.after}"
