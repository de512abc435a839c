"""Reads finished runs from disk: their records, and the predictions beside them."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from recurra.core.errors import RecurraError
from recurra.core.record import LatencyRecord, read_any_record
from recurra.evaluation.predictions import read_correctness, read_predictions
from recurra.tasks.estimates import MeasuredExports
from recurra.tasks.loaded_runs import LoadedRun
from recurra.tasks.registry import part_of


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
        truth: True labels, ``(rows,)``, where they were asked for.
        predicted: Predicted labels, likewise.
    """

    rows_key: bytes
    correct: NDArray[np.bool_]
    truth: NDArray[np.int64] | None = None
    predicted: NDArray[np.int64] | None = None

    def only(self, rows: NDArray[np.bool_]) -> Correctness:
        """The same of some of the rows."""
        parts = (None if part is None else part[rows] for part in (self.truth, self.predicted))
        return Correctness(self.rows_key, self.correct[rows], *parts)

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
            record = read_any_record(path)
            beside = part_of(record.task, "reporting").beside(path, record)
        except RecurraError as error:
            failed.setdefault(path.name, str(error))
            continue
        finished.append(LoadedRun(path, record, beside))
    return finished, [
        FailedRun(_writable(name), _writable(" ".join(reason.split()))) for name, reason in failed.items()
    ]


def _writable(text: str) -> str:
    """Replaces lone surrogates, as from a broken file name: they cannot be written as UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def load_correctness(
    run: LoadedRun,
    split: str,
    known: dict[bytes, tuple[bytes, NDArray[np.int64]]] | None = None,
    *,
    labels: bool = False,
) -> Correctness | None:
    """Reads which rows of a split a run got right, or ``None`` if its predictions are not on disk or damaged.

    Args:
        run: The run.
        split: The split.
        known: Rows that were read before; see `recurra.evaluation.predictions.read_correctness`.
        labels: Whether true and predicted labels are wanted too.
    """
    if split not in run.record.metrics:
        return None
    try:
        found = Correctness(*read_correctness(run.folder, split, known))
        if not labels:
            return found
        rows = read_predictions(run.folder, split)
        return replace(found, truth=rows.labels, predicted=rows.predicted)
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
