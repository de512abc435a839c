"""What an exit rule is: a pure function of what a head says, and of a state that is handed to it. Imports no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol, Self

from recurra.core.errors import ConfigurationError
from recurra.models.exits.measures import ExitMeasure, mean_of_rows


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


@dataclass(frozen=True)
class Decision:
    """What a rule decides after one exit.

    Attributes:
        exits: ``(rows,)``, true where a row stops here.
        state: What the rule wants to be handed with its next decision, the rows along the first axis; the loop hands
            on the part of the rows that remain. None for a rule that remembers nothing.
    """

    exits: Any
    state: Any = None


@dataclass(frozen=True)
class Bound:
    """A decision as a comparison of one number with another: for graphs that can do no more.

    Attributes:
        measure: Name of what is compared; the surer side of the bound stops.
        value: The bound.
    """

    measure: str
    value: float


@dataclass(frozen=True)
class ExitRule(ABC):
    """Decides after an exit which rows stop there. That exit's logits are then the row's output.

    A rule holds its numbers and nothing else, and never changes: one rule may serve many batches at a time. A subclass
    is a frozen dataclass.

    Attributes:
        name: How a user and a record call it.
        summary: How a list of rules calls it.
        options: What a user may give it, of ``threshold`` and ``after``.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    options: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def make(cls, **options: Any) -> Self:
        """Returns the rule with what a user gave of its `options`, which may be nothing.

        Raises:
            ConfigurationError: For a value out of range, or one that is needed and was not given.
        """
        return cls(**options)

    @abstractmethod
    def decide(self, logits: Any, recurrence: int, *, counted: Any = None, state: Any = None) -> Decision:
        """Decides for each row.

        Args:
            logits: What the head after ``recurrence`` says, ``(rows, classes)`` or ``(rows, positions, classes)``; a
                tensor or an array.
            recurrence: Recurrences computed so far.
            counted: ``(rows, positions)``, true at the positions that decide; none means all.
            state: `Decision.state` of the decision before, of these rows; none at the first.
        """

    def asks(self, recurrence: int) -> bool:  # noqa: ARG002 - a rule's
        """Whether the head after ``recurrence`` has to be computed to decide."""
        return True

    def last(self, config: HasExits) -> int:
        """Recurrence after which no row goes on, whatever the logits."""
        return int(config.num_recurrences)

    @property
    def always_after(self) -> int | None:
        """Recurrence after which every row stops, if the rule looks at nothing; else none."""
        return None

    def as_bound(self, recurrence: int) -> Bound | None:  # noqa: ARG002 - a rule's
        """The decision after ``recurrence`` as a comparison; none if it is more than that."""
        return None

    def check(self, config: HasExits, classes: int) -> None:  # noqa: ARG002 - a rule's
        """Holds the rule against a model with heads over ``classes`` classes.

        Raises:
            ConfigurationError: If it cannot decide anything there.
        """
        check_has_exits(config)

    @abstractmethod
    def describe(self) -> str:
        """Says it in a few words."""

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return {"rule": self.name, **{field.name: getattr(self, field.name) for field in fields(self)}}


@dataclass(frozen=True)
class ThresholdRule(ExitRule):
    """Stops a row whose head is sure enough; what several positions say is averaged.

    Its threshold can be chosen on validation rows (`recurra.models.exits.thresholds`).

    Attributes:
        measure: What of the head is read.
    """

    options: ClassVar[frozenset[str]] = frozenset({"threshold"})
    measure: ClassVar[ExitMeasure]

    @abstractmethod
    def bound(self, recurrence: int) -> float:
        """Where the measure has to get to after ``recurrence``."""

    def decide(self, logits: Any, recurrence: int, *, counted: Any = None, state: Any = None) -> Decision:  # noqa: ARG002
        """Compares the mean of each row's positions with the bound."""
        values = mean_of_rows(self.measure.of(logits), counted)
        return Decision(self.measure.reaches(values, self.bound(recurrence)))

    def as_bound(self, recurrence: int) -> Bound:
        """It is one."""
        return Bound(self.measure.name, self.bound(recurrence))


def check_has_exits(config: HasExits) -> None:
    """Checks that a model has intermediate heads.

    Raises:
        ConfigurationError: If it has none.
    """
    if not config.exits:
        raise ConfigurationError(
            "an exit rule needs exits, and this model was trained without; "
            "train one with exits, for example model.exits=[1], or leave the rule out"
        )


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
