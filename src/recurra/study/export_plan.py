"""The exports that a study asks for, and the state of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from recurra.core.environment import available_cores
from recurra.core.packed import in_study
from recurra.core.progress import Reporter
from recurra.core.record import AnyRecord
from recurra.deployment.export_record import (
    ExportRequest,
    error_path,
    export_folder,
    fits,
    read_export_record,
    record_path,
)
from recurra.study.plan import PlannedRun, note_failure, read_reason
from recurra.study.spec import StudySpec
from recurra.study.workers import Workers
from recurra.tasks.base import RunConfig
from recurra.tasks.study_data import Machine

State = Literal["done", "to do", "failed", "waits"]


@dataclass(frozen=True)
class PlannedExport:
    """One export of one run.

    Attributes:
        state: ``done`` (it has its record), ``to do``, ``failed`` (when it was last tried), ``waits`` (for its run).
    """

    run_id: str
    request: ExportRequest
    folder: Path
    state: State
    reason: str | None = None

    @property
    def key(self) -> str:
        """Identity within the study."""
        return f"{self.run_id}/{self.request.name}"

    def plain(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return {
            "run_id": self.run_id,
            "format": self.request.format,
            "precision": self.request.precision,
            "state": self.state,
            "reason": self.reason,
            "folder": str(self.folder),
        }


def plan_exports(spec: StudySpec, output: Path, runs: Sequence[PlannedRun]) -> list[PlannedExport]:
    """Plans each requested export for each Transformer of a study; reads no record if nothing is requested.

    Raises:
        CheckpointError: If a record cannot be trusted.
    """
    return [
        _look_at(output, run.config, run.record, request)
        for run in runs
        if not run.config.is_control
        for request in spec.exports
    ]


def _look_at(output: Path, config: RunConfig, record: AnyRecord | None, request: ExportRequest) -> PlannedExport:
    folder = export_folder(output, config.run_id, request)
    if record is None:
        return PlannedExport(config.run_id, request, folder, "waits")
    path = record_path(folder)
    export_record = read_export_record(path) if in_study(path) else None
    if export_record is not None and fits(export_record, record):
        return PlannedExport(config.run_id, request, folder, "done")
    reason = read_reason(error_path(folder))
    return PlannedExport(config.run_id, request, folder, "to do" if reason is None else "failed", reason)


def describe_exports(exports: Sequence[PlannedExport]) -> str:
    """One line with the requested exports and their states; empty if none are requested."""
    if not exports:
        return ""
    counts = Counter(export.state for export in exports)
    names = dict.fromkeys(f"{export.request.format} in {export.request.precision}" for export in exports)
    states = ", ".join(f"{number} {state}" for state, number in counts.items())
    return f"exports: {len(exports)} ({', '.join(names)}), {states}"


def make_exports(
    exports: Sequence[PlannedExport],
    output: Path,
    machine: Machine,
    reporter: Reporter,
    workers: Workers,
) -> None:
    """Makes and evaluates exports in a worker; an export that fails leaves its reason and does not stop the others."""
    if not exports:
        return
    reporter.say(f"making and evaluating {len(exports)} exports")
    work = [{"run_id": export.run_id, **export.request.plain()} for export in exports]
    threads = machine.threads or available_cores()
    ended = workers.call(
        "recurra.study.exporting:export_all",
        str(output),
        threads,
        work,
        machine=machine,
        say=reporter.say,
        threads=threads,
    )
    for export in exports if ended.code else ():
        if not record_path(export.folder).exists() and not error_path(export.folder).exists():
            note_failure(error_path(export.folder), ended.reason, kind="RunError", code=max(ended.code, 1))
