"""One run from configuration to record; in a process of its own: ``python -m recurra.study.run RUN MACHINE``."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from recurra.core.environment import code_record
from recurra.core.errors import RecurraError
from recurra.core.files import FolderLock
from recurra.core.progress import Reporter
from recurra.core.record import RECORD_NAME, AnyRecord, write_record
from recurra.models.inference import check_precision, torch_threads
from recurra.models.quiet import quieten_libraries
from recurra.study.claim import claim_folder, load_run_config
from recurra.study.plan import ERROR_NAME
from recurra.study.process import note_failure
from recurra.study.progress import ProgressReporter
from recurra.tasks.base import task_of_data
from recurra.tasks.machine import Machine
from recurra.tasks.run_folder import speaks_for_all
from recurra.tasks.runs import RunConfig
from recurra.training.fit import remove_checkpoints


def execute_run(
    config: RunConfig, folder: Path, machine: Machine, reporter: Reporter, said: Sequence[str] = ()
) -> AnyRecord | None:
    """Executes a run, or takes it up where it was interrupted, or returns its record if it is done.

    Args:
        config: What to run.
        folder: The run folder; held by this process meanwhile.
        machine: Where and how.
        reporter: For progress.
        said: Lines for a person, once it is clear that the run starts.

    Returns:
        The record; none on the other processes of a distributed run.

    Raises:
        StorageError: If the folder holds another run or is in use.
        RecurraError: Whatever is wrong with the data or the configuration.
    """
    check_precision(config.precision)
    quieten_libraries()
    code_record()  # remembers the commit that is loaded now: the checkout may move on during a long run
    engine = task_of_data(config.data).engine
    with torch_threads(machine.threads):
        if not speaks_for_all():
            if not (folder / RECORD_NAME).exists():
                engine.train(config, folder, machine, Reporter(quiet=True))
            return None
        with FolderLock(folder):
            done = claim_folder(config, folder)
            if done is not None:
                reporter.say(f"{config.run_id}: already done")
                return done
            for line in said:
                reporter.say(line)
            record = engine.execute(config, folder, machine, reporter)
            # The model is on disk. Once there is a record nobody comes back to clear up.
            if not machine.keep_checkpoints:
                remove_checkpoints(folder)
            write_record(folder, record)
            return record


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
