"""What ran, and where: versions, processor, commit. Reads package metadata and imports none of the packages."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from functools import lru_cache
from pathlib import Path

from recurra.core.record import CodeRecord, EnvironmentRecord
from recurra.core.version import __version__

PACKAGES = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "safetensors", "numpy", "scikit-learn")


@lru_cache(maxsize=1)
def package_versions() -> dict[str, str]:
    """Versions of the packages that can change a number."""
    return {name: importlib.metadata.version(name) for name in PACKAGES}


@lru_cache(maxsize=1)
def cpu_name() -> str:
    """The processor's name as the system gives it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def waited_s() -> float | None:
    """Seconds that the threads of this process were ready and others had the processors; none where nobody counts it.

    Linux does (``schedstat``). Threads that have ended are not in it.
    """
    try:
        return sum(int(path.read_text().split()[1]) for path in Path("/proc/self/task").glob("*/schedstat")) / 1e9
    except (OSError, ValueError, IndexError):
        return None


@lru_cache(maxsize=1)
def code_record() -> CodeRecord:
    """Version, and commit and cleanness of the checkout if the package runs from one."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return CodeRecord(version=__version__)

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    status = git("status", "--porcelain", "--", "src", "configs")
    return CodeRecord(
        version=__version__, commit=git("rev-parse", "HEAD"), dirty=None if status is None else bool(status)
    )


def environment_record(*, threads: int, precision: str, accelerator: str | None = None) -> EnvironmentRecord:
    """Describes this machine and process.

    Args:
        threads: Threads that the numeric library uses.
        precision: Precision of the matrix products.
        accelerator: Name of the accelerator, if one is used.
    """
    return EnvironmentRecord(
        python=platform.python_version(),
        packages=package_versions(),
        platform=platform.platform(),
        cpu=cpu_name(),
        cores=available_cores(),
        threads=threads,
        accelerator=accelerator,
        precision=precision,
    )


def started_by_torchrun() -> bool:
    """Whether this is one of several processes; ``WORLD_SIZE`` is torchrun's documented way to say so."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1
