"""The shipped command in a child of this process, which has imported everything: a child costs no second for imports.

This process computes nothing and starts no thread, so that a fork of it is as good as a fresh one.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
PATIENCE_S = 120.0
# Of what a command should never end with: an exception that nobody caught.
UNCAUGHT = 99
_HELD = (signal.SIGINT, signal.SIGTERM)
# With what these import in turn.
_IMPORTED = (
    *("interrupted", "onnxruntime", "sklearn.linear_model", "sklearn.svm", "recurra.adaptation", "recurra.comparison"),
    *("recurra.deployment.onnx.model", "recurra.deployment.serving.server"),
)


def warm_up() -> None:
    """Imports what commands import, and adopts what they leave behind."""
    for name in _IMPORTED:
        importlib.import_module(name)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    gc.collect()
    gc.freeze()


@dataclass(frozen=True)
class Ended:
    """How a child ended, and what it left in its folder for temporary files."""

    code: int
    err: str
    wall_s: float
    temporary: list[str]

    @property
    def interrupted(self) -> bool:
        """Whether a signal ended it."""
        return self.code < 0 or self.code == 130

    @property
    def is_clean(self) -> bool:
        """Whether it said what a command may say: no traceback, and an error in one line."""
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        said = "Traceback" not in self.err and "Exception ignored" not in self.err and self.code != UNCAUGHT
        return said and (self.code in (0, 3) or self.interrupted or len(lines) == 1)


class Child:
    """A forked child that calls a function; what it says lies in the scratch folder."""

    def __init__(self, call: Callable[[], int], scratch: Path) -> None:
        (scratch / "tmp").mkdir(parents=True)
        (scratch / "err").touch()
        self._scratch, self._began = scratch, time.perf_counter()
        self._process = multiprocessing.get_context("fork").Process(target=_be_child, args=(call, scratch))
        # What comes before the child is in place waits for it: it would meet this program, not the command.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
        self._process.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)

    def signal_after(self, seconds: float, number: signal.Signals) -> None:
        """Sends it a signal, if it has not ended by then."""
        self._process.join(seconds)
        if self._process.exitcode is None:
            os.kill(int(self._process.pid or 0), number)

    def end(self, seconds: float = PATIENCE_S) -> Ended:
        """Waits for its end and for that of everything it started; what does not end is killed and told."""
        self._process.join(seconds)
        ended = self._family_ends(0 if self._process.exitcode is None else seconds)
        wall_s = time.perf_counter() - self._began
        err = (self._scratch / "err").read_text(encoding="utf-8", errors="replace")
        if not ended:
            os.killpg(int(self._process.pid or 0), signal.SIGKILL)
            raise TimeoutError(f"it did not end within {seconds:g} s; {err[-300:]}")
        temporary = sorted(path.name for path in (self._scratch / "tmp").iterdir())
        return Ended(int(self._process.exitcode or 0), err, wall_s, temporary)

    def _family_ends(self, seconds: float) -> bool:
        group, end = int(self._process.pid or 0), time.perf_counter() + seconds
        while time.perf_counter() < end:
            try:
                os.killpg(group, 0)
            except ProcessLookupError:
                return True
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-group, os.WNOHANG)
            time.sleep(0.002)
        return False


def _be_child(call: Callable[[], int], scratch: Path) -> None:
    code = UNCAUGHT
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ["TMPDIR"] = tempfile.tempdir = str(scratch / "tmp")
        nowhere = os.open(os.devnull, os.O_RDWR)
        for opened, handle in ((nowhere, 0), (nowhere, 1), (os.open(scratch / "err", os.O_WRONLY), 2)):
            os.dup2(opened, handle)
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
        except KeyboardInterrupt:
            code = 130
        else:
            code = call()
    except BaseException:  # noqa: BLE001 - what Python itself would print
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def command(arguments: Sequence[object]) -> Callable[[], int]:
    """The shipped command as a function; workers of a study are processes of their own."""

    def call() -> int:
        from recurra.cli.main import main

        return main([str(argument) for argument in arguments])

    return call
