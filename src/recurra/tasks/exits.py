"""A run whose exit rule is chosen, judged and timed: what `recurra.study.exits` asks of one, whatever its task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from recurra.models.exits.rules import ExitRule
from recurra.models.exits.thresholds import CalibratedExits

# Names of what is timed.
FULL, EXITS = "full", "exits"


@dataclass(frozen=True)
class ExitQuality:
    """What an exit rule does on rows that did not choose it.

    Attributes:
        full: Quality without the rule: nats a token, or accuracy.
        agreement: Share of rows whose label is the full model's; none where there are no labels.
        exited_after: Rows or tokens by the recurrences that they took.
    """

    split: str
    full: float
    exits: float
    agreement: float | None
    exited_after: dict[int, int]


class ExitSubject(Protocol):
    """A run whose exit rule is chosen, judged and timed."""

    run_id: str
    chosen_on: str
    model: Any
    unit: str
    quality: str
    timed: str

    def choose(self, keep: float, kind: str) -> CalibratedExits:
        """Chooses a threshold on the selection split."""
        ...

    def judge(self, rule: ExitRule) -> ExitQuality:
        """Judges a rule on the reported rows."""
        ...

    def calls(self, rule: ExitRule) -> Mapping[str, Callable[[Any], Any]]:
        """What is timed, by name: ``full`` and ``exits``."""
        ...

    def batches(self, batch_size: int) -> Sequence[Any]:
        """What it is timed on."""
        ...
