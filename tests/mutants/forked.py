"""Children that find everything imported but the project, and pytest within them."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from mutants.rooms import REPOSITORY

# More than any test needs; a mutant that asks for the machine is refused.
_MOST_BYTES = 16 * 2**30


def warm_up(modules: Sequence[str]) -> None:
    """Imports modules of others, so that a child need not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    gc.collect()
    gc.freeze()


class Forked:
    """A child with a folder of its own, which is removed with whatever the child has started.

    Args:
        call: What it does in that folder; returns its exit code.
    """

    def __init__(self, call: Callable[[Path], int]) -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix="recurra-mutants-"))
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _be_child(call, self.scratch)
        self._code: int | None = None

    def wait(self, seconds: float) -> int | None:
        """Its exit code, negative for a signal; none if it did not end in time."""
        end = time.perf_counter() + seconds
        pause = 0.002
        while self._code is None and time.perf_counter() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
            else:
                time.sleep(pause)
                pause = min(0.05, pause * 1.2)
        return self._code

    def __enter__(self) -> Forked:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if self._code is None:
            os.waitpid(self.pid, 0)
        shutil.rmtree(self.scratch, ignore_errors=True)


def _be_child(call: Callable[[Path], int], scratch: Path) -> None:
    code = 70
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        log = os.open(scratch / "log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ["TMPDIR"] = os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.tempdir = str(scratch)
        os.chdir(REPOSITORY)
        code = call(scratch)
    except BaseException:  # noqa: BLE001 - a child never returns into its parent's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def pytest_main(arguments: Sequence[str], plugin: object) -> int:
    """Runs pytest in this process, as the suite is run but without what it prints and keeps."""
    import pytest

    options = "--strict-markers --import-mode=importlib -p no:schemathesis -p no:cacheprovider -p no:xdist"
    options += " -W ignore::pytest.PytestAssertRewriteWarning"  # of plugins that were imported to save time
    return int(pytest.main(["-o", f"addopts={options}", "--no-header", "-q", "--tb=no", *arguments], [plugin]))
