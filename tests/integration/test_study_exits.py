"""A study that exports its models, also with texts leaving at exits: recorded, timed, shown, and not made again."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from recurra import reported_study as study_module
from recurra.core.progress import Reporter
from recurra.core.record import RunRecord
from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset
from recurra.deployment.classifier import Classifier
from recurra.deployment.export_record import WITH_EXITS, read_export_record
from recurra.evaluation.metrics import evaluate_logits
from recurra.models.exits.rules import FixedExit
from recurra.report.summary import read_latency_file
from recurra.reported_study import StudyResult, report_study, run_and_report
from recurra.study.spec import StudySpec
from recurra.tasks.study_data import Machine, StudyData
from reviews import snapshot, write_reviews, write_tiny_model

pytestmark = pytest.mark.slow
REQUESTS = ("safetensors-fp32", "onnx-int8")


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    """One model with exits, one without, each exported twice."""
    root = tmp_path_factory.mktemp("spec")
    data, plain, leaving = write_reviews(root / "reviews.csv", rows=240), root / "plain.yaml", root / "leaving.yaml"
    write_tiny_model(plain)
    leaving.write_text(f"{plain.read_text(encoding='utf-8')}exits: [1]\n", encoding="utf-8")
    return StudySpec.parse(
        {
            "name": "deployed",
            "data": [
                {"name": str(data), "tokenizer": "trained", "trained_vocab_size": 200, "max_length": 24}
            ],
            "models": [str(plain), str(leaving)],
            "protocol_overrides": ["max_epochs=4", "learning_rate=1e-2", "batch_size=8"],
            "seeds": [0],
            "exports": [{"precision": "fp32"}, {"format": "onnx", "precision": "int8"}],
        }
    )  # fmt: skip


def run(spec: StudySpec, output: Path) -> StudyResult:
    data = StudyData(Machine(threads=1))
    return run_and_report(spec, output, data, reporter=Reporter(quiet=True), command="recurra study run")


@pytest.fixture(scope="module")
def study(spec: StudySpec, tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    return run(spec, tmp_path_factory.mktemp("study"))


def test_what_stands_in_a_record_is_what_the_exported_folder_does(study: StudyResult) -> None:
    assert [export.state for export in study.exports] == ["done"] * 4
    for outcome in study.outcomes:
        dataset = load_dataset(DataConfig.parse(outcome.config.data.plain()))
        reference = Classifier.from_run(outcome.folder, precision="fp32")
        places = study.output / "exports" / outcome.config.run_id
        assert {path.name for path in places.iterdir()} == {*REQUESTS, *(f"{name}.json" for name in REQUESTS)}
        for name, weights in zip(REQUESTS, ("model.safetensors", "model.onnx"), strict=True):
            record, classifier = read_export_record(places / f"{name}.json"), Classifier.from_export(places / name)
            assert set(record.splits) == set(dataset.reported_splits)
            for split_name, found in record.splits.items():
                split = dataset.splits[split_name]
                logits, theirs = (model.logits(split.texts, clean=False) for model in (classifier, reference))
                assert found.metrics == evaluate_logits(logits, split.labels, classifier.decision.temperature)
                assert found.reference == evaluate_logits(theirs, split.labels, reference.decision.temperature)
                assert found.labels_changed == np.sum(logits.argmax(1) != theirs.argmax(1))
            assert record.weights_bytes == (places / name / weights).stat().st_size
            assert record.computation.storage_precision == name.partition("-")[2]
            if "plain" in outcome.config.run_id:
                # Not even the key: records of versions without exits are the same bytes.
                assert record.exits is None and '"exits"' not in (places / f"{name}.json").read_text(encoding="utf-8")
                continue
            # Rows leave as the export says.
            assert record.exits is not None and set(record.exits.splits) == set(dataset.reported_splits)
            assert record.exits.calibration == classifier.calibration
            classifier.stop_early()
            for split_name, early in record.exits.splits.items():
                split = dataset.splits[split_name]
                labels = classifier.logits(split.texts, clean=False).argmax(axis=1)
                assert early.metrics.accuracy == pytest.approx(float((labels == np.asarray(split.labels)).mean()))
                # Held against the run's own model in full, as the export in full is.
                assert early.reference == record.splits[split_name].reference
                taken = record.exits.taken[split_name]
                assert sum(taken.values()) == len(split.texts) and set(taken) <= {1, 2} and 1 in taken


def table(study: StudyResult, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((study.output / "tables" / name).read_text(encoding="utf-8"))))


def test_each_head_is_judged_by_itself(study: StudyResult) -> None:
    (leaving,) = [outcome for outcome in study.outcomes if "leaving" in outcome.config.run_id]
    assert isinstance(leaving.record, RunRecord)
    split = load_dataset(DataConfig.parse(leaving.config.data.plain())).splits["test"]
    said = Classifier.from_run(leaving.folder).classify(split.texts, rule=FixedExit(after=1)).probabilities
    right = pytest.approx(float((said.argmax(axis=1) == np.asarray(split.labels)).mean()))
    assert leaving.record.metrics["test"].exit_accuracy == {1: right}
    asked = ("accuracy:exit-1", "test")
    shown = [row for row in table(study, "results.csv") if (row["measure"], row["split"]) == asked]
    assert {row["model"]: float(row["value"]) for row in shown} == {"leaving": right}
    assert "By recurrence" in (study.output / "report.html").read_text(encoding="utf-8")


def test_both_are_timed_and_shown(study: StudyResult) -> None:
    latency = read_latency_file(study.output)
    assert latency is not None
    named = {key.partition("/")[2] for key in latency.exports if "leaving" in key}
    assert named == {f"{name}{suffix}" for name in REQUESTS for suffix in ("", WITH_EXITS)}
    assert {key.partition("/")[2] for key in latency.exports if "plain" in key} == set(REQUESTS)
    assert set(latency.runs) == {outcome.config.run_id for outcome in study.outcomes}
    # A process of its own: libraries and model, but not the models of its neighbours.
    assert all(20 < latency.memory_mib[export.key] < 2_000 for export in study.exports)
    rows = table(study, "exports.csv")
    by_name = {(row["model"], row["format"], bool(row["exits"])): row for row in rows}
    both = (False, True)
    assert set(by_name) == {("leaving", name, exits) for name in ("safetensors", "onnx") for exits in both} | {
        ("plain", name, False) for name in ("safetensors", "onnx")
    }
    assert len(rows) == 6 and all(float(row["median_ms_batch_1"]) > 0 for row in rows)
    full, early = (by_name["leaving", "onnx", exits] for exits in both)
    assert full["memory_mib"] == early["memory_mib"] and "after 1" in early["exits"]
    page = (study.output / "report.html").read_text(encoding="utf-8")
    assert "onnx int8, exits" in page


def test_a_second_start_makes_and_times_nothing(
    spec: StudySpec, study: StudyResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(study.output / "exports")
    monkeypatch.setattr(study_module.Workers, "call", lambda *_, **__: pytest.fail("something was made or timed again"))
    again = run(spec, study.output)
    assert [export.state for export in again.exports] == ["done"] * 4
    assert snapshot(study.output / "exports") == before
    shown = report_study(spec, study.output, command="").summary["tables"][0]["exports"]
    assert shown == again.summary["tables"][0]["exports"]
