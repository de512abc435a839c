"""Aggregating the records of a large study, and writing the report of an ordinary one.

The records are synthetic but real: instances of the record classes, written by the functions that write a run's, with
as much in them as a run on SST-2 leaves: 24 audits, 5 epochs, lengths of 4 splits, predictions for 1,821 test rows.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.measures import Measure, Setting
from recurra.core.configuration import content_hash
from recurra.core.record import (
    AuditResult,
    CodeRecord,
    DataRecord,
    EnvironmentRecord,
    EpochRecord,
    LatencyRecord,
    LengthSummary,
    MetricsRecord,
    ModelRecord,
    RunRecord,
    SplitRecord,
    TrainingRecord,
    write_record,
)
from recurra.data.configuration import DataConfig, RunData
from recurra.evaluation.metrics import evaluate_logits
from recurra.evaluation.predictions import write_predictions
from recurra.report.render import write_study_report
from recurra.report.summary import load_runs, summarise
from recurra.tasks.base import RunConfig
from recurra.tasks.runs import make_run
from recurra.tasks.summary import plain
from recurra.training.protocols import PROTOCOLS

ROWS = {"train": 60_000, "held_out": 864, "validation": 872, "test": 1_821}
AUDITS = 24
EPOCHS = 5
MIB = 2**20


def measure(setting: Setting) -> list[Measure]:
    """Measures both: 10 models x 10 seeds x 100 data sets; and 200 runs, 8 models x 5 seeds x 5 data sets."""
    with tempfile.TemporaryDirectory(prefix="recurra-bench-records-") as folder:
        tables = setting.sized(100, 1)
        many = list(write_runs(Path(folder) / "many", tables=tables, models=10, seeds=setting.sized(10, 2)))
        few = list(write_runs(Path(folder) / "few", tables=setting.sized(5, 1), models=8, seeds=setting.sized(5, 2)))
        start = time.perf_counter()
        summary = plain(summarise(load_runs(many)[0]))
        aggregating_s = time.perf_counter() - start
        if len(summary["tables"]) != tables or summary["failed_runs"]:
            raise RuntimeError("the benchmark's records were not aggregated as they are meant to be")
        start = time.perf_counter()
        runs, failed = load_runs(few)
        path = write_study_report(Path(folder) / "few", summarise(runs, None, failed), runs, title="Bench")
        report_s = time.perf_counter() - start
        size_mib = path.stat().st_size / MIB
    return [
        _line(f"aggregating {len(many):,} records", aggregating_s, 10.0, "s"),
        _line(f"report of {len(few)} runs", report_s, 5.0, "s"),
        _line(f"size of the report of {len(few)} runs", size_mib, 3.0, "MiB"),
    ]


def _line(title: str, value: float, target: float, unit: str) -> Measure:
    return Measure(
        part="report",
        title=f"{title}, of what is allowed",
        preset="-",
        ours_name="recurra",
        ours=value,
        other_name="allowed",
        other=target,
        unit=unit,
        result=100 * value / target,
        result_unit="%",
        target=100.0,
        at_most=True,
    )


def write_runs(folder: Path, *, tables: int, models: int, seeds: int) -> Iterator[Path]:
    """Writes run folders of a study and yields each.

    Args:
        folder: The study's folder.
        tables: Data sets, each a fraction of SST-2; each becomes one table.
        models: Models a table.
        seeds: Runs a model.
    """
    rng = np.random.default_rng(0)
    rows = ROWS["test"]
    ids = [f"test-{index}" for index in range(rows)]
    for table in range(tables):
        data = DataConfig(name="sst2", protocol="official", fraction=(table + 1) / tables)
        labels = rng.integers(0, 2, rows)
        difficulty = rng.random(rows)
        recorded = made_up_data(data)
        for number in range(models):
            variant = {"name": f"variant-{number}", "preset": "recurrent", "num_recurrences": number + 1}
            for seed in range(seeds):
                config = make_run(variant, data, PROTOCOLS["paper"], seed=seed, precision="bf16")
                right = difficulty + rng.normal(0, 0.1, rows) < 0.75 + 0.01 * number
                logits = rng.normal(0, 0.3, (rows, 2)).astype(np.float32)
                logits[np.arange(rows), np.where(right, labels, 1 - labels)] += 3
                run = folder / "runs" / config.run_id
                write_predictions(run, "test", ids, labels, logits)
                metrics = evaluate_logits(logits, labels)
                record = made_up_record(config, recorded, metrics, number, rng)
                write_record(run, record)
                yield run


def made_up_record(
    config: RunConfig, data: DataRecord, metrics: MetricsRecord, number: int, rng: np.random.Generator
) -> RunRecord:
    """A record as long as a real one, of the ``number``-th model."""
    return RunRecord(
        run_id=config.run_id,
        config=config.plain(),
        config_hash=config.config_hash,
        seed=config.seed,
        created="2026-11-20T12:00:00+00:00",
        code=CodeRecord(version="0.1.0", commit="a0de978c1d5e0f8a7b6c5d4e3f2a1b0c9d8e7f60", dirty=False),
        environment=_environment(),
        data=data,
        model=_model(config.model, number),
        training=_training(rng, metrics.accuracy),
        metrics=dict.fromkeys(("held_out", "validation", "test"), metrics),
        latency={f"batch_{size}": _latency(size, number) for size in (1, 32)},
        audits=_audits(),
    )


def _environment() -> EnvironmentRecord:
    packages = {"torch": "2.13.0", "transformers": "5.17.1", "numpy": "2.4.6", "scikit-learn": "1.9.0"}
    return EnvironmentRecord(
        python="3.11.9",
        packages=packages,
        platform="Linux-x86_64",
        cpu="A processor",
        cores=2,
        threads=1,
        precision="bf16",
    )


def made_up_data(config: RunData) -> DataRecord:
    """The record of data of the size of SST-2."""
    edges = list(range(0, 60))
    words = LengthSummary(mean=9.4, median=7.0, p90=21.0, max=58, edges=edges, counts=[17] * (len(edges) - 1))
    return DataRecord(
        name=config.name,
        protocol="official",
        fingerprint=content_hash(config.plain()),
        label_names=["negative", "positive"],
        selection_split="held_out",
        reported_splits=["held_out", "validation", "test"],
        splits={
            name: SplitRecord(
                fingerprint=content_hash(name), rows=rows, label_counts={"negative": rows, "positive": 0}, words=words
            )
            for name, rows in ROWS.items()
        },
        tokenizer={"kind": "bert-base-uncased", "vocab_size": 30522},
    )


def _model(name: str, number: int) -> ModelRecord:
    return ModelRecord(
        preset=name,
        kind="transformer",
        parameters=10_972_162 + number,
        embedding_parameters=7_814_400,
        non_embedding_parameters=3_157_762 + number,
        flops_per_token=5.7e6 * (number + 1),
        file_size_bytes=43_900_000 + number,
    )


def _training(rng: np.random.Generator, accuracy: float) -> TrainingRecord:
    history = [
        EpochRecord(
            epoch=epoch,
            train_loss=0.7 / epoch,
            validation_loss=0.6 / epoch + float(rng.normal(0, 0.01)),
            validation_accuracy=accuracy - 0.05 / epoch,
            learning_rate=3e-5,
            wall_s=400.0,
        )
        for epoch in range(1, EPOCHS + 1)
    ]
    return TrainingRecord(
        protocol="paper",
        epochs=EPOCHS,
        steps=EPOCHS * 3_750,
        best_epoch=EPOCHS,
        wall_s=2000.0,
        tokens_per_s=2100.0,
        peak_memory_mib=1840.0,
        history=history,
    )


def _latency(batch_size: int, number: int) -> LatencyRecord:
    ms = (3.0 + number) / (1 if batch_size == 1 else 4)
    return LatencyRecord(
        batch_size=batch_size,
        samples=ROWS["test"],
        median_ms=ms,
        p90_ms=1.3 * ms,
        mean_ms=1.1 * ms,
        precision="bf16",
        threads=1,
        device="cpu",
        scope="text",
    )


def _audits() -> list[AuditResult]:
    examples = [{"id": str(index), "text": "a film of the year", "train_text": "this is a film"} for index in range(5)]
    return [
        AuditResult(
            name=f"leakage.kind{number // 3}.{('held_out', 'validation', 'test')[number % 3]}",
            status="passed",
            summary="0.11% of rows (2 of 1,821): the text's 3 words or more stand verbatim inside a training text",
            value=0.0011,
            threshold=0.05,
            details={"rows": 1821, "found": 2, "examples": examples},
        )
        for number in range(AUDITS)
    ]
