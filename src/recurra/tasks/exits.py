"""A run whose exit rule is chosen, judged and timed: the interface that `recurra.study.exits` uses for any task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from recurra.core.exits_record import EarlyExitRecord, TimedEarlyExit
from recurra.models.exits.rules import ExitRule
from recurra.models.exits.thresholds import CalibratedExits

# Names of the timed variants.
FULL, EXITS = "full", "exits"


@dataclass(frozen=True)
class MeasuredExit:
    """The effect of an exit rule on rows that were not used to choose it, and its time if that was measured.

    Attributes:
        full: Quality of the full model: nats a token, or accuracy.
        agreement: Share of rows whose label is the full model's; None where there are no labels.
        taken: Rows or tokens by the recurrences that they took, in their order.
    """

    label: str
    split: str
    full: float
    exits: float
    agreement: float | None
    taken: dict[int, int]
    timed: Sequence[TimedEarlyExit] = ()

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        judged = {key: value for key, value in vars(self).items() if key not in ("label", "timed")}
        return {
            "label": self.label,
            "judged": judged | {"taken": {str(number): rows for number, rows in self.taken.items()}},
            "timed": [{**timed.plain(), "speed_up": timed.speed_up} for timed in self.timed],
        }

    def record(self) -> EarlyExitRecord:
        """The record that is kept of it."""
        common = {"label": self.label, "taken": self.taken, "timed": list(self.timed)}
        if self.agreement is None:
            return EarlyExitRecord(loss=self.exits, **common)
        return EarlyExitRecord(accuracy=self.exits, agreement=self.agreement, **common)


class ExitSubject(Protocol):
    """A run whose exit rule is chosen on its selection split, and judged and timed on its reported one."""

    run_id: str
    chosen_on: str
    model: Any
    unit: str
    quality: str
    timed: str

    def choose(self, keep: float, kind: str) -> CalibratedExits:
        """Chooses a threshold."""

    def judge(self, rule: ExitRule, label: str = "") -> MeasuredExit:
        """Judges a rule; its own description is the default label."""

    def calls(self, rule: ExitRule) -> Mapping[str, Callable[[Any], Any]]:
        """The timed functions by name: ``full`` and ``exits``."""

    def batches(self, batch_size: int) -> Sequence[Any]:
        """The batches on which it is timed."""
