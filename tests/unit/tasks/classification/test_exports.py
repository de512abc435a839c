"""The table of exports: figures over seeds by an independent formula, and every place that shows it."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from exported import export_record
from factories import RunFactory, latency_of
from recurra.core.record import read_record
from recurra.tasks.classification.exports import PUBLISHED
from recurra.tasks.measures import StudyLatency
from recurra.tasks.questions import PublishedReference, Questions
from recurra.tasks.summary import plain
from rendered import summarise_folders, summarise_runs

LOSSES = {0: (4, 0), 1: (0, 2), 2: (8, 0)}
TABLES = {"13 fp32": "fp32", "13 fp16": "fp16"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of three models by model and seed."""
    rows = {"train": 900, "validation": 300, "test": 400}
    factory = RunFactory(tmp_path_factory.mktemp("study") / "runs", rows=rows, precision="bf16")
    return {
        f"{name} {seed}": factory.run(name, seed=seed)
        for name in ("linear", "recurrent", "baseline")
        for seed in (0, 1, 2)
    }


@pytest.fixture(scope="module")
def table(folders: dict[str, Path]) -> dict[str, Any]:
    """Exports of each seed of one model and one of another's; one of the former is timed."""

    def export(run: str, precision: str, **values: int) -> Any:
        record_hash = str(read_record(folders[run]).content_hash)
        return export_record(folders[run].name, precision, record_hash=record_hash, **values)

    exports = [export("baseline 0", "fp32", right=310, parameters=25_912_706)]
    for seed, (lost, gained) in LOSSES.items():
        same = {"right": 300 + seed, "parameters": 10_972_162}
        exports.append(export(f"recurrent {seed}", "fp16", lost=lost, gained=gained, **same))
        exports.append(export(f"recurrent {seed}", "fp32", **same))
    timed = f"{folders['recurrent 0'].name}/safetensors-fp16"
    latency = StudyLatency(
        exports={timed: latency_of("recurrent", "fp32", factor=0.5)},
        memory_mib={timed: 310.4, "another/safetensors-fp16": 99.0},
    )
    published = [PublishedReference(table=name, precision=precision) for name, precision in TABLES.items()]
    questions = Questions(published=(*published, PublishedReference(table="6")))
    found = summarise_folders(list(folders.values()), latency, questions=questions, exports=exports)
    assert found.warnings == []
    (table,) = plain(found)["tables"]
    assert isinstance(table, dict)
    return table


def test_the_gap_is_paired_by_seed_and_wider_precisions_stand_first(table: dict[str, Any]) -> None:
    assert [(line["model"], line["precision"], line["seeds"]) for line in table["exports"]] == [
        ("baseline", "fp32", [0]), ("recurrent", "fp32", [0, 1, 2]), ("recurrent", "fp16", [0, 1, 2]),
    ]  # fmt: skip
    baseline, whole, half = table["exports"]
    gaps = [(gained - lost) / 400 for lost, gained in LOSSES.values()]
    assert half["gap"] == pytest.approx(statistics.fmean(gaps))
    assert half["gap_half"] == pytest.approx(stats.t.ppf(0.975, 2) * statistics.stdev(gaps) / 3**0.5)
    assert (half["labels_changed"], half["only_export"], half["only_reference"], half["rows"]) == (14, 2, 12, 1200)
    assert half["accuracy"]["mean"] == pytest.approx(statistics.fmean([296 / 400, 303 / 400, 294 / 400]))
    assert (whole["gap"], whole["gap_half"], whole["labels_changed"]) == (0, 0, 0)
    assert baseline["gap_half"] is None


def test_sizes_are_those_of_the_files_and_times_those_of_the_exports(table: dict[str, Any]) -> None:
    _, whole, half = table["exports"]
    assert whole["weights_mib"] == pytest.approx(2 * half["weights_mib"]) == pytest.approx(10_972_162 * 4 / 2**20)
    timed = latency_of("recurrent", factor=0.5)
    assert half["median_ms"] == {key.removeprefix("batch_"): value.median_ms for key, value in timed.items()}
    for name, read in (("p90_ms", 1.35), ("p99_ms", 2.5)):
        assert half[name] == {batch: pytest.approx(value * read) for batch, value in half["median_ms"].items()}
    assert (whole["median_ms"], whole["p99_ms"]) == ({}, {})
    assert half["memory_mib"] == 310.4 and whole["memory_mib"] is None
    assert half["computed"] == "fp32, torch on cpu" and half["precision"] == "fp16"


def test_table_13_stands_beside_the_export_of_its_precision(table: dict[str, Any]) -> None:
    for line, name in zip(table["exports"], ("13 fp32", "13 fp32", "13 fp16"), strict=True):
        (published,) = line["published"]
        accuracy, *_ = PUBLISHED[name]["figures"][line["model"]]
        assert accuracy is not None
        assert (published["source"], published["accuracy"]) == (PUBLISHED[name]["source"], accuracy)
        assert published["difference"] == pytest.approx(line["accuracy"]["mean"] - accuracy)
        assert published["size_mib"] == pytest.approx(line["weights_mib"], abs=0.01)
    # Training took place in bf16: the run table of bf16 has no published table of its own here.
    assert {line["source"] for line in table["published"]} == {"table 6"}


def test_exports_of_a_run_that_was_trained_anew_are_left_out(folders: dict[str, Path]) -> None:
    stale = export_record(folders["recurrent 0"].name, "fp16", record_hash="1" * 64)
    assert summarise_runs(list(folders.values()), exports=[stale])["tables"][0]["exports"] == []
