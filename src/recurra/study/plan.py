"""The runs of a study and the state of each: planned, claimed by a process, running or ended."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from recurra.core.configuration import read_yaml, write_yaml
from recurra.core.environment import without_collector
from recurra.core.errors import CheckpointError, StorageError
from recurra.core.files import is_part, read_json, write_json, write_text
from recurra.core.packed import RUNS_NAME, run_folders
from recurra.core.progress import ProgressTask, Reporter
from recurra.core.record import RECORD_NAME, AnyRecord, holds_record, read_any_record
from recurra.study.spec import StudySpec, expand
from recurra.tasks.base import RunConfig

CONFIG_NAME = "config.yaml"
_OURS = {".lock", "log.txt", "error.json"}


def claim_folder(config: RunConfig, folder: Path) -> AnyRecord | None:
    """Writes the configuration into a fresh folder; returns the record if the same run is finished there.

    Raises:
        StorageError: If the folder holds another run or something else; nothing is touched then.
    """
    path = folder / CONFIG_NAME
    if path.exists():
        present = load_run_config(folder)
        if present.config_hash != config.config_hash:
            raise StorageError(
                f"'{folder}' holds another run ({present.run_id}, wanted {config.run_id}); choose another --output"
            )
        return read_any_record(folder) if (folder / RECORD_NAME).exists() else None
    # A process that was killed while it wrote the configuration leaves a part of it, which the next one removes.
    if any(item.name not in _OURS and not is_part(item.name) for item in folder.iterdir()):
        raise StorageError(f"'{folder}' is not empty and not a run folder of ours; choose another --output")
    write_text(path, write_yaml(config.plain()))
    return None


def load_run_config(folder: Path) -> RunConfig:
    """Reads the configuration of a run folder."""
    return RunConfig.parse(read_yaml(folder / CONFIG_NAME), source=f"'{folder / CONFIG_NAME}'")


PROGRESS_NAME = "progress.json"
RENEWED_EVERY_S = 5.0
# A process on another machine cannot be looked up; it counts as dead if it wrote nothing for so long.
SILENT_AFTER_S = 60.0


@dataclass(frozen=True)
class RunProgress:
    """Progress that a run reports.

    Attributes:
        started: When the process began, seconds since the epoch.
        steps: Optimiser steps of all epochs, 0 while unknown.
        epoch: Epoch under way, from 1; 0 before training.
        first_step: Steps that an earlier, killed process had done when this one began.
    """

    host: str
    pid: int
    started: float
    updated: float
    stage: str = "starting"
    step: int = 0
    steps: int = 0
    epoch: int = 0
    epochs: int = 0
    first_step: int = 0

    @property
    def alive(self) -> bool:
        """Whether the process that wrote this still runs."""
        if self.host != socket.gethostname():
            return time.time() - self.updated < SILENT_AFTER_S
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return True
        # Another process may have the number now; a living run renews its file.
        return time.time() - self.updated < SILENT_AFTER_S

    @property
    def elapsed_s(self) -> float:
        """Seconds since the process began."""
        return max(0.0, time.time() - self.started)

    @property
    def remaining_s(self) -> float | None:
        """Seconds of training that are left at the pace so far; None before the first steps."""
        done = self.step - self.first_step
        if done <= 0 or self.steps <= 0:
            return None
        return (self.updated - self.started) / done * max(0, self.steps - self.step)


def read_progress(folder: Path) -> RunProgress | None:
    """Progress of the run in a folder; None if there is no readable progress file."""
    try:
        return RunProgress(**read_json(folder / PROGRESS_NAME))
    except (OSError, ValueError, TypeError):
        return None


class ProgressReporter(Reporter):
    """A reporter that also keeps the progress file of a run; a context manager that removes it at the end."""

    def __init__(self, folder: Path, *, epochs: int, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self.path = folder / PROGRESS_NAME
        now = time.time()
        self._now = RunProgress(socket.gethostname(), os.getpid(), now, now, epochs=epochs)
        self._guard = threading.Lock()
        self._ended = threading.Event()
        self._renewer = threading.Thread(target=self._renew, daemon=True)

    def __enter__(self) -> Self:
        self._write()
        self._renewer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._renewer.join()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def stage(self, subject: str, stage: str) -> None:
        """Reports the stage of the run and writes the progress file."""
        self.note(stage=stage)
        self._write()
        super().stage(subject, stage)

    def note(self, **changes: Any) -> None:
        """Remembers progress; it is written with the next renewal, or now if another epoch has begun."""
        with self._guard:
            before, self._now = self._now, replace(self._now, **changes)
        if self._now.epoch != before.epoch:
            self._write()

    @contextlib.contextmanager
    def task(self, description: str, total: int | None) -> Iterator[ProgressTask]:
        """Follows a task; its steps are those of the run."""
        self.note(stage=description, steps=total or 0)
        with super().task(description, total) as shown:
            yield shown

    def advanced(self, done: int, note: str) -> None:
        """Notes steps; steps without an epoch were done before an interruption."""
        word, _, number = note.partition(" ")
        if word == "epoch" and number.isdigit():
            self.note(step=done, epoch=int(number))
        else:
            self.note(step=done, first_step=done)

    def _renew(self) -> None:
        while not self._ended.wait(RENEWED_EVERY_S):
            self._write()

    def _write(self) -> None:
        with self._guard:
            now = replace(self._now, updated=time.time())
        # This file is not essential; files that are report a full disk.
        with contextlib.suppress(StorageError):
            write_json(self.path, asdict(now))


ERROR_NAME = "error.json"
# Folder of the rows that a program passed from memory.
ROWS_NAME = "rows"

State = Literal["done", "refused", "running", "failed", "interrupted", "to do"]


def run_folder(output: Path, config: RunConfig) -> Path:
    """Folder of a run in a study."""
    return output / RUNS_NAME / config.run_id


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study, as its folder shows it, or as it ended just now.

    Attributes:
        state: ``done`` (it has its record), ``refused`` (it has one that cannot be trusted), ``running``, ``failed``
            (it ended without a record), ``interrupted`` (it began and can be resumed), ``to do``.
        exit_code: Of the error with which it ended just now, else that of a failure.
    """

    config: RunConfig
    folder: Path
    state: State
    reason: str | None = None
    progress: RunProgress | None = None
    exit_code: int = 1

    @cached_property
    def record(self) -> AnyRecord | None:
        """The record of a run that is done, read when it is first asked for.

        Raises:
            CheckpointError: If it cannot be read, for example because a later version wrote it.
        """
        return read_any_record(self.folder) if self.state == "done" else None

    @property
    def error(self) -> str | None:
        """Why it has no record; None if it has one."""
        return None if self.state == "done" else self.reason or "not run yet"


