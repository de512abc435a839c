"""The measured early exits of a run, stored beside its record and shown by the report of its study."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from recurra.core.configuration import HashedSettings
from recurra.core.packed import in_study
from recurra.core.record_parts import EnvironmentRecord
from recurra.core.sealed import Sealed

EXITS_NAME = "exits.json"


class TimedEarlyExit(HashedSettings):
    """Milliseconds a row at one batch size, in full and with early exits; for a language model, for several tokens."""

    batch_size: int
    full_ms: float
    exits_ms: float

    @property
    def speed_up(self) -> float:
        """How many times as fast early exits are."""
        return self.full_ms / self.exits_ms


class EarlyExitRecord(HashedSettings):
    """One way to exit early, measured on the reported split.

    Attributes:
        loss: For a language model: loss in nats a token, as in decoding.
        accuracy: For a classifier: its accuracy.
        agreement: For a classifier: share of rows that keep the full model's label.
        taken: Number of tokens or rows by the recurrences that they took.
    """

    label: str
    loss: float | None = None
    accuracy: float | None = None
    agreement: float | None = None
    taken: dict[int, int]
    timed: list[TimedEarlyExit]

    @property
    def score(self) -> float | None:
        """Loss of a language model, or accuracy of a classifier."""
        return self.accuracy if self.loss is None else self.loss

    @property
    def mean_recurrences(self) -> float:
        """Mean recurrences of a token or a row."""
        return sum(number * count for number, count in self.taken.items()) / sum(self.taken.values())


class ExitsRecord(Sealed):
    """Early exits of one run.

    ``fixed`` needs no choice: every exit by itself, then the published schedule (older records lack it).
    ``chosen`` is None if no threshold keeps the quality that was asked for.
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
    """Returns the record in a run's folder; None if there is none."""
    path = folder / EXITS_NAME
    if not in_study(path):
        return None
    return ExitsRecord.read(path, what="exits of a run", cure="measure them again: recurra exits RUN --keep")
