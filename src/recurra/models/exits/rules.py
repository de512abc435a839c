"""The rules that decide when a row stops early, their measures and their names. Imports no torch."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from recurra.core.errors import ConfigurationError, unknown

CONFIDENCE, ENTROPY = "confidence", "entropy"


@dataclass(frozen=True)
class ExitMeasure:
    """A measure of how sure a head is: ``of`` maps logits ``(..., classes)`` to non-negative numbers ``(...)``."""

    name: str
    of: Callable[[Any], Any]
    rises: bool

    def reaches(self, values: Any, bound: float) -> Any:
        """Whether each of ``values`` is as sure as ``bound`` or surer."""
        return values >= bound if self.rises else values <= bound


def confidence(logits: Any) -> Any:
    """Largest probability over the last axis."""
    library = _library_of(logits)
    return 1 / library.exp(logits - library.amax(logits, axis=-1, keepdims=True)).sum(-1)


def entropy(logits: Any) -> Any:
    """Entropy over the last axis, in nats."""
    library = _library_of(logits)
    if hasattr(library, "log_softmax"):
        scores = library.log_softmax(logits, -1)
        return -(library.exp(scores) * scores).sum(-1)
    scores = logits - library.amax(logits, axis=-1, keepdims=True)
    powers = library.exp(scores)
    total = powers.sum(-1)
    return library.log(total) - (powers * scores).sum(-1) / total


def mean_of_rows(values: Any, counted: Any = None) -> Any:
    """Means ``(rows,)`` of ``(rows, positions)``, over all or the ``counted`` positions; ``(rows,)`` stays as it is."""
    if values.ndim == 1:
        return values
    if counted is None:
        return values.mean(1)
    return (values * counted).sum(1) / counted.sum(1).clip(1)


def every_row(logits: Any) -> Any:
    """True for each row of ``(rows, ..., classes)``, ``(rows,)``."""
    return (logits[(slice(None), *(0,) * (logits.ndim - 1))] > 0) | True


def _library_of(values: Any) -> Any:
    """The library of an array; it has been imported, since the array exists."""
    return sys.modules[type(values).__module__.partition(".")[0]]


class Bound(NamedTuple):
    """A decision as a comparison of a measure with a number, for graphs that can do nothing else."""

    measure: str
    value: float


@dataclass(frozen=True)
class ExitRule(ABC):
    """Decides after an exit which rows stop there; that exit's logits are then the row's output.

    A subclass is a frozen dataclass of its numbers, so that one rule can serve many batches at a time.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    options: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def make(cls, **options: Any) -> Self:
        """Returns the rule with those of its `options` that a user gave, perhaps none."""
        return cls(**options)

    @abstractmethod
    def decide(self, logits: Any, recurrence: int, *, counted: Any = None, rows: Any = None) -> Any:
        """Whether each remaining row stops, ``(rows,)``; ``rows`` are their indices in the batch.

        Logits are ``(rows, classes)``, or ``(rows, positions, classes)`` of which some positions are ``counted``.
        """

    def asks(self, recurrence: int) -> bool:  # noqa: ARG002 - a rule's
        """Whether the head after ``recurrence`` has to be computed to decide."""
        return True

    def last(self, config: Any) -> int:
        """Recurrence after which no row goes on, whatever the logits."""
        return int(config.num_recurrences)

    def stops(self, config: Any) -> Collection[int]:
        """Recurrences after which rows may stop."""
        return config.exits

    @property
    def always_after(self) -> int | None:
        """Recurrence after which every row stops, if the rule does not look at logits."""
        return None

    def as_bound(self, recurrence: int) -> Bound | None:  # noqa: ARG002 - a rule's
        """The decision after ``recurrence`` if it is a comparison with a number, else None."""
        return None

    def check(self, config: Any, classes: int) -> None:  # noqa: ARG002 - a rule's
        """Checks that the rule fits a model with heads over ``classes`` classes."""
        check_has_exits(config)

    def describe(self) -> str:
        """Describes the rule in a few words."""
        return self.name

    def plain(self) -> dict[str, Any]:
        """The rule as JSON values."""
        return {"rule": self.name, **{field.name: getattr(self, field.name) for field in fields(self)}}


