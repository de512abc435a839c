"""Children that find everything imported but the project, and pytest within them."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import resource
import shutil
import signal
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from faults.forked import Child
from mutants.rooms import REPOSITORY

# More than any test needs; a mutant that asks for the machine is refused.
_MOST_BYTES = 16 * 2**30
_PR_SET_PDEATHSIG = 1


def warm_up(modules: Sequence[str]) -> None:
    """Imports modules of others, so that a child need not; with the threads that the suite gives them.

    The suite's own settings come too late for what is imported here, and a forked child of a pool of threads fails.
    """
    os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    gc.collect()
    gc.freeze()


def end_with_parent() -> None:
    """Has the system end this process with the one that started it; the project's own cannot be imported here yet."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Forked(Child):
    """A child with a folder of its own, which is removed with whatever the child has started.

    Args:
        call: What it does in that folder; returns its exit code.
    """

    def __init__(self, call: Callable[[Path], int]) -> None:
        scratch = Path(tempfile.mkdtemp(prefix="recurra-mutants-"))
        super().__init__(lambda: _call(call, scratch), scratch)

    @property
    def said(self) -> str:
        """The end of what it wrote."""
        files = (self.scratch / name for name in ("out", "err"))
        return "".join(file.read_text(encoding="utf-8", errors="replace")[-2000:] for file in files)

    def __enter__(self) -> Forked:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.destroy()
        shutil.rmtree(self.scratch, ignore_errors=True)


def _call(call: Callable[[Path], int], scratch: Path) -> int:
    end_with_parent()
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.tempdir = os.environ["TMPDIR"]
    os.chdir(REPOSITORY)
    return call(scratch)


def pytest_main(arguments: Sequence[str], plugin: object) -> int:
    """Runs pytest in this process, as the suite is run but without what it prints and keeps."""
    import pytest

    options = "--strict-markers --import-mode=importlib -p no:schemathesis -p no:cacheprovider -p no:xdist"
    options += " -W ignore::pytest.PytestAssertRewriteWarning"  # of plugins that were imported to save time
    return int(pytest.main(["-o", f"addopts={options}", "--no-header", "-q", "--tb=no", *arguments], [plugin]))
