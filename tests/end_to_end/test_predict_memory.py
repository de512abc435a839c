"""Predicting a file of a million rows takes no more memory than one of a thousand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MOST_GROWTH_MIB = 200


def peak_mib(run: Path, source: Path, output: Path) -> float:
    """Largest resident size of a ``recurra predict`` process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "recurra", "predict", str(run), "-i", str(source), "-o", str(output), "--quiet"]
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def write_rows(path: Path, rows: int) -> None:
    with path.open("w", encoding="utf-8") as stream:
        stream.write("text\n")
        stream.writelines(f"film {number} was good\n" for number in range(rows))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_rows_grow_the_memory_by_less_than_200_mib(linear_run: Path, tmp_path: Path) -> None:
    small, large, output = tmp_path / "small.csv", tmp_path / "large.csv", tmp_path / "p.csv"
    write_rows(small, 1_000)
    write_rows(large, 1_000_000)
    growth = peak_mib(linear_run, large, output) - peak_mib(linear_run, small, tmp_path / "q.csv")
    assert growth < MOST_GROWTH_MIB
    number = 0
    with output.open(encoding="utf-8") as stream:
        next(stream)
        for number, line in enumerate(stream, start=1):
            assert line.startswith(f"film {number - 1} was good,")
    assert number == 1_000_000