@dataclass(frozen=True)
class ThresholdRule(ExitRule):
    """Stops a row whose head is sure enough, at a threshold that validation rows can choose (`thresholds.py`)."""

    options: ClassVar[frozenset[str]] = frozenset({"threshold"})
    measure: ClassVar[ExitMeasure]

    @abstractmethod
    def bound(self, recurrence: int) -> float:
        """The value that the measure must reach after ``recurrence``."""

    def decide(self, logits: Any, recurrence: int, *, counted: Any = None, rows: Any = None) -> Any:  # noqa: ARG002
        return self.measure.reaches(mean_of_rows(self.measure.of(logits), counted), self.bound(recurrence))

    def as_bound(self, recurrence: int) -> Bound:
        return Bound(self.measure.name, self.bound(recurrence))


def check_has_exits(config: Any) -> None:
    """Checks that a model has intermediate heads."""
    if not config.exits:
        raise ConfigurationError(
            "an exit rule needs exits, and this model was trained without; "
            "train one with exits, for example model.exits=[1], or leave the rule out"
        )


def check_exit(config: Any, exit_after: int | None) -> int:
    """Returns the recurrence after which a model is to stop; None means the last one."""
    if exit_after is None or exit_after == config.num_recurrences:
        return config.num_recurrences
    if exit_after not in config.exits:
        allowed = ", ".join(map(str, [*config.exits, config.num_recurrences]))
        raise ConfigurationError(f"there is no head after recurrence {exit_after}; allowed for this model: {allowed}")
    return exit_after


# The name of an export's own rule, which was chosen on validation rows when it was made; no rule by itself.
CALIBRATED = "calibrated"

Rule = TypeVar("Rule", bound=type[ExitRule])
_RULES: dict[str, type[ExitRule]] = {}


def register_rule(rule: Rule) -> Rule:
    """Registers a rule by its name for commands, records and calibration."""
    _RULES[rule.name] = rule
    return rule


def summarise_rules() -> str:
    """All rules in one line, for a command's help."""
    *others, last = (rule.summary for rule in _RULES.values())
    return f"{', '.join(others)}, or {last}"


def threshold_rule_names() -> tuple[str, ...]:
    """Names of the rules whose threshold can be chosen on validation rows."""
    return tuple(name for name, rule in _RULES.items() if issubclass(rule, ThresholdRule))


def threshold_rule(name: str) -> type[ThresholdRule]:
    """Returns a rule whose threshold can be chosen on validation rows."""
    rule = _RULES.get(name)
    if rule is None or not issubclass(rule, ThresholdRule):
        raise ConfigurationError(unknown("exit rule to calibrate", name, threshold_rule_names()))
    return rule


def make_rule(
    name: str | None, *, threshold: float | None = None, after: int | None = None, known: Sequence[str] = ()
) -> ExitRule | None:
    """Returns the rule that a user names."""
    if name is not None and name not in _RULES:
        raise ConfigurationError(unknown("exit rule", name, (*_RULES, *known)))
    if name is None and after is not None:
        name = _rules_with("after")[0]
    rule = None if name is None else _RULES[name]
    options = {key: value for key, value in (("threshold", threshold), ("after", after)) if value is not None}
    for option in sorted(options.keys() - (rule.options if rule else ())):
        allowed = " or ".join(f"'{other}'" for other in _rules_with(option))
        if option == "after":
            raise ConfigurationError(f"an exit is for rule {allowed}, not for '{name}'; give one or the other")
        raise ConfigurationError(f"a threshold is for rule {allowed}; name one of them")
    return None if rule is None else rule.make(**options)


def read_rule(values: Mapping[str, Any]) -> ExitRule:
    """Returns the rule that `ExitRule.plain` wrote."""
    name, numbers = str(values.get("rule")), {key: value for key, value in values.items() if key != "rule"}
    if name not in _RULES:
        raise ConfigurationError(unknown("exit rule", name, _RULES))
    try:
        return _RULES[name](**numbers)
    except TypeError as error:
        raise ConfigurationError(f"exit rule '{name}' cannot be read from {sorted(numbers)}: {error}") from error


def _rules_with(option: str) -> list[str]:
    return [name for name, rule in _RULES.items() if option in rule.options]


