"""The plan of a study: every run, where it lies, and what has become of it so far. Starts nothing, holds nothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from recurra.core.errors import CheckpointError, StorageError
from recurra.core.files import read_json, write_json
from recurra.core.packed import RUNS_NAME
from recurra.core.record import AnyRecord, holds_record, read_any_record
from recurra.study.claim import CONFIG_NAME
from recurra.study.progress import RunProgress, read_progress
from recurra.study.spec import StudySpec, expand
from recurra.tasks.runs import RunConfig

ERROR_NAME = "error.json"
# Rows that a program had in memory when it asked for the study.
ROWS_NAME = "rows"
SPEC_NAME = "study.yaml"

State = Literal["done", "refused", "running", "failed", "interrupted", "to do"]


def run_folder(output: Path, config: RunConfig) -> Path:
    """Where a run of a study lies."""
    return output / RUNS_NAME / config.run_id


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan, as its folder shows it at the moment of planning.

    Attributes:
        config: The run.
        folder: Where it lies.
        state: ``done`` (it has its record), ``refused`` (it has one that cannot be trusted), ``running``, ``failed``
            (it ended without a record), ``interrupted`` (it began and will go on), ``to do``.
        reason: Why it failed, or why its record is refused.
        progress: What a run under way, or an interrupted one, says of itself.
    """

    config: RunConfig
    folder: Path
    state: State
    reason: str | None = None
    progress: RunProgress | None = None

    @cached_property
    def record(self) -> AnyRecord | None:
        """The record of a run that is done, read when it is asked for.

        Raises:
            CheckpointError: If it cannot be trusted.
        """
        return read_any_record(self.folder) if self.state in ("done", "refused") else None


def plan_study(spec: StudySpec, output: Path) -> list[PlannedRun]:
    """Returns all runs of a study with what has become of them."""
    runs = output / RUNS_NAME
    # One look at the folder instead of one at each of many runs that have never begun.
    present = {path.name for path in runs.iterdir()} if runs.is_dir() else frozenset[str]()
    return [
        look_at(output, config) if config.run_id in present else PlannedRun(config, run_folder(output, config), "to do")
        for config in expand(spec)
    ]


def look_at(output: Path, config: RunConfig) -> PlannedRun:
    """One run of a study with what has become of it."""
    folder = run_folder(output, config)
    try:
        if holds_record(folder, config.config_hash):
            return PlannedRun(config, folder, "done")
    except CheckpointError as error:
        return PlannedRun(config, folder, "refused", str(error))
    progress = read_progress(folder)
    if progress is not None and progress.alive:
        return PlannedRun(config, folder, "running", progress=progress)
    reason = read_reason(folder)
    if reason is not None:
        return PlannedRun(config, folder, "failed", reason)
    begun = (folder / CONFIG_NAME).exists()
    return PlannedRun(config, folder, "interrupted" if begun else "to do", progress=progress)


def read_reason(folder: Path) -> str | None:
    """Why the run in a folder failed when it was last tried, or none if it did not."""
    try:
        return str(read_json(folder / ERROR_NAME)["error"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def note_failure(folder: Path, reason: str, *, kind: str, code: int, name: str = ERROR_NAME) -> None:
    """Leaves the reason of a failure in a folder, for `plan`, `status` and the report."""
    try:
        write_json(folder / name, {"error": reason, "kind": kind, "code": code})
    except StorageError:
        # Where nothing can be written the caller's own message must do.
        return


def refuse_untrusted(runs: list[PlannedRun]) -> None:
    """Refuses a plan with a record that cannot be trusted: it must neither count nor be overwritten.

    Raises:
        CheckpointError: What is wrong with the first such record.
    """
    for run in runs:
        if run.state == "refused":
            raise CheckpointError(str(run.reason))
