"""The shipped command in a child of this process, which has imported everything: a child costs no second for imports.

This process computes nothing and starts no thread, so that a fork of it is as good as a fresh one.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
PATIENCE_S = 120.0
# Of what a command should never end with: an exception that nobody caught.
UNCAUGHT = 99
_HELD = (signal.SIGINT, signal.SIGTERM)


def warm_up() -> None:
    """Imports what commands import, and adopts what they leave behind."""
    import onnxruntime  # noqa: F401
    import sklearn.linear_model
    import sklearn.svm  # noqa: F401
    import transformers
    import uvicorn  # noqa: F401

    import interrupted  # noqa: F401
    import recurra.adaptation
    import recurra.comparison
    import recurra.deployment.onnx.model
    import recurra.deployment.serving.server
    import recurra.study.exporting
    import recurra.study.run  # noqa: F401

    transformers.utils.logging.disable_progress_bar()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    gc.collect()
    gc.freeze()


@dataclass(frozen=True)
class Ended:
    """How a child ended."""

    code: int
    out: str
    err: str
    wall_s: float
    temporary: list[str] = field(default_factory=list)

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
    """A forked child that calls a function; its output lies in files of the scratch folder."""

    def __init__(self, call: Callable[[], int], scratch: Path) -> None:
        (scratch / "tmp").mkdir(parents=True, exist_ok=True)
        self.scratch = scratch
        self._started = time.perf_counter()
        self._code: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        reading, writing = os.pipe()
        # What comes before the child is in place would meet this program, not the command.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reading)
            _be_child(call, scratch, writing)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
        os.close(writing)
        os.read(reading, 1)
        os.close(reading)

    def wait(self, seconds: float = PATIENCE_S) -> bool:
        """Waits for its end; says whether that came."""
        end = time.perf_counter() + seconds
        while self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
            elif time.perf_counter() >= end:
                return False
            else:
                time.sleep(0.001)
        return True

    def send(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        if self._code is None:
            os.kill(self.pid, number)

    def end(self, seconds: float = PATIENCE_S) -> Ended:
        """Waits for its end and for that of everything it started; what does not end is killed and told."""
        ended = self.wait(seconds) and self._family_ends(seconds)
        wall_s = time.perf_counter() - self._started
        if not ended:
            self.destroy()
        out, err = ((self.scratch / name).read_text(encoding="utf-8", errors="replace") for name in ("out", "err"))
        if not ended:
            raise TimeoutError(f"it did not end within {seconds:g} s; {err[-300:]}")
        temporary = sorted(path.name for path in (self.scratch / "tmp").iterdir())
        return Ended(int(self._code or 0), out, err, wall_s, temporary)

    def destroy(self) -> None:
        """Kills it and everything it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait(5)
        self._family_ends(5)

    @property
    def code(self) -> int | None:
        """Its exit code, negative for a signal; none before its end was waited for."""
        return self._code

    def _family_ends(self, seconds: float) -> bool:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-self.pid, os.WNOHANG)[0]:
                    pass
            try:
                os.killpg(self.pid, 0)
            except ProcessLookupError:
                return True
            time.sleep(0.002)
        return False


def _be_child(call: Callable[[], int], scratch: Path, writing: int) -> None:
    code = UNCAUGHT
    try:
        os.setpgid(0, 0)
        for number in (signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ["TMPDIR"] = str(scratch / "tmp")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        for name, handle in (("out", 1), ("err", 2)):
            opened = os.open(scratch / name, flags, 0o644)
            os.dup2(opened, handle)
            os.close(opened)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.write(writing, b".")
        os.close(writing)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
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
