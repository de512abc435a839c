"""The allocator's settings, each in a process of its own, because they cannot be taken back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")

PROLOGUE = """
import re, resource
import numpy as np
from pathlib import Path
from recurra.core.memory import keep_freed_memory, peak_memory_mib, use_huge_pages

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def huge_mib():
    return int(re.search(r"AnonHugePages: *(\\d+)", Path("/proc/self/smaps_rollup").read_text())[1]) / 1024
"""


def answer(script: str) -> float:
    done = subprocess.run([sys.executable, "-c", PROLOGUE + script], capture_output=True, text=True, check=True)
    return float(done.stdout)


glibc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a setting of glibc's allocator")


@glibc
def test_freed_blocks_are_kept() -> None:
    script = """
assert not {setting} or keep_freed_memory()
# Not numpy, which asks for huge pages by itself.
for _ in range(3):
    b"x" * 2**25
before = faults()
for _ in range(3):
    b"x" * 2**25
print(faults() - before)
"""
    assert answer(script.format(setting=False)) > 3 * 2**25 / 2**16
    assert answer(script.format(setting=True)) < 100


@glibc
def test_reserved_address_space_costs_no_memory() -> None:
    grown = answer("""
before = peak_memory_mib()
keep_freed_memory(), use_huge_pages()
print(peak_memory_mib() - before)
""")
    assert grown < 8


@glibc
@pytest.mark.skipif(
    not THP.is_file() or "[never]" in THP.read_text(encoding="ascii"), reason="this kernel gives no huge pages"
)
def test_large_arrays_lie_in_huge_pages() -> None:
    gained = answer("""
keep_freed_memory()
assert use_huge_pages()
before = huge_mib()
kept = [np.ones(2**21) for _ in range(8)]
print(huge_mib() - before)
""")
    # Of 128 MiB; a machine short of free memory gives fewer.
    assert gained > 32
