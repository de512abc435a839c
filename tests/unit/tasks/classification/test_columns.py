"""Columns of classifiers that not every table has."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from factories import RunFactory
from recurra.core.record import read_record
from recurra.report.load import load_runs
from recurra.report.render.html import render_report
from recurra.report.summary import summarise
from recurra.tasks.classification.columns import RESULTS

ROWS = {"train": 90, "validation": 60, "test": 80}


@pytest.mark.parametrize("temperature", [None, 3.0])
def test_the_calibration_error_stands_beside_what_it_was(temperature: float | None, tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=ROWS, temperature=temperature)
    folders = [factory.run("recurrent", seed=seed) for seed in (0, 1)]
    runs, _ = load_runs(folders)
    summary = summarise(runs)
    [table] = summary.tables
    columns, [row] = RESULTS.shown(table, "terminal")
    found = [column for column in columns if column.key == "calibration_error"]
    page = render_report(summary, runs, title="x")
    assert ("Guo et al. 2017" in page) == bool(found) == (temperature is not None)
    if not found:
        return
    metrics = [read_record(folder).metrics["test"] for folder in folders]
    after = statistics.fmean(item.calibration_error for item in metrics)
    before = statistics.fmean(item.uncalibrated_error for item in metrics)
    assert after != before and found[0].text(row) == f"{after:.3f} ({before:.3f})"
    assert found[0].fields(row) == pytest.approx({"calibration_error": after, "uncalibrated_error": before})
