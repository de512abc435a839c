"""How far a run is, in a small file beside it: written by the run, read by whoever wants to know.

The file says which process writes it, and it is renewed while that lives. So a reader needs no lock, and what a killed
run left is not taken for a run under way.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from recurra.core.errors import StorageError
from recurra.core.files import read_json, write_json
from recurra.core.progress import ProgressTask, Reporter

PROGRESS_NAME = "progress.json"
RENEWED_EVERY_S = 5.0
# On another machine a process cannot be asked for; one that has written nothing for so long is taken for dead.
SILENT_AFTER_S = 60.0


@dataclass(frozen=True)
class RunProgress:
    """What a run says of itself.

    Attributes:
        host: Machine that it runs on.
        pid: Its process there.
        started: When the process began, seconds since the epoch.
        updated: When this was written.
        stage: What it is doing: ``loading data``, ``training``, ``evaluating``.
        step: Optimiser steps done.
        steps: Optimiser steps of all epochs, 0 while it is not known.
        epoch: Epoch under way, from 1; 0 before training.
        epochs: Epochs at most.
        first_step: Steps that were done when this process began: of an earlier process that was killed.
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
        # A number may have been given to another process since; ours renews its file.
        return time.time() - self.updated < SILENT_AFTER_S

    @property
    def elapsed_s(self) -> float:
        """Seconds since the process began."""
        return max(0.0, time.time() - self.started)

    @property
    def remaining_s(self) -> float | None:
        """Seconds of training that are left at the pace so far; none before the first steps."""
        done = self.step - self.first_step
        if done <= 0 or self.steps <= 0:
            return None
        return (self.updated - self.started) / done * max(0, self.steps - self.step)

    def plain(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return asdict(self)


def read_progress(folder: Path) -> RunProgress | None:
    """What the run in a folder says of itself, or none if it says nothing that can be read."""
    try:
        return RunProgress(**read_json(folder / PROGRESS_NAME))
    except (OSError, ValueError, TypeError):
        return None


class ProgressReporter(Reporter):
    """A reporter that also keeps the progress file of a run; a context manager that removes it at the end.

    Args:
        folder: The run folder.
        epochs: Epochs of the run at most.
    """

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
        """Says what a run does now, and notes it."""
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
            yield _FollowedTask(shown, self)

    def _renew(self) -> None:
        while not self._ended.wait(RENEWED_EVERY_S):
            self._write()

    def _write(self) -> None:
        with self._guard:
            now = replace(self._now, updated=time.time())
        # A full disk is told by what matters; this file does not.
        with contextlib.suppress(StorageError):
            write_json(self.path, now.plain())


class _FollowedTask(ProgressTask):
    """A task whose progress is noted as well as shown."""

    def __init__(self, shown: ProgressTask, reporter: ProgressReporter) -> None:
        super().__init__(reporter, shown.description, shown.total, None)
        self._shown = shown
        self._follower = reporter

    def advance(self, amount: int = 1, note: str = "") -> None:
        """Adds to what is done."""
        self.done += amount
        word, _, number = note.partition(" ")
        if word == "epoch" and number.isdigit():
            self._follower.note(step=self.done, epoch=int(number))
        else:
            # Steps without an epoch are those that an interrupted run had done before.
            self._follower.note(step=self.done, first_step=self.done)
        self._shown.advance(amount, note)
