"""When a row stops: rules as numbers, for whatever computes the model. Imports no torch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from recurra.core.errors import ConfigurationError, unknown

CONFIDENCE, ENTROPY, FIXED = "confidence", "entropy", "fixed"
RULES = (CONFIDENCE, ENTROPY, FIXED)
# The rule that an export carries, chosen on validation rows when it was made.
CALIBRATED = "calibrated"


class HasExits(Protocol):
    """What a rule has to know of a model."""

    @property
    def exits(self) -> Sequence[int]:
        """Recurrences after which an intermediate head stands, in rising order."""
        ...

    @property
    def num_recurrences(self) -> int:
        """How often the core is applied."""
        ...


class ExitRule(ABC):
    """Decides after an exit which rows go no deeper. What that exit's head said is then the row's output.

    A rule is numbers alone; what reads a head's logits and holds it against them stands in `recurra.models.exits` for
    torch and in `recurra.models.exit_thresholds` for NumPy.
    """

    @property
    def reads(self) -> str | None:
        """What of a head is read: ``confidence``, ``entropy``, or none if it does not matter what it says."""
        return CONFIDENCE

    @abstractmethod
    def bound(self, recurrence: int) -> float:
        """With at least so much confidence, or at most so much entropy, a row leaves after ``recurrence``."""

    def decides(self, values: Any, recurrence: int) -> Any:
        """Who leaves, ``(rows,)``, given the confidence or the entropy of each row as an array of any library."""
        bound = self.bound(recurrence)
        return values <= bound if self.reads == ENTROPY else values >= bound

    def asks(self, recurrence: int) -> bool:  # noqa: ARG002 - a rule's
        """Whether the head after ``recurrence`` has to be computed to decide."""
        return True

    def last(self, config: HasExits) -> int:
        """Recurrence after which no row goes on, whatever is said."""
        return int(config.num_recurrences)

    def check(self, config: HasExits, classes: int) -> None:  # noqa: ARG002 - a rule's
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

    def bound(self, recurrence: int) -> float:
        """Least confidence."""
        return self.threshold(recurrence)

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

    @property
    def reads(self) -> str | None:
        """The entropy."""
        return ENTROPY

    def bound(self, recurrence: int) -> float:  # noqa: ARG002 - a rule's
        """Most entropy, in nats."""
        return self.threshold

    def check(self, config: HasExits, classes: int) -> None:
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

    @property
    def reads(self) -> str | None:
        """Nothing."""
        return None

    def bound(self, recurrence: int) -> float:
        """Any confidence will do from the exit on, and none before."""
        return 0.0 if recurrence >= self.after else math.inf

    def asks(self, recurrence: int) -> bool:
        """Only the exit itself speaks."""
        return recurrence >= self.after

    def last(self, config: HasExits) -> int:  # noqa: ARG002 - a rule's
        """The exit."""
        return self.after

    def check(self, config: HasExits, classes: int) -> None:  # noqa: ARG002 - a rule's
        """Holds it against the heads that were trained."""
        check_exit(config, self.after)

    def describe(self) -> str:
        """Says it in a few words."""
        return f"always after recurrence {self.after}"

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return {"rule": FIXED, "after": self.after}


def make_rule(
    name: str | None,
    *,
    threshold: float | None = None,
    after: int | None = None,
    known: Sequence[str] = RULES,
) -> ExitRule | None:
    """Returns the rule that a user names.

    Args:
        name: One of `RULES`; none means no rule, or ``fixed`` if ``after`` is given.
        threshold: Of ``confidence`` (none takes the papers' schedule) or ``entropy``.
        after: Recurrence of ``fixed``.
        known: Names that a message tells of.

    Raises:
        ConfigurationError: For an unknown name, a value out of range, or one that the rule has no use for.
    """
    chosen = FIXED if name is None and after is not None else name
    if chosen is not None and chosen not in RULES:
        raise ConfigurationError(unknown("exit rule", chosen, known))
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


def read_rule(values: Mapping[str, Any]) -> ExitRule:
    """Returns the rule that `ExitRule.plain` wrote.

    Raises:
        ConfigurationError: If it is none of ours.
    """
    kinds: dict[str, type[ConfidenceRule | EntropyRule | FixedExit]] = {
        CONFIDENCE: ConfidenceRule,
        ENTROPY: EntropyRule,
        FIXED: FixedExit,
    }
    name, numbers = str(values.get("rule")), {key: value for key, value in values.items() if key != "rule"}
    if name not in kinds:
        raise ConfigurationError(unknown("exit rule", name, RULES))
    try:
        return kinds[name](**numbers)
    except TypeError as error:
        raise ConfigurationError(f"exit rule '{name}' cannot be read from {sorted(numbers)}: {error}") from error


def check_exit(config: HasExits, exit_after: int | None) -> int:
    """Returns the recurrence after which a model is to stop; none means the last one.

    Raises:
        ConfigurationError: If no head was trained there.
    """
    if exit_after is None or exit_after == config.num_recurrences:
        return config.num_recurrences
    if exit_after not in config.exits:
        allowed = ", ".join(map(str, [*config.exits, config.num_recurrences]))
        raise ConfigurationError(f"no head stands after recurrence {exit_after}; allowed for this model: {allowed}")
    return exit_after
