"""Reads finished runs from disk: their records, and the predictions beside them."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from recurra.core.configuration import content_hash
from recurra.core.errors import RecurraError
from recurra.core.record import LatencyRecord, RunRecord, read_record
from recurra.evaluation.predictions import read_correctness

# Settings that say where and how a run was carried out. Two runs that differ in nothing else are repetitions.
PLACE_SETTINGS = frozenset(
    {"seed", "output", "data_root", "device", "threads", "workers", "cache_dir", "name", "run_id", "keep_checkpoints"}
)


@dataclass(frozen=True)
class LoadedRun:
    """A finished run: the folder it lies in, and its record."""

    folder: Path
    record: RunRecord

    @property
    def protocol(self) -> str:
        """Name of the training protocol."""
        return self.record.training.protocol

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The configuration without the seed and without what only says where the run took place."""
        return {key: value for key, value in self.record.config.items() if key not in PLACE_SETTINGS}

    @cached_property
    def settings_hash(self) -> str:
        """Equal for runs that differ in the seed alone."""
        return content_hash([self.record.model.preset, self.settings])


@dataclass(frozen=True)
class FailedRun:
    """A run without a usable record: its name and the reason, in one line."""

    run_id: str
    reason: str


@dataclass(frozen=True)
class Correctness:
    """Which rows of a split a run got right.

    Attributes:
        rows_key: Hash of the identifiers and true labels of the rows, in order.
        correct: Whether the prediction is right, ``(rows,)`` of bool.
    """

    rows_key: bytes
    correct: NDArray[np.bool_]

    def same_rows(self, other: Correctness) -> bool:
        """Whether both judge the same rows in the same order."""
        return self.rows_key == other.rows_key


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Pauses the collection of cycles: records have none, and each pass would visit all that were read so far."""
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()


@uncollected()
def load_runs(
    folders: Iterable[Path], failures: Mapping[str, str] | None = None
) -> tuple[list[LoadedRun], list[FailedRun]]:
    """Reads every record that can be read and names every one that cannot.

    Args:
        folders: Run folders.
        failures: Reasons that the caller knows (run identifier to message); they win over what the folder tells.

    Returns:
        The finished runs in the order given, and the failed ones.
    """
    finished: list[LoadedRun] = []
    failed = dict(failures or {})
    for folder in folders:
        path = Path(folder)
        try:
            record = read_record(path)
        except RecurraError as error:
            failed.setdefault(path.name, str(error))
            continue
        finished.append(LoadedRun(path, record))
    return finished, [
        FailedRun(_writable(name), _writable(" ".join(reason.split()))) for name, reason in failed.items()
    ]


def _writable(text: str) -> str:
    """Replaces lone surrogates, as from a broken file name: they cannot be written as UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def load_correctness(
    run: LoadedRun, split: str, known: dict[bytes, tuple[bytes, NDArray[np.int64]]] | None = None
) -> Correctness | None:
    """Reads which rows of a split a run got right, or ``None`` if its predictions are not on disk or damaged.

    Args:
        run: The run.
        split: The split.
        known: Rows that were read before; see `recurra.evaluation.predictions.read_correctness`.
    """
    if split not in run.record.metrics:
        return None
    try:
        return Correctness(*read_correctness(run.folder, split, known))
    except RecurraError:
        return None


def read_latency(
    latency: Mapping[str, Any] | None, runs: Sequence[LoadedRun]
) -> tuple[dict[str, dict[str, LatencyRecord]], list[str]]:
    """Reads a study's ``latency.json``: measurements of all models side by side in one process.

    Args:
        latency: ``{"runs": {run_id: {"batch_1": {...}, ...}}}``, or ``None``.
        runs: The runs it should speak of.

    Returns:
        Measurements by run identifier, and one warning for each entry that cannot be read.
    """
    known = {run.record.run_id for run in runs}
    entries = (latency or {}).get("runs", {})
    result: dict[str, dict[str, LatencyRecord]] = {}
    warnings: list[str] = []
    for run_id, batches in entries.items() if isinstance(entries, Mapping) else ():
        if run_id not in known:
            continue
        try:
            result[run_id] = {key: LatencyRecord.model_validate(value) for key, value in dict(batches).items()}
        except (ValidationError, TypeError, ValueError):
            warnings.append(f"The study's latency of run {run_id} cannot be read; the run's own measurement is shown.")
    return result, warnings


@dataclass(frozen=True)
class MeasuredExports:
    """What was measured of a study's exports, by ``RUN/EXPORT``.

    Attributes:
        latency: By batch.
        memory_mib: Peak of a process that opens the export and labels texts.
    """

    latency: Mapping[str, Mapping[str, LatencyRecord]] = field(default_factory=dict)
    memory_mib: Mapping[str, float] = field(default_factory=dict)


def read_measured_exports(latency: Mapping[str, Any] | None) -> tuple[MeasuredExports, list[str]]:
    """Reads the exports' part of a study's ``latency.json``, and one warning for each entry that cannot be read."""
    entries = (latency or {}).get("exports", {})
    result: dict[str, dict[str, LatencyRecord]] = {}
    warnings: list[str] = []
    for name, batches in entries.items() if isinstance(entries, Mapping) else ():
        try:
            result[name] = {key: LatencyRecord.model_validate(value) for key, value in dict(batches).items()}
        except (ValidationError, TypeError, ValueError):
            warnings.append(f"The study's latency of export {name} cannot be read and is left out.")
    memory = (latency or {}).get("memory_mib", {})
    sizes = memory.items() if isinstance(memory, Mapping) else ()
    return MeasuredExports(
        result, {name: float(size) for name, size in sizes if isinstance(size, int | float)}
    ), warnings
