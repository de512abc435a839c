"""Timing side by side: what one model stands for."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import recurra.tasks.labelling.task as labelling_task
from exported import export_record
from factories import finish, latency_of
from recurra.core.files import read_json
from recurra.core.progress import Reporter
from recurra.core.record import read_record
from recurra.deployment.export_record import export_folder, write_export_record
from recurra.reported_study import time_side_by_side
from recurra.study import timing
from recurra.study.export_plan import plan_exports
from recurra.study.footprint import measure_footprint
from recurra.study.packing import pack_study
from recurra.study.plan import plan_study
from recurra.study.run import execute_run
from recurra.study.spec import StudySpec, expand
from recurra.study.timing import Timed, time_all
from recurra.study.workers import Ended, Workers
from recurra.tasks.measures import StudyLatency
from recurra.tasks.study_data import Machine, StudyData
from reviews import write_reviews


def test_models_that_read_other_lengths_of_the_same_texts_are_timed_apart(tmp_path: Path) -> None:
    data = [{"name": "demo", "tokenizer": "trained", "max_length": length} for length in (32, 64)]
    runs = expand(StudySpec.parse({"name": "lengths", "data": data, "models": ["linear"]}))
    known = StudyData(Machine(cache_dir=tmp_path / "cache", threads=1, latency=False))
    for run in runs:
        execute_run(known, tmp_path / "runs" / run.run_id, run, reporter=Reporter(quiet=True))
    time_all(known, str(tmp_path), {"runs": [run.run_id for run in runs], "exports": []})
    short, long = read_json(tmp_path / "latency.json")["runs"].values()
    assert short != long
    # Times that are kept keep their warning.
    kept = StudyLatency(runs={"packed": latency_of("recurrent")}, waited=0.9).times_of(["packed"])
    time_all(known, str(tmp_path), {"runs": [runs[0].run_id], "exports": []}, kept)
    again = read_json(tmp_path / "latency.json")
    assert (again["waited"], again["earlier"], len(again["runs"])) == (0.9, ["packed"], 2)


def test_no_more_texts_are_timed_than_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labelling_task, "MOST_SAMPLES", 10)
    data = {"name": str(write_reviews(tmp_path / "reviews.csv", 150)), "tokenizer": "trained"}
    (run,) = expand(StudySpec.parse({"name": "few", "data": [data], "models": ["linear"]}))
    known = StudyData(Machine(cache_dir=tmp_path / "cache", threads=1))
    record = execute_run(known, tmp_path / "runs" / run.run_id, run, reporter=Reporter(quiet=True))
    time_all(known, str(tmp_path), {"runs": [run.run_id], "exports": []})
    timed = read_json(tmp_path / "latency.json")["runs"][run.run_id]
    assert record is not None
    assert record.latency["batch_1"].samples == timed["batch_1"]["samples"] in range(5, 11)


def test_memory_that_cannot_be_measured_takes_no_other_figure_with_it(
    linear_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text('print("a library says hello", end="")', encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    assert measure_footprint(linear_run, ["a text"], 1) > 20
    record = read_record(linear_run)
    exports = [Timed(f"run/{folder.name}", folder, record, (folder.name,)) for folder in (tmp_path, linear_run)]
    assert list(timing._memory_of(exports, ["a text"], 1)) == [f"run/{linear_run.name}"]


class Timer(Workers):
    """Writes down what it was asked to time, and made-up times."""

    asked: list[Any]

    def call(self, function: str, *arguments: Any, **_: Any) -> Ended:
        study, names, kept = json.loads(json.dumps(arguments))
        self.asked.append([names, kept])
        timed = StudyLatency(runs={name: latency_of("recurrent") for name in names["runs"]}).model_dump(mode="json")
        values = {kind: {**timed[kind], **kept[kind]} for kind in kept if kind != "waited"}
        (Path(study) / "latency.json").write_text(json.dumps(values), encoding="utf-8")
        return Ended(0)


def test_what_is_packed_keeps_its_times_and_what_has_a_model_is_timed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, packed = tmp_path / "first", tmp_path / "packed"
    values = {"name": "s", "data": [{"name": "demo"}], "models": ["recurrent"], "exports": [{"precision": "fp16"}]}
    spec = StudySpec.parse({**values, "seeds": [0, 1, 2]})
    old, other, new = expand(spec)
    for config in (old, other):
        finish(first, config)
    request, export = spec.exports[0], f"{old.run_id}/{spec.exports[0].name}"
    made = export_record(old.run_id, "fp16", record_hash=str(read_record(first / "runs" / old.run_id).content_hash))
    write_export_record(export_folder(first, old.run_id, request), made)
    times = latency_of("recurrent")
    known = StudyLatency(runs={old.run_id: times}, exports={export: times}, memory_mib={export: 310.5}, waited=0.9)
    (first / "latency.json").write_text(known.model_dump_json(include={"runs", "exports", "memory_mib", "waited"}))
    pack_study(first, packed)
    timer = Timer(0, 1)
    timer.asked = []

    def time_again() -> None:
        exports = [each.key for each in plan_exports(spec, packed, plan_study(spec, packed)) if each.state == "done"]
        assert exports == [export], "what is packed is done"
        runs = [run.folder for run in plan_study(spec, packed) if run.record is not None]
        assert time_side_by_side(packed, runs, Machine(), Reporter(), timer, exports=exports) is None

    time_again()
    assert timer.asked == [] and "not timed: 1 packed run, whose models were not kept" in capsys.readouterr().err
    finish(packed, new)
    time_again()
    before = known.model_dump(mode="json", include={"runs", "exports", "memory_mib", "waited"})
    assert timer.asked == [[{"runs": [new.run_id], "exports": []}, before]]
    time_again()
    assert len(timer.asked) == 1, "it is timed once"
    assert time_side_by_side(packed, [packed / "runs" / old.run_id], Machine(), Reporter(), timer) is None
    assert len(timer.asked) == 1, "there is no model to time"
