"""Modules of ours that run in processes of their own: started, followed, asked, and their end understood."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Protocol

from recurra.core.errors import StorageError
from recurra.core.files import write_json
from recurra.core.record import AnyRecord
from recurra.study.plan import ERROR_NAME, look_at, read_reason
from recurra.tasks.machine import Machine
from recurra.tasks.runs import RunConfig

LOG_NAME = "log.txt"


@dataclass(frozen=True)
class Call:
    """What a process is to do: ``python -m MODULE ARGUMENTS``.

    Attributes:
        module: A module of ours that is a program.
        arguments: What it is told.
        input: Its standard input.
        threads: Threads of its numeric libraries; 0 leaves that to them.
        cwd: Folder in which it runs; none is this process's own.
    """

    module: str
    arguments: Sequence[str] = ()
    input: str = ""
    threads: int = 0
    cwd: Path | None = None

    def environment(self) -> dict[str, str]:
        """Environment variables of the process."""
        threads = {"OMP_NUM_THREADS": str(self.threads)} if self.threads else {}
        return {**os.environ, **threads, "TOKENIZERS_PARALLELISM": "false"}


class Child(Protocol):
    """A process that runs; `subprocess.Popen` is one."""

    @property
    def stderr(self) -> IO[str] | None:
        """What it says, line by line."""

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end and returns its exit code, negative for a signal.

        Raises:
            subprocess.TimeoutExpired: If it does not end in that many seconds.
        """

    def terminate(self) -> None:
        """Asks it to end."""

    def kill(self) -> None:
        """Ends it."""


class Start(Protocol):
    """What starts processes."""

    def __call__(self, call: Call, output: IO[bytes] | None = None) -> Child:
        """Starts one.

        Args:
            call: What it is to do.
            output: File for what it writes to standard output; without one that is lost.
        """


def memory_file(text: str = "") -> IO[bytes]:
    """A file without a name, in memory where the system has such, that holds a text and is read from its beginning."""
    in_memory = hasattr(os, "memfd_create")
    file = os.fdopen(os.memfd_create("recurra"), "w+b") if in_memory else tempfile.TemporaryFile()  # noqa: SIM115
    file.write(text.encode())
    file.seek(0)
    return file


def start_python(call: Call, output: IO[bytes] | None = None) -> subprocess.Popen[str]:
    """Starts a Python of its own, which imports what it needs."""
    with memory_file(call.input) as given:
        return subprocess.Popen(
            [sys.executable, "-m", call.module, *call.arguments],
            stdin=given,
            stdout=subprocess.DEVNULL if output is None else output,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=call.environment(),
            cwd=call.cwd,
        )


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
    """How a process ended.

    Attributes:
        code: Its exit code; negative: the signal.
        last: The last line that it said.
        output: What it wrote to standard output, if that was kept.
    """

    code: int
    last: str
    output: str = ""

    @property
    def cause(self) -> str:
        """What ended it, in words."""
        return f"killed by signal {-self.code}" if self.code < 0 else f"exit code {self.code}"

    @property
    def reason(self) -> str:
        """The cause, and the last that was said."""
        return f"{self.cause}: {self.last[:300] or 'no message'}"


def follow(child: Child, say: Callable[[str], None]) -> Ended:
    """Follows a process to its end, and ends it if that fails; ``say`` gets every line that it says."""
    assert child.stderr is not None
    last = ""
    try:
        with child.stderr:
            for line in child.stderr:
                last = line.strip() or last
                say(line.rstrip("\n"))
        return Ended(child.wait(), last)
    except BaseException:
        child.kill()
        child.wait()
        raise


def ask(call: Call, start: Start = start_python) -> Ended:
    """Runs a process to its end and keeps what it wrote."""
    with memory_file() as output:
        ended = follow(start(call, output), lambda _: None)
        output.seek(0)
        return replace(ended, output=output.read().decode())


def work(
    folder: Path,
    machine: Machine,
    *,
    say: Callable[[str], None],
    started: Callable[[Child], None] = lambda _: None,
    cwd: Path | None = None,
    start: Start = start_python,
) -> Ended:
    """Runs the worker of a claimed folder to its end; what it writes goes to ``log.txt`` as well.

    Args:
        folder: The run folder, with its configuration.
        machine: Where and how; ``threads`` must be known.
        say: Gets every line that the worker writes.
        started: Gets the process, to end it early.
        cwd: Folder in which names of files in the configuration mean something.
        start: Starts the process.
    """
    arguments = [str(folder), machine.to_json()]
    child = start(Call("recurra.study.worker", arguments, threads=machine.threads, cwd=cwd))
    started(child)
    with (folder / LOG_NAME).open("a", encoding="utf-8") as log:

        def note(line: str) -> None:
            log.write(f"{line}\n")
            log.flush()
            say(line)

        return follow(child, note)


def outcome_of(output: Path, config: RunConfig, ended: Ended) -> Outcome:
    """What became of a run whose worker has ended; a failure that left no reason gets one in the run folder."""
    run = look_at(output, config)
    if ended.code == 0 and run.state == "done":
        return Outcome(config, run.folder, run.record)
    reason = run.reason if run.state == "refused" else read_reason(run.folder)
    exit_code = ended.code if ended.code > 0 else 1
    if reason is None:
        reason = f"{ended.cause}: {ended.last or 'no message'} (see {run.folder / LOG_NAME})"
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
