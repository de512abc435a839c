"""A run whose exit rule is chosen, judged and timed: the interface that `recurra.study.exits` uses for any task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from recurra.core.exits_record import EarlyExitRecord
from recurra.models.exits.rules import ExitRule
from recurra.models.exits.thresholds import CalibratedExits

# Names of the timed variants.
FULL, EXITS = "full", "exits"


class ExitSubject(Protocol):
    """A run whose exit rule is chosen on its selection split, and judged and timed on its reported one, ``split``."""

    run_id: str
    chosen_on: str
    split: str
    model: Any
    unit: str
    quality: str
    timed: str

    @property
    def full(self) -> float:
        """Quality of the full model on the reported split: nats a token, or accuracy."""

    def choose(self, keep: float, kind: str) -> CalibratedExits:
        """Chooses a threshold."""

    def judge(self, rule: ExitRule, label: str = "") -> EarlyExitRecord:
        """Judges a rule, without timing it; its own description is the default label."""

    def calls(self, rule: ExitRule) -> Mapping[str, Callable[[Any], Any]]:
        """The timed functions by name: ``full`` and ``exits``."""

    def batches(self, batch_size: int) -> Sequence[Any]:
        """The batches on which it is timed."""
