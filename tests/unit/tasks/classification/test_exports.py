"""The table of exports: figures over seeds by an independent formula, and every place that shows it."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from scipy import stats

from exported import export_record
from factories import RunFactory, latency_of
from recurra.core.record import read_record
from recurra.tasks.classification.exports import PUBLISHED
from recurra.tasks.measures import StudyLatency
from recurra.tasks.questions import PublishedReference, Questions
from recurra.tasks.summary import Summary, plain
from rendered import summarise_folders, summarise_runs

SMALL = {"train": 900, "validation": 300, "test": 400}
LOSSES = {0: (4, 0), 1: (0, 2), 2: (8, 0)}
QUESTIONS = Questions(
    published=(
        PublishedReference(table="13 fp32", precision="fp32"),
        PublishedReference(table="13 fp16", precision="fp16"),
        PublishedReference(table="6"),
    )
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    factory = RunFactory(tmp_path_factory.mktemp("study") / "runs", rows=SMALL, precision="bf16")
    return [factory.run(name, seed=seed) for name in ("linear", "recurrent", "baseline") for seed in (0, 1, 2)]


def records(folders: list[Path]) -> list:
    hashes = {path.name: str(read_record(path).content_hash) for path in folders}
    made = []
    for seed, (lost, gained) in LOSSES.items():
        run = next(
            path.name for path in folders if path.name.startswith("recurrent") and path.name.endswith(f"s{seed}")
        )
        same: dict = {"record_hash": hashes[run], "right": 300 + seed, "parameters": 10_972_162}
        made.append(export_record(run, "fp16", lost=lost, gained=gained, **same))
        made.append(export_record(run, "fp32", **same))
    baseline = next(path.name for path in folders if path.name.startswith("baseline"))
    last = export_record(baseline, "fp32", record_hash=hashes[baseline], right=310, parameters=25_912_706)
    return [*made, last]


def latency(folders: list[Path]) -> StudyLatency:
    run = next(path.name for path in folders if path.name.startswith("recurrent"))
    return StudyLatency(
        exports={f"{run}/safetensors-fp16": latency_of("recurrent", "fp32", factor=0.5)},
        memory_mib={f"{run}/safetensors-fp16": 310.4, "another/safetensors-fp16": 99.0},
    )


@pytest.fixture(scope="module")
def summary(folders: list[Path]) -> Summary:
    found = summarise_folders(folders, latency(folders), questions=QUESTIONS, exports=records(folders))
    assert found.warnings == []
    return found


@pytest.fixture(scope="module")
def table(summary: Summary) -> dict:
    (table,) = plain(summary)["tables"]
    return table


def test_models_stand_in_the_tables_order_and_wider_before_narrower(table: dict) -> None:
    assert [(line["model"], line["precision"], line["seeds"]) for line in table["exports"]] == [
        ("baseline", "fp32", [0]), ("recurrent", "fp32", [0, 1, 2]), ("recurrent", "fp16", [0, 1, 2]),
    ]  # fmt: skip


def test_the_gap_is_paired_by_seed(table: dict) -> None:
    baseline, whole, half = table["exports"]
    gaps = [(gained - lost) / 400 for lost, gained in LOSSES.values()]
    spread = stats.t.ppf(0.975, 2) * statistics.stdev(gaps) / 3**0.5
    assert half["gap"] == pytest.approx(statistics.fmean(gaps))
    assert half["gap_half"] == pytest.approx(spread)
    assert (half["labels_changed"], half["only_export"], half["only_reference"], half["rows"]) == (14, 2, 12, 1200)
    assert half["accuracy"]["mean"] == pytest.approx(statistics.fmean([296 / 400, 303 / 400, 294 / 400]))
    assert (whole["gap"], whole["gap_half"], whole["labels_changed"]) == (0, 0, 0)
    assert baseline["gap_half"] is None


def test_sizes_are_those_of_the_files_and_times_those_of_the_exports(table: dict) -> None:
    _, whole, half = table["exports"]
    assert whole["weights_mib"] == pytest.approx(2 * half["weights_mib"]) == pytest.approx(10_972_162 * 4 / 2**20)
    timed = latency_of("recurrent", factor=0.5)
    assert half["median_ms"] == {key.removeprefix("batch_"): value.median_ms for key, value in timed.items()}
    for name, read in (("p90_ms", 1.35), ("p99_ms", 2.5)):
        assert half[name] == {batch: pytest.approx(value * read) for batch, value in half["median_ms"].items()}
    assert (whole["median_ms"], whole["p99_ms"]) == ({}, {})
    assert half["memory_mib"] == 310.4 and whole["memory_mib"] is None
    assert half["computed"] == "fp32, torch on cpu" and half["precision"] == "fp16"


def test_table_13_stands_beside_the_export_of_its_precision(table: dict) -> None:
    baseline, whole, half = table["exports"]
    for line, name, preset in (
        (baseline, "13 fp32", "baseline"),
        (whole, "13 fp32", "recurrent"),
        (half, "13 fp16", "recurrent"),
    ):
        (published,) = line["published"]
        accuracy, *_ = PUBLISHED[name].figures[preset]
        assert accuracy is not None and (published["source"], published["accuracy"]) == (
            PUBLISHED[name].source,
            accuracy,
        )
        assert published["difference"] == pytest.approx(line["accuracy"]["mean"] - accuracy)
        assert published["size_mib"] == pytest.approx(line["weights_mib"], abs=0.01)
    # Training took place in bf16: the run table of bf16 has no published table of its own here.
    assert {line["source"] for line in table["published"]} == {"table 6"}


def test_exports_of_a_run_that_was_trained_anew_are_left_out(folders: list[Path]) -> None:
    stale = export_record(folders[3].name, "fp16", record_hash="1" * 64)
    assert summarise_runs(folders, exports=[stale])["tables"][0]["exports"] == []
