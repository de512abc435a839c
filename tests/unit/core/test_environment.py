"""What ran and where."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from recurra import __version__
from recurra.core import environment
from recurra.core.environment import PACKAGES, available_cores, code_record, environment_record, waited_s


def test_the_environment_says_what_can_change_a_number() -> None:
    record = environment_record(threads=2, precision="bf16", accelerator="X")
    assert record.python == platform.python_version()
    assert record.packages == {name: importlib.metadata.version(name) for name in PACKAGES}
    assert (record.threads, record.precision, record.accelerator) == (2, "bf16", "X")
    assert record.cpu
    assert 1 <= record.cores == available_cores() <= (os.cpu_count() or 1)
    code = code_record()
    assert code.version == __version__ and (code.commit is None) == (code.dirty is None)
    assert code.commit is None or len(code.commit) == 40


@pytest.mark.parametrize(
    ("share", "wanted"), [("150000 100000", 2), ("20000 100000", 1), ("800000 100000", 3), ("max 100000", 3)]
)
def test_a_container_has_the_cores_of_its_share(
    share: str, wanted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cpu.max"
    path.write_text(f"{share}\n")
    monkeypatch.setattr(environment, "_CONTAINER_SHARE", path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    assert available_cores() == wanted


def test_waiting_for_a_processor_is_counted() -> None:
    if waited_s() is None:
        pytest.skip("this system does not count it")
    program = "import os, time\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    program += "import sys\nfrom recurra.core.environment import waited_s\n"
    # Two processes that share a processor wait for half of the time each.
    program += "child = os.fork()\nend = time.monotonic() + 0.3\nwhile time.monotonic() < end: pass\n"
    program += "if not child: os._exit(0)\nos.wait()\nprint(waited_s())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(done.stdout) > 0.05


THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")
glibc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a setting of glibc's allocator")


def numbers(script: str) -> list[float]:
    script = f"import re, resource\nfrom pathlib import Path\nfrom recurra.core.environment import *\n{script}"
    return [*map(float, subprocess.check_output([sys.executable, "-c", script], text=True).split())]


@glibc
def test_freed_blocks_are_kept_and_large_arrays_lie_in_huge_pages() -> None:
    faulted, gained = numbers("""
def faults():
    for _ in range(3):
        # Not numpy, which asks for huge pages by itself.
        b"x" * 2**25
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def huge_mib():
    return int(re.search(r"AnonHugePages: *(\\d+)", Path("/proc/self/smaps_rollup").read_text())[1]) / 1024

assert keep_freed_memory()
print(-faults() + faults())
import numpy as np
assert use_huge_pages()
before = huge_mib()
kept = [np.ones(2**21) for _ in range(8)]
print(huge_mib() - before)
""")
    # Otherwise each block would be faulted in anew: 1,500 pages and more.
    assert faulted < 100
    # Of 128 MiB, where the kernel gives any; a machine short of free memory gives fewer.
    assert gained > 32 or not THP.is_file() or "[never]" in THP.read_text(encoding="ascii")


@glibc
def test_a_large_block_leaves_no_gap_behind() -> None:
    # A first large block that is freed raises the size from which the allocator maps them by themselves.
    (kept,) = numbers("""
def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20

assert limit_fragmentation()
bytearray(2**25)
before = resident_mib()
blocks = []
for number in range(8):
    large = bytearray(b"x") * 2**22
    # What stays behind each: as large as may be without being large.
    blocks.append(bytearray(b"x") * 100_000)
    del large
    blocks.append(bytearray(b"x") * 100_000)
    larger = bytearray(b"x") * (2**22 + 2**19 * number)
    blocks.append(bytearray(b"x") * 100_000)
    del larger
print(resident_mib() - before)
""")
    # More than 8 without the call.
    assert kept < 5
