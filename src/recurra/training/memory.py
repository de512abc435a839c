"""Memory of the training process: keeping freed blocks, and the peak."""

from __future__ import annotations

import contextlib
import ctypes
import resource
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4


def keep_freed_memory() -> bool:
    """Tells glibc's allocator to keep freed blocks instead of returning them to the system.

    Every step allocates gradients as large as the embedding table. Returned to the system, their pages are faulted in
    and zeroed again at each step, which took 40 % of a training step on a CPU. Elsewhere than on glibc nothing happens.

    Returns:
        Whether the setting was accepted.
    """
    if not sys.platform.startswith("linux"):
        return False
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        return bool(libc.mallopt(_M_MMAP_MAX, 0)) and bool(libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))
    return False


def peak_memory_mib() -> float:
    """Largest resident size of this process so far, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
