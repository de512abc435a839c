"""What a study may ask to be exported, and the record of an export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from exported import export_record
from factories import RunFactory
from recurra.core.errors import ConfigurationError
from recurra.core.record import read_record, write_record
from recurra.deployment.export_record import (
    error_path,
    load_export_records,
    read_export_record,
    record_path,
    write_export_record,
)
from recurra.study.export_plan import plan_exports
from recurra.study.plan import PlannedRun, note_failure, run_folder
from recurra.study.spec import StudySpec, expand


def spec(**values: Any) -> StudySpec:
    base = {"name": "s", "data": [{"name": "demo"}], "models": ["linear", "baseline"], "seeds": [0, 1]}
    return StudySpec.parse({**base, **values})


def test_exports_move_no_runs_identity_and_a_mistake_is_one_clear_line() -> None:
    plain, asking = spec(), spec(exports=[{"precision": "fp16"}, {"format": "safetensors", "precision": "fp32"}])
    assert [run.run_id for run in expand(asking)] == [run.run_id for run in expand(plain)]
    assert [request.name for request in asking.exports] == ["safetensors-fp16", "safetensors-fp32"]
    assert StudySpec.parse(asking.plain()) == asking
    twice = [{"precision": "fp16"}, {"format": "safetensors", "precision": "fp16"}]
    for exports, said in (
        ([{"precision": "fp8"}], "unknown precision of safetensors exports 'fp8'"),
        ([{"format": "safetensor", "precision": "fp16"}], r"\(did you mean 'safetensors'\?\)"),
        ([{"format": "safetensors"}], "key 'exports.0.precision' is missing"),
        (twice, "safetensors-fp16 is given twice"),
    ):
        with pytest.raises(ConfigurationError, match=said) as caught:
            spec(exports=exports)
        assert "\n" not in str(caught.value)


def test_a_plan_knows_what_has_become_of_each_export(tmp_path: Path) -> None:
    study = spec(exports=[{"precision": "fp32"}, {"precision": "fp16"}])
    linear, first, second = expand(study)
    for config in (linear, first):
        RunFactory(tmp_path / "runs").run(config.model, run_id=config.run_id)
    records = {config.run_id: read_record(run_folder(tmp_path, config)) for config in (linear, first)}
    runs = [PlannedRun(config, run_folder(tmp_path, config), "done") for config in (linear, first)]
    runs.append(PlannedRun(second, run_folder(tmp_path, second), "to do"))

    def states() -> list[str]:
        return [item.state for item in plan_exports(study, tmp_path, runs)]

    assert states() == ["to do", "to do", "waits", "waits"] and load_export_records(tmp_path) == []
    fp32, fp16, *_ = plan_exports(study, tmp_path, runs)
    assert fp16.folder == tmp_path / "exports" / first.run_id / "safetensors-fp16"
    made = export_record(first.run_id, "fp32", record_hash=str(records[first.run_id].content_hash))
    write_export_record(fp32.folder, made)
    note_failure(error_path(fp16.folder), "too wide", kind="AuditError", code=3)
    (found,) = load_export_records(tmp_path)
    assert found == read_export_record(record_path(fp32.folder))
    assert found.model_copy(update={"content_hash": ""}) == made
    plan = plan_exports(study, tmp_path, runs)
    assert [item.state for item in plan] == ["done", "failed", "waits", "waits"]
    assert plan[1].reason == "too wide" and plan[1].plain()["state"] == "failed"
    # Trained anew, the run is another: its export is made again.
    write_record(run_folder(tmp_path, first), records[first.run_id].model_copy(update={"wall_s": 12.5}))
    runs[1] = PlannedRun(first, run_folder(tmp_path, first), "done")
    assert states()[0] == "to do"
