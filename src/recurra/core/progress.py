"""Progress on standard error: a bar on a terminal, a line now and then in a log, nothing when quiet."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from recurra.core.terminal import one_line

if TYPE_CHECKING:
    from rich.progress import Progress

LOG_INTERVAL_S = 15.0


class Reporter:
    """Reports progress to a person, on standard error only."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self._progress: Progress | None = None

    def say(self, message: str) -> None:
        """Prints one line."""
        if self._progress is not None:
            self._progress.console.print(one_line(message), markup=False, highlight=False, soft_wrap=True)
        elif not self.quiet:
            sys.stderr.write(one_line(message) + "\n")

    def stage(self, subject: str, stage: str) -> None:
        """Prints in one line what ``subject`` does now."""
        self.say(f"{subject}: {stage}")

    def advanced(self, done: int, note: str) -> None:
        """Called with the progress of the current task; subclasses may use it."""

    @contextlib.contextmanager
    def task(self, description: str, total: int | None) -> Iterator[ProgressTask]:
        """Shows the progress of one long task; call ``advance`` on the yielded object."""
        if self.quiet or not sys.stderr.isatty():
            yield ProgressTask(self, description, total, None)
            return
        # These imports are slow and not needed for a log.
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        outer = self._progress
        try:
            with Progress(*columns, console=Console(stderr=True), transient=True) as self._progress:
                yield ProgressTask(self, description, total, self._progress)
        finally:
            self._progress = outer


class ProgressTask:
    """One task in progress."""

    def __init__(self, reporter: Reporter, description: str, total: int | None, progress: Progress | None) -> None:
        self.reporter = reporter
        self.description = description
        self.total = total
        self.done = 0
        self._progress = progress
        self._bar = progress.add_task(description, total=total) if progress else None
        self._last = time.monotonic()

    def advance(self, amount: int = 1, note: str = "") -> None:
        """Adds to the finished amount; ``note`` is shown after the description."""
        self.done += amount
        self.reporter.advanced(self.done, note)
        if self._progress is not None and self._bar is not None:
            text = f"{self.description} {note}".rstrip()
            self._progress.update(self._bar, completed=self.done, description=text)
        elif time.monotonic() - self._last >= LOG_INTERVAL_S:
            self._last = time.monotonic()
            of_total = f"/{self.total}" if self.total else ""
            self.reporter.say(f"{self.description}: {self.done}{of_total} {note}".rstrip())
