"""A study that asks for exports: killed between two it makes the rest, and one that fails stops no other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from interrupted import export_in_a_study, in_a_process
from recurra import reported_study as study_module
from recurra.core.configuration import read_yaml, write_yaml
from recurra.core.sealed import seal_model
from recurra.deployment.export_record import ExportRequest, error_path, export_folder
from recurra.study import exporting
from recurra.study.export_plan import PlannedExport, plan_exports
from recurra.study.plan import PlannedRun, read_reason
from recurra.study.spec import StudySpec, expand
from recurra.tasks.study_data import Machine, StudyData
from reviews import Command, snapshot
from tiny_runs import TrainedRun


def study_of(trained: TrainedRun, output: Path) -> StudySpec:
    """The study whose only run is the trained one, with that run in its place."""
    config = trained.config
    study = {
        "name": "deployed", "data": [config.data.plain()], "models": [str(trained.root / "tiny.yaml")],
        "protocol_overrides": ["max_epochs=3", "learning_rate=5e-3", "batch_size=8"], "seeds": [config.seed],
        "exports": [{"precision": "fp32"}, {"precision": "fp16"}],
    }  # fmt: skip
    spec = StudySpec.parse(study)
    assert [run.run_id for run in expand(spec)] == [config.run_id]
    shutil.copytree(trained.folder, output / "runs" / config.run_id)
    return spec


def test_killed_between_exports_the_next_start_makes_the_rest(trained: TrainedRun, tmp_path: Path) -> None:
    spec, run_id = study_of(trained, tmp_path), trained.config.run_id
    work = [{"run_id": run_id, **request.plain()} for request in spec.exports]
    assert in_a_process(export_in_a_study, tmp_path, work, 2) == -9
    places = tmp_path / "exports" / run_id
    # The second is whole and has no record: it did not happen.
    assert {path.name for path in places.iterdir()} == {"safetensors-fp32", "safetensors-fp32.json", "safetensors-fp16"}
    runs = [PlannedRun(trained.config, trained.folder, "done")]
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
    trained: TrainedRun, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
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
    start = ["study", "run", file, "--output", output, "--threads", 1, "--no-latency", "--json"]
    first = command(*start, code=1)
    states = {item["precision"]: item["state"] for item in first.json["exports"]}
    assert states == {"fp32": "done", "fp16": "failed"}
    said = [line for line in first.err.splitlines() if line.startswith(f"error: {run_id}/safetensors-fp16: ")]
    assert len(said) == 1 and "token_type.weight' has values that fp16 cannot hold" in said[0]
    assert not (output / "exports" / run_id / "safetensors-fp16").exists()
    for view in (["plan", "--no-cost"], ["status"]):
        shown = command("study", view[0], file, "--output", output, *view[1:]).out
        assert "1 done, 1 failed" in shown and "cannot hold" in shown
    path.write_bytes(good)
    seal_model(output / "runs" / run_id)
    assert {item["state"] for item in command(*start).json["exports"]} == {"done"}
    assert not list((output / "exports").rglob("*.error.json"))

    # A record that was edited by hand stops everything before anything is started.
    record = output / "exports" / run_id / "safetensors-fp16.json"
    record.write_text(record.read_text().replace('"labels_changed": ', '"labels_changed": 1'))
    before = snapshot(tmp_path)
    for name in ("run", "report", "plan"):
        assert "was changed after it was written" in command("study", name, file, "--output", output, code=2).err
    assert snapshot(tmp_path) == before
    assert read_yaml(file)["exports"][0]["format"] == "safetensors"


def test_an_error_that_nobody_foresaw_stops_no_other_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object, request: ExportRequest, output: Path) -> None:
        raise ValueError(f"no {request.precision} in {output.name}\nmore of it")

    monkeypatch.setattr(exporting, "make_export", broken)
    monkeypatch.setattr(exporting.Reference, "of", lambda *_: object())
    requests = [ExportRequest(precision=precision) for precision in ("fp32", "fp16")]
    work = [{"run_id": "run", **request.plain()} for request in requests]
    exporting.export_all(StudyData(), str(tmp_path), 1, work)
    reasons = [read_reason(error_path(export_folder(tmp_path, "run", request))) for request in requests]
    assert reasons == [f"ValueError: no {precision} in {tmp_path.name}" for precision in ("fp32", "fp16")]
