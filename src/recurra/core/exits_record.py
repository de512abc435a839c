"""What leaving early gave for a run: kept beside its record, shown by the report of its study."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from recurra.core.configuration import HashedSettings
from recurra.core.packed import in_study
from recurra.core.record_parts import EnvironmentRecord
from recurra.core.sealed import Sealed

EXITS_NAME = "exits.json"


class TimedEarlyExit(HashedSettings):
    """Milliseconds a row at one batch size, in full and leaving early; of a language model for some tokens of it."""

    batch_size: int
    full_ms: float
    exits_ms: float

    @property
    def speed_up(self) -> float:
        """How many times as fast."""
        return self.full_ms / self.exits_ms


class EarlyExitRecord(HashedSettings):
    """One way of leaving, on the reported split.

    Attributes:
        loss: Of a language model, in nats a token as decoding has it.
        accuracy: Of a classifier.
        agreement: Of a classifier: share of rows that keep the full model's label.
        taken: Tokens or rows by the recurrences that they took.
    """

    label: str
    loss: float | None = None
    accuracy: float | None = None
    agreement: float | None = None
    taken: dict[int, int]
    timed: list[TimedEarlyExit]

    @property
    def mean_recurrences(self) -> float:
        """Recurrences that a token or a row takes."""
        return sum(number * count for number, count in self.taken.items()) / sum(self.taken.values())


class ExitsRecord(Sealed):
    """Early exits of one run.

    ``fixed`` is what nobody chose: every exit by itself, then the published schedule (older records lack it).
    ``chosen`` is none if no threshold keeps what was asked.
    """

    schema_version: Literal[1] = 1
    run_id: str
    num_recurrences: int
    split: str
    chosen_on: str
    asked: str
    full_loss: float | None = None
    full_accuracy: float | None = None
    fixed: list[EarlyExitRecord]
    chosen: EarlyExitRecord | None
    environment: EnvironmentRecord


def read_exits(folder: Path) -> ExitsRecord | None:
    """Returns what was kept in a run's folder; none if nothing was."""
    path = folder / EXITS_NAME
    if not in_study(path):
        return None
    return ExitsRecord.read(path, what="exits of a run", cure="measure them again: recurra exits RUN --keep")
