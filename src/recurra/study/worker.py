"""One run in a process of its own: ``python -m recurra.study.worker RUN MACHINE``."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from recurra.core.errors import RecurraError
from recurra.core.files import write_json
from recurra.core.progress import Reporter
from recurra.core.record import RECORD_NAME

ERROR_NAME = "error.json"


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
