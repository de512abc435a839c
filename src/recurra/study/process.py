"""One run in a worker process: started, followed, and its end understood."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from recurra.core.errors import StorageError
from recurra.core.files import write_json
from recurra.core.record import AnyRecord
from recurra.study.plan import ERROR_NAME, look_at, read_reason
from recurra.tasks.machine import Machine
from recurra.tasks.runs import RunConfig

LOG_NAME = "log.txt"


@dataclass(frozen=True)
class Outcome:
    """What became of one planned run: its record, or why there is none."""

    config: RunConfig
    folder: Path
    record: AnyRecord | None
    error: str | None = None
    exit_code: int = 0


@dataclass(frozen=True)
class Ended:
    """How a worker process ended: its exit code (negative: the signal), and the last line it wrote."""

    code: int
    last: str


def work(
    folder: Path,
    machine: Machine,
    *,
    say: Callable[[str], None],
    started: Callable[[subprocess.Popen[str]], None] = lambda _: None,
    cwd: Path | None = None,
) -> Ended:
    """Runs the worker of a claimed folder to its end; what it writes goes to ``log.txt`` as well.

    Args:
        folder: The run folder, with its configuration.
        machine: Where and how; ``threads`` must be known.
        say: Gets every line that the worker writes.
        started: Gets the process, to end it early.
        cwd: Folder in which names of files in the configuration mean something.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(machine.threads), "TOKENIZERS_PARALLELISM": "false"}
    process = subprocess.Popen(
        [sys.executable, "-m", "recurra.study.worker", str(folder), machine.to_json()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
        cwd=cwd,
    )
    started(process)
    assert process.stderr is not None
    last = ""
    with process.stderr, (folder / LOG_NAME).open("a", encoding="utf-8") as log:
        for line in process.stderr:
            log.write(line)
            log.flush()
            last = line.strip() or last
            say(line.rstrip("\n"))
    return Ended(process.wait(), last)


def outcome_of(output: Path, config: RunConfig, ended: Ended) -> Outcome:
    """What became of a run whose worker has ended; a failure that left no reason gets one in the run folder."""
    run = look_at(output, config)
    if ended.code == 0 and run.state == "done":
        return Outcome(config, run.folder, run.record)
    reason = run.reason if run.state == "refused" else read_reason(run.folder)
    exit_code = ended.code if ended.code > 0 else 1
    if reason is None:
        cause = f"killed by signal {-ended.code}" if ended.code < 0 else f"exit code {ended.code}"
        reason = f"{cause}: {ended.last or 'no message'} (see {run.folder / LOG_NAME})"
        # Ctrl-C reaches the worker before it reaches us; it is no failure of the run.
        if ended.code != -signal.SIGINT:
            note_failure(run.folder, reason, kind="RunError", code=exit_code)
    return Outcome(config, run.folder, None, reason, exit_code)


def note_failure(folder: Path, reason: str, *, kind: str, code: int, name: str = ERROR_NAME) -> None:
    """Leaves the reason of a failure in a folder, for `plan`, `status` and the report."""
    try:
        write_json(folder / name, {"error": reason, "kind": kind, "code": code})
    except StorageError:
        # Where nothing can be written the caller's own message must do.
        return


def threads_of(machine: Machine, cores: int, workers: int) -> Machine:
    """The machine with the threads of one run settled, so that all runs at once take the cores and no more."""
    return replace(machine, threads=machine.threads or max(1, cores // workers))
