"""A study that asks for exports: made once, evaluated on the run's splits, one failure stops no other."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from interrupted import export_in_a_study, in_a_process
from recurra import Classifier
from recurra import reported_study as study_module
from recurra.cli.main import main
from recurra.core.configuration import read_yaml, write_yaml
from recurra.core.progress import Reporter
from recurra.core.record import read_record
from recurra.core.sealed import seal_model
from recurra.data.corpora import load_dataset
from recurra.deployment.export_record import read_export_record
from recurra.evaluation.metrics import evaluate_logits
from recurra.report.summary import read_latency_file
from recurra.reported_study import StudyResult, report_study, run_and_report
from recurra.study import exporting
from recurra.study.executor import Outcome
from recurra.study.export_plan import PlannedExport, plan_exports
from recurra.study.spec import StudySpec, expand
from recurra.tasks.study_data import Machine, StudyData
from reviews import snapshot
from tiny_runs import TrainedRun

ASKED = [{"precision": "fp32"}, {"precision": "fp16"}]
MACHINE = Machine(threads=1, latency=False)


def study_of(trained: TrainedRun, output: Path) -> StudySpec:
    """The study whose only run is the trained one, with that run in its place."""
    config = trained.config
    spec = StudySpec.parse(
        {
            "name": "deployed",
            "data": [config.data.plain()],
            "models": [str(trained.root / "tiny.yaml")],
            "protocol_overrides": ["max_epochs=3", "learning_rate=5e-3", "batch_size=8"],
            "seeds": [config.seed],
            "exports": ASKED,
        }
    )
    assert [run.run_id for run in expand(spec)] == [config.run_id]
    shutil.copytree(trained.folder, output / "runs" / config.run_id)
    return spec


def run(spec: StudySpec, output: Path, machine: Machine = MACHINE) -> StudyResult:
    return run_and_report(spec, output, StudyData(machine), reporter=Reporter(quiet=True), command="recurra study run")


@pytest.mark.slow
def test_a_study_exports_what_it_has_trained(
    trained: TrainedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, run_id = study_of(trained, tmp_path), trained.config.run_id
    result = run(spec, tmp_path, Machine(threads=1))
    assert [export.state for export in result.exports] == ["done", "done"]
    places = tmp_path / "exports" / run_id
    assert {path.name for path in places.iterdir()} == {
        "safetensors-fp32", "safetensors-fp32.json", "safetensors-fp16", "safetensors-fp16.json",
    }  # fmt: skip

    # What stands in the record is what the exported folder does.
    dataset = load_dataset(trained.config.data)
    for precision in ("fp32", "fp16"):
        record = read_export_record(places / f"safetensors-{precision}.json")
        classifier = Classifier.from_export(places / f"safetensors-{precision}")
        reference = Classifier.from_run(trained.folder, precision="fp32")
        assert set(record.splits) == set(dataset.reported_splits)
        for name, found in record.splits.items():
            split = dataset.splits[name]
            logits, theirs = (model.logits(split.texts, clean=False) for model in (classifier, reference))
            assert found.metrics == evaluate_logits(logits, split.labels)
            assert found.reference == evaluate_logits(theirs, split.labels)
            assert found.labels_changed == np.sum(logits.argmax(1) != theirs.argmax(1))
        weights = places / f"safetensors-{precision}" / "model.safetensors"
        assert record.weights_bytes == weights.stat().st_size
        assert record.computation.storage_precision == precision

    # Timed with the runs, and in the report.
    latency = read_latency_file(tmp_path)
    assert latency is not None
    assert set(latency.exports) == {f"{run_id}/safetensors-fp32", f"{run_id}/safetensors-fp16"}
    assert set(latency.runs) == {run_id}
    # A process of its own: libraries and model, but not the models of its neighbours.
    assert all(20 < latency.memory_mib[name] < 2_000 for name in latency.exports)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "tables" / "exports.csv").read_text(encoding="utf-8"))))
    assert [row["exports_precision"] for row in rows] == ["fp32", "fp16"]
    assert float(rows[1]["median_ms_batch_1"]) > 0

    # A second start makes and times nothing.
    before = snapshot(tmp_path / "exports")
    for name in ("make_exports", "time_side_by_side"):
        original = getattr(study_module, name)

        def watched(work: list, *arguments: object, original=original, name=name, **keywords: object) -> None:
            assert name == "time_side_by_side" or work == []
            original(work, *arguments, **keywords)

        monkeypatch.setattr(study_module, name, watched)
    monkeypatch.setattr(study_module.Workers, "call", lambda *_, **__: pytest.fail("timed again"))
    again = run(spec, tmp_path, Machine(threads=1))
    assert [export.state for export in again.exports] == ["done", "done"]
    assert snapshot(tmp_path / "exports") == before
    assert (
        report_study(spec, tmp_path, command="").summary["tables"][0]["exports"]
        == again.summary["tables"][0]["exports"]
    )


def test_killed_between_exports_the_next_start_makes_the_rest(trained: TrainedRun, tmp_path: Path) -> None:
    spec, run_id = study_of(trained, tmp_path), trained.config.run_id
    work = [{"run_id": run_id, **request.plain()} for request in spec.exports]
    assert in_a_process(export_in_a_study, tmp_path, work, 2) == -9
    places = tmp_path / "exports" / run_id
    # The second is whole and has no record: it did not happen.
    assert {path.name for path in places.iterdir()} == {"safetensors-fp32", "safetensors-fp32.json", "safetensors-fp16"}
    runs = [Outcome(trained.config, trained.folder, read_record(trained.folder))]
    assert [item.state for item in plan_exports(spec, tmp_path, runs)] == ["done", "to do"]
    first = snapshot(places / "safetensors-fp32")
    assert in_a_process(export_in_a_study, tmp_path, work[1:], 2) == 0
    assert [item.state for item in plan_exports(spec, tmp_path, runs)] == ["done", "done"]
    assert snapshot(places / "safetensors-fp32") == first


def in_this_process(exports: list[PlannedExport], output: Path, machine: Machine, *_: object, **__: object) -> None:
    """Stands in for `make_exports`, whose process takes seconds to start."""
    work = [{"run_id": item.run_id, **item.request.plain()} for item in exports]
    exporting.export_all(StudyData(machine), str(output), 1, work)


def test_one_export_that_fails_stops_no_other_and_is_tried_again(
    trained: TrainedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_module, "make_exports", in_this_process)
    output = tmp_path / "out"
    spec, run_id = study_of(trained, output), trained.config.run_id
    path = output / "runs" / run_id / "model" / "model.safetensors"
    good = path.read_bytes()
    weights = load_file(path)
    # Never read by a text of the data: FP16 cannot hold it, FP32 is as before.
    weights["model.embeddings.token_type.weight"][1, 0] = 1e6
    save_file(weights, path, metadata={"format": "pt"})
    seal_model(output / "runs" / run_id)
    file = tmp_path / "study.yaml"
    file.write_text(write_yaml(spec.plain()), encoding="utf-8")
    command = ["study", "run", str(file), "--output", str(output), "--threads", "1", "--no-latency", "--json"]
    assert main(command) == 1
    out, err = capsys.readouterr()
    states = {item["precision"]: item["state"] for item in json.loads(out)["exports"]}
    assert states == {"fp32": "done", "fp16": "failed"}
    said = [line for line in err.splitlines() if line.startswith(f"error: {run_id}/safetensors-fp16: ")]
    assert len(said) == 1 and "token_type.weight' has values that fp16 cannot hold" in said[0]
    assert not (output / "exports" / run_id / "safetensors-fp16").exists()
    for view in (["plan", "--no-cost"], ["status"]):
        assert main(["study", view[0], str(file), "--output", str(output), *view[1:]]) == 0
        shown = capsys.readouterr().out
        assert "1 done, 1 failed" in shown and "cannot hold" in shown
    path.write_bytes(good)
    seal_model(output / "runs" / run_id)
    assert main(command) == 0
    assert {item["state"] for item in json.loads(capsys.readouterr().out)["exports"]} == {"done"}
    assert not list((output / "exports").rglob("*.error.json"))

    # A record that was edited by hand stops everything before anything is started.
    record = output / "exports" / run_id / "safetensors-fp16.json"
    record.write_text(record.read_text().replace('"labels_changed": ', '"labels_changed": 1'))
    before = snapshot(tmp_path)
    for name in ("run", "report", "plan"):
        capsys.readouterr()
        assert main(["study", name, str(file), "--output", str(output)]) == 2
        assert "was changed after it was written" in capsys.readouterr().err
    assert snapshot(tmp_path) == before
    assert read_yaml(file)["exports"][0]["format"] == "safetensors"
