"""Parts of the bench that use much of the library still run with it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from benchmarks import __main__ as bench
from benchmarks.render import rows

from recurra.core.files import read_json


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", ["deployment", "study", "report"])
def test_a_quick_run_of_a_part_writes_figures(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Made-up rows do as well, and are there at once.
    monkeypatch.delenv("RECURRA_DATA_ROOT", raising=False)
    target = tmp_path / "bench.json"
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--quick", "--only", part, "--json", str(target)])
    assert bench.main() == 0
    report = read_json(target)
    assert rows(report)
    assert all(measure["result"] > 0 for measure in report["measures"])
