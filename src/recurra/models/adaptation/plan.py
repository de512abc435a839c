"""Which layers of an encoder stay apart, which are shared, and how often: ``0 (3 4)x2 5``. Imports no torch."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Self

from recurra.core.errors import ConfigurationError

EXAMPLE = "0 (3 4)x2 5"
_TOKEN = re.compile(r"\s*(?:(\d{1,4})(?:-(\d{1,4}))?(?!\d)|(\()|(\)\s*x\s*(\d{1,4})(?!\d)))")
_MOST_LAYERS = 1024


@dataclass(frozen=True)
class SharingPlan:
    """Layers of an encoder, by numbers from 0, as they are applied; a layer named twice has two sets of weights."""

    prelude: tuple[int, ...]
    core: tuple[int, ...]
    coda: tuple[int, ...]
    recurrences: int

    @classmethod
    def stack(cls, layers: int) -> Self:
        """All layers of an encoder, once each."""
        return cls((), tuple(range(layers)), (), 1)

    @classmethod
    def parse(cls, text: str, layers: int) -> Self:
        """Reads a plan such as ``0 (3 4)x2 5`` or ``0-2 5``; an empty one is all layers, once each."""
        if not text.strip():
            return cls.stack(layers)
        parts: list[list[int]] = [[]]
        recurrences = position = 0
        while position < len(text.rstrip()):
            match = _TOKEN.match(text, position)
            if match is None:
                raise _unreadable(text, f"'{text[position:].strip()[:20]}' is neither a layer nor a group")
            first, last, opens, closes, times = match.groups()
            if opens and len(parts) > 1:
                raise _unreadable(text, "there is more than one group of shared layers, or one within another")
            if closes and (len(parts) != 2 or not parts[1]):
                raise _unreadable(text, "a group is closed that has no layers or was not opened")
            if opens:
                parts.append([])
            elif closes:
                recurrences = int(times)
                parts.append([])
            else:
                parts[-1] += _numbers(text, int(first), int(last or first), layers)
            position = match.end()
        if len(parts) == 2:
            raise _unreadable(text, "a group is not closed by ')xN'")
        if sum(map(len, parts)) > _MOST_LAYERS or recurrences > _MOST_LAYERS:
            raise _unreadable(text, f"more than {_MOST_LAYERS} layers or applications are asked for")
        if len(parts) == 1:
            return cls((), tuple(parts[0]), (), 1)
        if recurrences < 1:
            raise _unreadable(text, "a group is applied at least once")
        prelude, core, coda = map(tuple, parts)
        return cls(prelude, core, coda, recurrences)

    @property
    def stored(self) -> int:
        """Number of layers with weights of their own."""
        return len(self.prelude) + len(self.core) + len(self.coda)

    @property
    def applied(self) -> int:
        """Number of layer applications from input to output."""
        return len(self.prelude) + self.recurrences * len(self.core) + len(self.coda)

    @property
    def order(self) -> tuple[int, ...]:
        """The layers as they are applied."""
        return self.prelude + self.core * self.recurrences + self.coda

    def __str__(self) -> str:
        """The plan as it is written."""
        core = " ".join(map(str, self.core))
        shared = core if self.recurrences == 1 else f"({core})x{self.recurrences}"
        return " ".join(filter(None, [" ".join(map(str, self.prelude)), shared, " ".join(map(str, self.coda))]))


def _numbers(text: str, first: int, last: int, layers: int) -> list[int]:
    if last < first:
        raise _unreadable(text, f"the range {first}-{last} runs backwards")
    if last >= layers:
        raise ConfigurationError(
            f"plan '{text}': the encoder has no layer {last}; allowed: 0 to {layers - 1}, as in '{EXAMPLE}'"
        )
    return list(range(first, last + 1))


def _unreadable(text: str, why: str) -> ConfigurationError:
    start = text if len(text) <= 80 else f"{text[:77]}..."
    return ConfigurationError(
        f"plan '{start}': {why}; write layers by number and at most one group that is applied again, as in '{EXAMPLE}'"
    )


def align(student: SharingPlan, layers: int) -> list[int]:
    """Teacher layers that match each of the student's layer applications, as numbers from 1.

    Equally many match one by one; if the student only leaves layers out, each matches itself; else at even distances.
    """
    order = student.order
    if len(order) == layers:
        return list(range(1, layers + 1))
    if all(first < second for first, second in itertools.pairwise(order)):
        return [number + 1 for number in order]
    return [max(1, round(application * layers / len(order))) for application in range(1, len(order) + 1)]