@register_rule
@dataclass(frozen=True)
class ConfidenceRule(ThresholdRule):
    """Largest probability of at least ``max(floor, start * decay ** recurrence)``, by default as in CRT-Deep, 3.3."""

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
        return cls.constant(options["threshold"]) if options else cls()

    @classmethod
    def constant(cls, threshold: float) -> Self:
        return cls(start=threshold, decay=1.0, floor=threshold)

    def bound(self, recurrence: int) -> float:
        return max(self.floor, self.start * self.decay**recurrence)

    def describe(self) -> str:
        if self.decay == 1:
            return f"confidence of at least {max(self.floor, self.start):g}"
        return f"confidence of at least max({self.floor:g}, {self.start:g} * {self.decay:g}^recurrence)"


@register_rule
@dataclass(frozen=True)
class EntropyRule(ThresholdRule):
    """Stops when the entropy of the head's probabilities is at most ``threshold`` nats, on average over positions."""

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
        if not options:
            raise ConfigurationError(f"rule '{cls.name}' needs a threshold in nats, for example 0.5")
        return cls(**options)

    def bound(self, recurrence: int) -> float:  # noqa: ARG002 - a rule's
        return self.threshold

    def check(self, config: Any, classes: int) -> None:
        """Also refuses a threshold that every row meets."""
        super().check(config, classes)
        if self.threshold >= math.log(classes):
            raise ConfigurationError(
                f"threshold is {self.threshold:g}; allowed for rule '{self.name}' of this model: above 0, below "
                f"{math.log(classes):.4g} nats, the entropy of {classes:,} equally probable classes"
            )

    def describe(self) -> str:
        return f"entropy of at most {self.threshold:g} nats"


@register_rule
@dataclass(frozen=True)
class FixedExit(ExitRule):
    """Stops every row after the same exit, whatever its logits."""

    name: ClassVar[str] = "fixed"
    summary: ClassVar[str] = "fixed"
    options: ClassVar[frozenset[str]] = frozenset({"after"})

    after: int

    def __post_init__(self) -> None:
        after: object = self.after
        if isinstance(after, bool) or not isinstance(after, Integral) or int(after) < 1:
            raise ConfigurationError(
                f"after is {self.after!r}; allowed for rule '{self.name}': a whole number of recurrences from 1"
            )

    @classmethod
    def make(cls, **options: Any) -> Self:
        if not options:
            raise ConfigurationError(f"rule '{cls.name}' needs the exit after which a row stops")
        return cls(**options)

    def decide(self, logits: Any, recurrence: int, *, counted: Any = None, rows: Any = None) -> Any:  # noqa: ARG002
        stopping = every_row(logits)
        return stopping if recurrence >= self.after else ~stopping

    def asks(self, recurrence: int) -> bool:
        return recurrence >= self.after

    @property
    def always_after(self) -> int:
        return self.after

    def as_bound(self, recurrence: int) -> Bound:
        """Any confidence is enough from the exit on, and none is before it."""
        return Bound(CONFIDENCE, 0.0 if recurrence >= self.after else math.inf)

    def check(self, config: Any, classes: int) -> None:  # noqa: ARG002 - a rule's
        """Checks that the model has a head for this exit."""
        check_exit(config, self.after)

    def describe(self) -> str:
        return f"always after recurrence {self.after}"


@dataclass(frozen=True)
class CountedRecurrences(ExitRule):
    """Gives each row its own number of recurrences. It belongs to one batch, so users cannot name it.

    Attributes:
        every: Whether the head is computed after each recurrence, even if no row stops there.
    """

    name: ClassVar[str] = "counted"

    recurrences: Any
    every: bool = False

    def decide(self, logits: Any, recurrence: int, *, counted: Any = None, rows: Any = None) -> Any:  # noqa: ARG002
        return self.recurrences[rows] <= recurrence

    def asks(self, recurrence: int) -> bool:
        return self.every or bool((self.recurrences == recurrence).any())

    def last(self, config: Any) -> int:  # noqa: ARG002 - a rule's
        return int(self.recurrences.max())

    def stops(self, config: Any) -> Collection[int]:
        return range(1, self.last(config))


@dataclass(frozen=True)
class LearnedHalt(ExitRule):
    """Stops a row where the model's own halting head gives a probability above one half. Users cannot name it.

    The logit of that head comes after those of the labels.
    """

    name: ClassVar[str] = "learned"

    def decide(self, logits: Any, recurrence: int, *, counted: Any = None, rows: Any = None) -> Any:  # noqa: ARG002
        return logits[:, -1] > 0

    def stops(self, config: Any) -> Collection[int]:
        return range(1, self.last(config))
