"""One run in a process of its own: ``python -m recurra.study.worker RUN MACHINE``."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from recurra.core.errors import RecurraError
from recurra.core.progress import Reporter
from recurra.core.record import RECORD_NAME
from recurra.study.claim import load_run_config
from recurra.study.plan import ERROR_NAME
from recurra.study.process import note_failure
from recurra.study.progress import ProgressReporter
from recurra.tasks.machine import Machine

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Executes the run whose configuration lies in the folder; leaves ``error.json`` if it fails.

    Args:
        arguments: The run folder, and the machine as JSON.
    """
    # A terminal sends Ctrl-C to all processes; the one that started this speaks for all.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    folder = Path(arguments[0])
    (folder / ERROR_NAME).unlink(missing_ok=True)
    config = load_run_config(folder)
    with _reporter(folder, config.protocol.max_epochs) as reporter:
        # Takes seconds; until then there is nothing to tell but that it has begun.
        from recurra.study.run import execute_run

        try:
            execute_run(config, folder, Machine.from_json(arguments[1]), reporter)
        except RecurraError as error:
            if not (folder / RECORD_NAME).exists():
                note_failure(folder, str(error), kind=type(error).__name__, code=error.exit_code)
            reporter.say(f"error: {error}")
            return error.exit_code
    return 0


def _reporter(folder: Path, epochs: int) -> AbstractContextManager[Reporter]:
    """Tells how far the run is; of the processes of a distributed run the first speaks."""
    if int(os.environ.get("RANK", "0")) > 0:
        return contextlib.nullcontext(Reporter(quiet=True))
    return ProgressReporter(folder, epochs=epochs)


def end_with_parent() -> None:
    """Asks Linux to end this process with the study that started it.

    A study that is killed outright cannot end its runs; left alone they would hold their
    folders against the next start.
    """
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    end_with_parent()
    sys.exit(main(sys.argv[1:]))
