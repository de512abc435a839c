"""Finished runs as the report reads them, and the tables that they are sorted into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from recurra.core.configuration import content_hash
from recurra.core.exits_record import ExitsRecord
from recurra.core.record import AnyRecord, OneLabelRecord
from recurra.evaluation.predictions import Predictions, read_predictions

_Record = TypeVar("_Record", bound=AnyRecord)


class TableKey(NamedTuple):
    """A key that comparable runs share: fingerprint and part identify the data, training is the protocol."""

    data: str
    protocol: str
    fingerprint: str
    part: str
    training: str
    precision: str


@dataclass(frozen=True)
class LoadedRun:
    """A finished run: the folder it lies in, its record, and the measurements of its exits if they were kept.

    Attributes:
        folder: Its folder; that of the first fold if it was merged.
        folds: The runs that it was merged from; empty for a single run.
    """

    folder: Path
    record: AnyRecord
    exits: ExitsRecord | None = None
    folds: tuple[LoadedRun, ...] = ()

    def record_of(self, kind: type[_Record]) -> _Record:
        """Its record, which must be of this kind."""
        assert isinstance(self.record, kind), f"{self.folder} holds a run of {self.record.task}"
        return self.record

    @property
    def parts(self) -> tuple[LoadedRun, ...]:
        """The runs that lie on disk: this one, or its folds."""
        return self.folds or (self,)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The configuration without the seed."""
        settings = {key: value for key, value in self.record.config.items() if key != "seed"}
        if isinstance(teachers := settings.get("teachers"), list):
            # A teacher of the same study has the run's own seed, which its name holds.
            settings["teachers"] = [{**teacher, "run_id": ""} for teacher in teachers]
        return settings

    @property
    def data_settings(self) -> dict[str, Any]:
        """The configuration of the data; empty if the record has none."""
        data = self.record.config.get("data")
        return data if isinstance(data, dict) else {}

    @cached_property
    def settings_hash(self) -> str:
        """Equal for runs that differ in the seed alone."""
        return content_hash([self.record.model.preset, self.settings])

    def predictions(self, split: str, *, calibrated: bool = False) -> Predictions:
        """Its predictions for the rows of a split; with folds those of all folds, in the order of the rows' identities.

        Args:
            calibrated: Whether logits are divided by the temperature of their run or fold, which ranking by them needs;
                in float64, so that none become equal.

        Raises:
            CheckpointError: If a file is missing or damaged.
        """
        parts = [read_predictions(run.folder, split) for run in self.parts]
        if calibrated:
            parts = [
                replace(part, logits=part.logits.astype(np.float64) / run.temperature)
                for part, run in zip(parts, self.parts, strict=True)
            ]
        if not self.folds:
            return parts[0]
        ids = [row_id for part in parts for row_id in part.ids]
        order = in_order(ids)
        labels, logits = (
            np.concatenate([getattr(part, name) for part in parts])[order] for name in ("labels", "logits")
        )
        return Predictions([ids[row] for row in order], labels, logits)

    @property
    def temperature(self) -> float:
        """The divisor of the logits of a run that gives one label a text; 1 for other runs."""
        decision = getattr(self.record, "decision", None)
        return decision.temperature if isinstance(decision, OneLabelRecord) else 1.0


def in_order(ids: Sequence[str]) -> list[int]:
    """Row indices sorted by identity, so that every repetition has the rows in one order."""
    return sorted(range(len(ids)), key=ids.__getitem__)


@dataclass(frozen=True)
class TableRuns:
    """The runs of one table."""

    key: TableKey
    title: str
    variant: str
    groups: dict[str, list[LoadedRun]]
    headline: str
    warnings: list[str] = field(default_factory=list)

    @property
    def runs(self) -> list[LoadedRun]:
        """All runs, model by model."""
        return [run for group in self.groups.values() for run in group]
