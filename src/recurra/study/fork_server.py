"""Processes that have nothing to import: forked from one that has imported what runs need.

Torch, transformers and scikit-learn take seconds to import, in every process anew; most runs of a small file take less.
``python -m recurra.study.fork_server`` imports them once, waits for orders on a socket that is its standard input, and
forks a child for each. It computes nothing itself and has no threads that a fork could lose.

On Linux, and where PyTorch finds no accelerator: what its driver sets up does not survive a fork. Elsewhere every
process imports for itself.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn, Self

from recurra.core.environment import available_cores, code_record
from recurra.study.process import Call, Child, Start, memory_file, start_python
from recurra.study.worker import end_with_parent
from recurra.tasks.registry import PACKAGES

# What runs, estimates, exports and timings import sooner or later.
IMPORTED = (
    "recurra.study.run",
    "recurra.study.expectation",
    "recurra.study.timing",
    "recurra.models.controls.fitting",
    "recurra.evaluation.audits.invariance",
    "recurra.evaluation.audits.seen",
    "recurra.evaluation.audits.shortcuts",
    *(f"{package}.engine" for package in PACKAGES.values()),
)
# Threads that come back by themselves in a forked child: those of Arrow's allocator.
_HARMLESS_THREADS = {"jemalloc_bg_thd"}
_FORKS, _DOES_NOT = b"1", b"0"
_PATIENCE_S = 10.0
# Files of an order: itself, standard input, output and error, and where the server reports.
_HANDLES = 5


class ForkServer:
    """Starts processes by forking where that can be done, and otherwise as `start_python` does.

    It begins to import when it is made, beside its maker. A context: the server and the children that still run end
    with it.

    Raises:
        OSError: If it cannot be started.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._forks: bool | None = None
        self._socket, theirs = socket.socketpair()
        with theirs:
            try:
                self._server = _launch(theirs)
            except OSError:
                self._socket.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        if self._forks is None:
            # It still imports, for nothing.
            self._server.kill()
        try:
            self._server.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()

    def is_ready(self) -> bool:
        """Waits until everything is imported; says whether processes can be forked."""
        with self._guard:
            if self._forks is None:
                self._forks = _received(self._socket) == _FORKS
            return self._forks

    def start(self, call: Call, output: IO[bytes] | None = None) -> Child:
        """Starts a process; see `recurra.study.process.Start`."""
        forked = self._fork(call, output) if self.is_ready() else None
        return forked or start_python(call, output)

    def _fork(self, call: Call, output: IO[bytes] | None) -> Child | None:
        """A forked process; nothing if the server has gone."""
        order = {
            "module": call.module,
            "arguments": list(call.arguments),
            "environment": call.environment(),
            "cwd": str(call.cwd or Path.cwd()),
        }
        saying, said = os.pipe()
        reporting, reported = os.pipe()
        with (
            memory_file(json.dumps(order)) as order_file,
            memory_file(call.input) as given,
            Path(os.devnull).open("wb") as nowhere,
            os.fdopen(said, "wb"),
            os.fdopen(reported, "wb"),
        ):
            handles = [file.fileno() for file in (order_file, given, output or nowhere)]
            with self._guard, contextlib.suppress(OSError):
                socket.send_fds(self._socket, [b"."], [*handles, said, reported])
        stderr, report = os.fdopen(saying, encoding="utf-8", errors="replace"), os.fdopen(reporting, encoding="ascii")
        if pid := report.readline():
            return Forked(int(pid), stderr, report)
        stderr.close()
        report.close()
        return None


@contextlib.contextmanager
def starting(*, forked: bool) -> Iterator[Start]:
    """Yields what starts processes: forked ones where that is wished and can be done."""
    with contextlib.ExitStack() as stack:
        start: Start = start_python
        if forked and sys.platform.startswith("linux"):
            with contextlib.suppress(OSError):
                start = stack.enter_context(ForkServer()).start
        yield start


