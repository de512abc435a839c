"""The file layer of ``layer.c``: built with the machine's C compiler, loaded into this process when it starts."""

from __future__ import annotations

import ctypes
import enum
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_PRELOAD = "LD_PRELOAD"
_SOURCE = Path(__file__).with_name("layer.c")


class Failure(enum.IntEnum):
    """What becomes of the calls that a layer counts."""

    NONE = 1
    FULL = 2
    BROKEN = 3
    SHORT = 4


def start_again_with_layer(folder: Path, module: str, arguments: Sequence[str]) -> None:
    """Replaces this process by one that has the layer, unless it has; without a C compiler it goes on without."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux") or is_loaded():
        return
    library = folder / "layer.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(_SOURCE), "-ldl"], check=True)
    environment = {**os.environ, _PRELOAD: str(library)}
    os.execve(sys.executable, [sys.executable, "-m", module, *arguments], environment)


def is_loaded() -> bool:
    """Whether this process has the layer."""
    return hasattr(ctypes.CDLL(None), "faults_arm")


def forget_preload() -> None:
    """Keeps the layer out of programs that this process starts."""
    os.environ.pop(_PRELOAD, None)


def arm(folder: Path, failure: Failure, call: int = 0) -> None:
    """Counts calls below a folder in this process from now on, and spoils the ``call``-th."""
    ctypes.CDLL(None).faults_arm(os.fsencode(folder.resolve()), int(failure), ctypes.c_long(call))


def counted() -> int:
    """Calls since `arm`."""
    function = ctypes.CDLL(None).faults_count
    function.restype = ctypes.c_long
    return int(function())
