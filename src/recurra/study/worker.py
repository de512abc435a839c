"""One run in a process of its own: ``python -m recurra.study.worker RUN MACHINE``."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
from pathlib import Path

from recurra.core.errors import RecurraError
from recurra.core.files import write_json
from recurra.core.progress import Reporter
from recurra.core.record import RECORD_NAME

ERROR_NAME = "error.json"
_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Executes the run whose configuration lies in the folder; leaves ``error.json`` if it fails.

    Args:
        arguments: The run folder, and the machine as JSON.
    """
    from recurra.study.claim import load_run_config
    from recurra.study.machine import Machine
    from recurra.study.run import execute_run

    # A terminal sends Ctrl-C to all processes; the one that started this speaks for all.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    folder = Path(arguments[0])
    reporter = Reporter()
    (folder / ERROR_NAME).unlink(missing_ok=True)
    try:
        execute_run(load_run_config(folder), folder, Machine.from_json(arguments[1]), reporter)
    except RecurraError as error:
        if not (folder / RECORD_NAME).exists():
            write_json(
                folder / ERROR_NAME, {"error": str(error), "kind": type(error).__name__, "code": error.exit_code}
            )
        reporter.say(f"error: {error}")
        return error.exit_code
    return 0


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