class Forked:
    """A child of the fork server.

    Args:
        pid: Its process number.
        stderr: What it says.
        report: Where the server writes its exit code at its end.
    """

    def __init__(self, pid: int, stderr: IO[str], report: IO[str]) -> None:
        self.pid = pid
        self.stderr = stderr
        # Without a word of its end the server has gone, and its children with it.
        self._code = -int(signal.SIGTERM)
        self._ended = threading.Event()
        threading.Thread(target=self._listen, args=(report,), daemon=True).start()

    def _listen(self, report: IO[str]) -> None:
        with report:
            last = report.readline()
        if last:
            self._code = int(last)
        self._ended.set()

    def wait(self, timeout: float | None = None) -> int:
        """As `subprocess.Popen.wait`."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
        return self._code

    def terminate(self) -> None:
        """As `subprocess.Popen.terminate`."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """As `subprocess.Popen.kill`."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if not self._ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _launch(orders: socket.socket) -> subprocess.Popen[bytes]:
    # One thread until a child asks for more: libraries read this when they are loaded.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-m", "recurra.study.fork_server"]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=orders.fileno(), stdout=quiet, stderr=quiet, env=environment)


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1)
    except OSError:
        return b""


def serve(orders: socket.socket) -> None:
    """Forks a child for each order until the other side has gone; in a child it does not return."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    reports: dict[int, int] = {}
    channel = orders.fileno()
    while True:
        ready, _, _ = select.select([channel, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _report_ended(reports)
        if channel not in ready:
            continue
        word, handles, _, _ = socket.recv_fds(orders, 1, _HANDLES)
        if not word:
            return
        pid = _fork() if len(handles) == _HANDLES else None
        if pid == 0:
            signal.set_wakeup_fd(-1)
            orders.close()
            order, given, output, said, report = handles
            for handle in (woken, wake, report, *reports.values()):
                os.close(handle)
            _become(order, given, output, said)
        if pid is not None:
            reports[pid] = handles.pop()
            _write(reports[pid], pid)
        # Whose report is closed without a word starts the process in another way.
        for handle in handles:
            os.close(handle)


def _fork() -> int | None:
    """As `os.fork`; nothing where the system has no room for another process."""
    with warnings.catch_warnings(), contextlib.suppress(OSError):
        # Python 3.12 and later warn of the thread of Arrow's allocator, which does come back.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()
    return None


def _report_ended(reports: dict[int, int]) -> None:
    """Writes how children ended, each to whom it was started for."""
    while reports:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        report = reports.pop(pid)
        _write(report, os.waitstatus_to_exitcode(status))
        os.close(report)


def _write(report: int, number: int) -> None:
    # Who asked may have gone.
    with contextlib.suppress(BrokenPipeError):
        os.write(report, f"{number}\n".encode())


def _become(order: int, given: int, output: int, said: int) -> NoReturn:
    """Makes this forked child the process that was asked for, and runs it to its end."""
    with open(order, encoding="utf-8") as file:
        wanted: Mapping[str, Any] = json.load(file)
    for handle, standard in ((given, 0), (output, 1), (said, 2)):
        os.dup2(handle, standard)
        os.close(handle)
    end_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(wanted["environment"])
    os.chdir(wanted["cwd"])
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    _limit_threads(int(threads) if threads.isdecimal() and int(threads) else available_cores())
    sys.argv = [wanted["module"], *wanted["arguments"]]
    # It is run as a program; what it imports is there.
    sys.modules.pop(wanted["module"], None)
    try:
        runpy.run_module(wanted["module"], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code == 1 and not isinstance(end.code, int):
            sys.stderr.write(f"{end.code}\n")
    except BaseException as error:  # noqa: BLE001 - as Python does at the outermost
        traceback.print_exc()
        code = -int(signal.SIGINT) if isinstance(error, KeyboardInterrupt) else 1
    _leave(code)


def _leave(code: int) -> NoReturn:
    """Ends this child as Python would, but for taking apart what was imported: that copies all of its memory."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


def _limit_threads(count: int) -> None:
    """Gives the numeric libraries their threads; those that are loaded read no environment any more."""
    import torch
    from threadpoolctl import threadpool_limits

    threadpool_limits(count)
    torch.set_num_threads(count)


def _may_fork() -> bool:
    """Whether nothing was set up that a fork would break."""
    import torch

    if torch.accelerator.is_available():
        return False
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    return len([name for name in names if name not in _HARMLESS_THREADS]) == 1


def main() -> int:
    """Imports, says whether it forks, and does so until its maker has gone."""
    end_with_parent()
    # A terminal sends Ctrl-C to all processes; the study ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    orders = socket.socket(fileno=os.dup(0))
    for name in IMPORTED:
        importlib.import_module(name)
    # Of what was imported; the checkout may move on.
    code_record()
    gc.collect()
    gc.freeze()
    forks = _may_fork()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        orders.sendall(_FORKS if forks else _DOES_NOT)
    if forks:
        serve(orders)
    return 0


if __name__ == "__main__":
    sys.exit(main())
