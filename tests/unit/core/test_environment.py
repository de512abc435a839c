"""What ran and where."""

from __future__ import annotations

import importlib.metadata
import os
import platform

from recurra import __version__
from recurra.core.environment import PACKAGES, available_cores, code_record, environment_record


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