def finished_run(folder: Path) -> PlannedRun:
    """The finished run in a folder, known by its record alone."""
    record = read_any_record(folder)
    run = PlannedRun(RunConfig.parse(record.config), folder, "done")
    # It is not read again.
    vars(run)["record"] = record
    return run


def plan_study(spec: StudySpec, output: Path) -> list[PlannedRun]:
    """Returns all runs of a study with their states; runs that are packed in ``output`` are done."""
    # One listing of the folder replaces a look at each of many runs that have never begun.
    present = {path.name for path in run_folders(output)}
    fresh = [PlannedRun(config, run_folder(output, config), "to do") for config in expand(spec)]
    runs = [read_state(output, run.config) if run.config.run_id in present else run for run in fresh]
    # A packed run has no weights: a teacher is trained again if one of its students is still to come.
    teachers = {teacher.run_id for run in runs if run.state != "done" for teacher in run.config.teachers}
    return [
        replace(run, state="to do")
        if run.state == "done" and run.config.run_id in teachers and not (run.folder / RECORD_NAME).exists()
        else run
        for run in runs
    ]


def read_state(output: Path, config: RunConfig) -> PlannedRun:
    """One run of a study with its state."""
    folder = run_folder(output, config)
    try:
        if holds_record(folder, config.config_hash):
            return PlannedRun(config, folder, "done")
    except CheckpointError as error:
        return PlannedRun(config, folder, "refused", str(error))
    progress = read_progress(folder)
    if progress is not None and progress.alive:
        return PlannedRun(config, folder, "running", progress=progress)
    reason = read_reason(folder / ERROR_NAME)
    if reason is not None:
        return PlannedRun(config, folder, "failed", reason)
    begun = (folder / CONFIG_NAME).exists()
    return PlannedRun(config, folder, "interrupted" if begun else "to do", progress=progress)


def read_reason(path: Path) -> str | None:
    """Reads the reason of the last failure from its file; None if there was no failure."""
    try:
        return str(read_json(path)["error"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def note_failure(path: Path, reason: str, *, kind: str, code: int) -> None:
    """Leaves the reason of a failure in a file, for `plan`, `status` and the report."""
    # If nothing can be written, the caller's own message must suffice.
    with contextlib.suppress(StorageError):
        write_json(path, {"error": reason, "kind": kind, "code": code})


@without_collector()
def refuse_untrusted(runs: list[PlannedRun]) -> None:
    """Reads the records of a plan, and refuses one that cannot be trusted: it must neither count nor be overwritten.

    Raises:
        CheckpointError: With the reason of the first such record.
    """
    for run in runs:
        if run.state == "refused":
            raise CheckpointError(str(run.reason))
        _ = run.record
