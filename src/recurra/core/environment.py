"""Describes the machine and the code (versions, processor, cores, memory), and tunes the allocator."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.metadata
import math
import mmap
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from recurra.core.record import CodeRecord, EnvironmentRecord
from recurra.core.version import __version__

# The packages that can change a number.
PACKAGES = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "safetensors", "numpy", "scikit-learn")
# Microseconds of a processor per period that the control group may have, on Linux (version 2).
_CONTAINER_SHARE = Path("/sys/fs/cgroup/cpu.max")


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
    """Cores that this process may use: those that it may run on, and no more than its container's share of time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    try:
        quota, period = _CONTAINER_SHARE.read_text().split()
        return min(cores, max(1, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):
        # No container, or one without a limit ("max").
        return cores


def waited_s() -> float | None:
    """Seconds that threads of this process were ready but waited for a processor, by Linux's ``schedstat``."""
    try:
        return sum(int(path.read_text().split()[1]) for path in Path("/proc/self/task").glob("*/schedstat")) / 1e9
    except (OSError, ValueError, IndexError):
        return None


@lru_cache(maxsize=1)
def code_record() -> CodeRecord:
    """Version of the package; commit and whether there are changes if it runs from a checkout."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return CodeRecord(version=__version__)

    def git(*arguments: str) -> str | None:
        try:
            result = subprocess.run(
                ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return result.stdout.strip()

    status = git("status", "--porcelain", "--", "src", "configs")
    return CodeRecord(
        version=__version__, commit=git("rev-parse", "HEAD"), dirty=None if status is None else bool(status)
    )


def environment_record(*, threads: int, precision: str, accelerator: str | None = None) -> EnvironmentRecord:
    """Describes this machine and process."""
    return EnvironmentRecord(
        python=platform.python_version(),
        packages={name: importlib.metadata.version(name) for name in PACKAGES},
        platform=platform.platform(),
        cpu=cpu_name(),
        cores=available_cores(),
        threads=threads,
        accelerator=accelerator,
        precision=precision,
    )


def started_by_torchrun() -> bool:
    """Whether this is one of several processes, by torchrun's documented variable ``WORLD_SIZE``."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_MMAP_MAX = -4
_M_ARENA_MAX = -8
_NEVER = -1
# The size from which a block is mapped by itself, and the free bytes that are kept at the end of the heap.
_LARGE_BYTES = (256 * 1024, 128 * 1024)
# The values that the allocator would reach by itself.
_LARGE_BYTES_OF_TORCH = (32 * 2**20, 64 * 2**20)

# Address space, not memory: a page counts once it is touched.
_HEAP_RESERVE_BYTES = 4 * 2**30


def tune_allocator() -> None:
    """Calls `keep_freed_memory` and `use_huge_pages`; for training and our commands, before large allocations."""
    keep_freed_memory()
    use_huge_pages()


def keep_freed_memory() -> bool:
    """Tells glibc's allocator to keep freed blocks instead of returning them to the system; elsewhere does nothing.

    Every step allocates gradients as large as the embedding table. If they were returned to the system, their pages
    would be faulted in and zeroed at each step, which took 40 % of a training step on a CPU. The setting holds for the
    whole process, so only training and our commands ask for it.
    """
    return _set_allocator((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _NEVER))


def use_huge_pages() -> bool:
    """Asks Linux to back the heap with pages of 2 MiB, where weights, gradients and moments will lie.

    A step streams over all of them several times; with pages of 4 KiB the processor looks up an address for every
    thousandth number. The heap's address space is grown first, because the request holds for mapped memory only. It
    stays grown only after `keep_freed_memory`.
    """
    libc = _glibc()
    if libc is None or not hasattr(mmap, "MADV_HUGEPAGE"):
        return False
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.free(libc.malloc(_HEAP_RESERVE_BYTES))
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text(encoding="ascii", errors="replace").splitlines():
            if line.endswith("[heap]"):
                start, end = (int(address, 16) for address in line.split(" ", 1)[0].split("-"))
                return bool(libc.madvise(start, end - start, mmap.MADV_HUGEPAGE) == 0)
    return False


def peak_memory_mib() -> float:
    """Largest resident size of this process so far, in MiB; ``getrusage`` also counts the process that started it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def reset_peak_memory() -> bool:
    """Returns freed memory to the system and resets the peak, so that it counts from now on."""
    return_freed_memory()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        return True
    return False


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Python does not look for unreachable cycles meanwhile; among many objects that all stay, that takes long."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def return_freed_memory() -> None:
    """Returns freed memory, such as that of a dropped model, to the system; the allocator would keep it."""
    gc.collect()
    if (library := _glibc()) is not None:
        library.malloc_trim(0)


def limit_fragmentation() -> bool:
    """Tells glibc's allocator to keep few gaps where large blocks were, for a process that runs for weeks.

    Call it before threads start, and again once models are loaded. All threads then share one arena, and large blocks
    are always mapped by themselves, which the allocator would stop doing once it has freed one. Large means 256 KiB and
    more, or 32 MiB where torch computes, because mapping the output of each layer made a batch take 1.6 times as long.
    """
    mapped, trimmed = _LARGE_BYTES_OF_TORCH if "torch" in sys.modules else _LARGE_BYTES
    return _set_allocator((_M_ARENA_MAX, 1), (_M_MMAP_THRESHOLD, mapped), (_M_TRIM_THRESHOLD, trimmed))


def _set_allocator(*settings: tuple[int, int]) -> bool:
    libc = _glibc()
    return libc is not None and all(libc.mallopt(*setting) for setting in settings)


def _glibc() -> ctypes.CDLL | None:
    with contextlib.suppress(OSError):
        return ctypes.CDLL("libc.so.6")
    return None
