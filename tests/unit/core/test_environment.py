"""What ran and where."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys

import pytest

from recurra import __version__
from recurra.core.environment import PACKAGES, available_cores, code_record, environment_record, waited_s


def test_the_environment_says_what_can_change_a_number() -> None:
    record = environment_record(threads=2, precision="bf16", accelerator="X")
    assert record.python == platform.python_version()
    assert record.packages == {name: importlib.metadata.version(name) for name in PACKAGES}
    assert (record.threads, record.precision, record.accelerator) == (2, "bf16", "X")
    assert record.cpu
    assert 1 <= record.cores == available_cores() <= (os.cpu_count() or 1)


def test_the_code_is_named_by_version_and_commit() -> None:
    record = code_record()
    assert record.version == __version__
    assert (record.commit is None) == (record.dirty is None)
    assert record.commit is None or len(record.commit) == 40


def test_waiting_for_a_processor_is_counted() -> None:
    """Two processes that share a processor wait for half of the time each."""
    if waited_s() is None:
        pytest.skip("this system does not count it")
    program = "import os, time\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    program += "import sys\nfrom recurra.core.environment import waited_s\n"
    program += "child = os.fork()\nend = time.monotonic() + 0.6\nwhile time.monotonic() < end: pass\n"
    program += "if not child: os._exit(0)\nos.wait()\nprint(waited_s())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(done.stdout) > 0.1
