"""How deep a classifier goes: where its heads stand, how far each text went, and what was thought on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from recurra.core.errors import ConfigurationError
from recurra.models.exits.rule import ExitRule
from recurra.models.exits.thresholds import depths_under

Logits = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Depth:
    """Where a model has outputs.

    Attributes:
        exits: Recurrences after which a head of their own stands.
        num_recurrences: After which the final head stands.
        labels: Number of labels.
        windows: Most windows that a text is read in.
    """

    exits: tuple[int, ...]
    num_recurrences: int
    labels: int
    windows: int = 1

    @property
    def output_after(self) -> tuple[int, ...]:
        """Recurrences after which it has an output: those with a head; without exits all, by the final head."""
        if self.exits:
            return (*self.exits, self.num_recurrences)
        return tuple(range(1, self.num_recurrences + 1))

    @property
    def own_heads(self) -> bool:
        """Whether what it says there comes from heads that were trained there."""
        return bool(self.exits) or self.num_recurrences == 1

    def check_one_window(self) -> None:
        """Refuses early exits of texts that are read in windows: a rule looks at one of them, the label is of all.

        Raises:
            ConfigurationError: If texts may have several windows.
        """
        if self.windows > 1:
            raise ConfigurationError(
                f"an exit rule stops single windows, and this model reads a text in up to {self.windows}, whose scores "
                "are pooled; leave the rule out: texts take all recurrences"
            )


@dataclass(frozen=True, eq=False)
class Early:
    """What was said of texts that could leave early.

    Attributes:
        logits: Of the head at which each text left, ``(texts, labels)``.
        exited_after: Recurrences that it took, ``(texts,)``.
    """

    logits: Logits
    exited_after: Integers


@runtime_checkable
class DeepEngine(Protocol):
    """An engine of a model with recurrences.

    Attributes:
        depth: Where it has outputs.
    """

    depth: Depth

    def leave_early(self, texts: Sequence[str], batch_size: int, rule: ExitRule) -> Early:
        """Computes cleaned texts, each no deeper than the rule lets it."""
        ...

    def logits_by_recurrence(self, texts: Sequence[str], batch_size: int) -> dict[int, Logits]:
        """Returns its logits after each recurrence of `Depth.output_after`, ``(texts, labels)``, for cleaned texts."""
        ...


@dataclass(frozen=True, eq=False)
class Trace:
    """What a model thought of texts on the way.

    Attributes:
        after: Recurrences after which it was read, ``n`` of them; the last is the model's depth.
        probabilities: ``(texts, n, labels)``.
        own_heads: Whether each has a head that was trained there. If not, the final head was applied early, to states
            that it never saw in training: what it says of them is a hint at most.
        stops_after: Recurrence after which each text would stop under the rule in force, ``(texts,)``; none without.
    """

    after: tuple[int, ...]
    probabilities: npt.NDArray[np.float64]
    own_heads: bool
    stops_after: Integers | None = None

    def __len__(self) -> int:
        return len(self.probabilities)

    def part(self, start: int, end: int) -> Trace:
        """That of some of the texts."""
        stops = None if self.stops_after is None else self.stops_after[start:end]
        return replace(self, probabilities=self.probabilities[start:end], stops_after=stops)


@dataclass(frozen=True, eq=False)
class Classified:
    """What a classifier says of texts.

    Attributes:
        probabilities: ``(texts, labels)``.
        exited_after: Recurrences after which the head stands that said so, ``(texts,)``; none without a rule.
        trace: What it thought on the way, if it was asked for.
    """

    probabilities: npt.NDArray[np.float64]
    exited_after: npt.NDArray[np.int64] | None = None
    trace: Trace | None = None


def trace_of(
    depth: Depth,
    logits: Mapping[int, Logits],
    rule: ExitRule | None,
    probabilities: Callable[[Logits], npt.NDArray[np.float64]],
) -> Classified:
    """Puts together what a model said after each recurrence; a text's label is that of where it stops.

    Args:
        depth: Where the model has outputs.
        logits: Logits ``(texts, labels)`` by recurrence.
        rule: When a text stops; none lets nobody stop early.
        probabilities: What makes them of logits.
    """
    places = depth.output_after
    said = np.stack([probabilities(logits[number]) for number in places], axis=1)
    stops = None if rule is None else depths_under(rule, logits)
    trace = Trace(places, said, depth.own_heads, stops)
    last = np.full(len(said), places[-1]) if stops is None else stops
    return Classified(said[np.arange(len(said)), np.searchsorted(places, last)], stops, trace)


def nobody(depth: Depth) -> Early:
    """What is said of no texts."""
    return Early(np.empty((0, depth.labels), dtype=np.float32), np.empty(0, dtype=np.int64))


def no_outputs(depth: Depth) -> dict[int, Logits]:
    """What is said of no texts after each recurrence."""
    return dict.fromkeys(depth.output_after, np.empty((0, depth.labels), dtype=np.float32))


def softmax(logits: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
    """Returns probabilities over the last axis."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)
