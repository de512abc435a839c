"""Studies in two files, read as if they lay in folders; what is timed side by side, of packed runs too."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recurra.tasks.labelling.task as labelling_task
from committed import RESULTS
from exported import export_record
from factories import RunFactory, finish, latency_of, study_latency
from recurra.core.errors import CheckpointError
from recurra.core.files import read_json
from recurra.core.packed import RECORDS_NAME, in_study, packed_files, read_study_bytes, run_folders, study_files
from recurra.core.progress import Reporter
from recurra.core.record import holds_any_record, read_any_record, read_record
from recurra.deployment.export_record import export_folder, write_export_record
from recurra.evaluation.metrics import evaluate_logits
from recurra.evaluation.predictions import read_predictions
from recurra.report.summary import read_latency_file, read_study
from recurra.reported_study import report_records, time_side_by_side
from recurra.study import packing, timing
from recurra.study.export_plan import plan_exports
from recurra.study.exporting import compare_split
from recurra.study.footprint import measure_footprint
from recurra.study.packing import pack_study
from recurra.study.plan import plan_study
from recurra.study.run import execute_run
from recurra.study.spec import StudySpec, expand, load_study
from recurra.study.timing import Timed, time_all
from recurra.study.workers import Ended, Workers
from recurra.tasks.measures import StudyLatency
from recurra.tasks.study_data import Machine, StudyData
from rendered import summarise_runs
from reviews import Command, snapshot, write_reviews

SMALL = {"train": 90, "validation": 30, "test": 40}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "mine"
    factory = RunFactory(folder / "runs", rows=SMALL)
    runs = [factory.run(name, seed=seed) for name in ("baseline", "recurrent") for seed in (0, 1)]
    (folder / "latency.json").write_text(study_latency(runs).model_dump_json(), encoding="utf-8")
    text = "name: mine\ntitle: Größe\ndata: [{name: sst2}]\nmodels: [baseline, recurrent]\n"
    (folder / "study.yaml").write_text(text, encoding="utf-8")
    (folder / "summary.json").write_text("{}", encoding="utf-8")
    (folder / "runs" / "unfinished").mkdir()
    return folder


def plain(folder: Path) -> dict[str, Any]:
    """The summary of a study without where its runs lie."""
    text = json.dumps(summarise_runs(read_study(folder), read_latency_file(folder)))
    return json.loads(text.replace(str(folder), ""))


def assert_same_predictions(run: Path, other: Path, split: str = "test") -> None:
    ours, theirs = read_predictions(run, split), read_predictions(other, split)
    assert ours.key == theirs.key and ours.logits.tobytes() == theirs.logits.tobytes()


def test_a_packed_study_is_read_as_its_folders_are(study: Path, tmp_path: Path) -> None:
    output = tmp_path / "results" / "mine"
    made = pack_study(study, output)
    assert (made.added, made.replaced, made.unfinished, made.runs) == (4, 0, 1, 4)
    assert sorted(path.name for path in output.iterdir()) == ["predictions.parquet", RECORDS_NAME]
    shutil.rmtree(study / "runs" / "unfinished")
    assert [run.name for run in run_folders(output)] == [run.name for run in run_folders(study)]
    for run in run_folders(study):
        packed = output / "runs" / run.name
        assert read_study_bytes(packed / "record.json") == (run / "record.json").read_bytes()
        assert read_any_record(packed) == read_any_record(run)
        assert holds_any_record(packed)
        assert_same_predictions(packed, run)
    assert read_json(output / "latency.json") == read_json(study / "latency.json")
    assert read_study_bytes(output / "study.yaml") == (study / "study.yaml").read_bytes()
    assert plain(output) == plain(study)
    assert not in_study(output / "summary.json") and not holds_any_record(output / "runs" / "other")


def test_other_runs_stay_packed_or_not_and_packing_again_changes_nothing(study: Path, tmp_path: Path) -> None:
    output, part = tmp_path / "results" / "mine", tmp_path / "part"
    runs = [run for run in run_folders(study) if holds_any_record(run)]
    pack_study(study, output)
    before = snapshot(output)
    (output / "history.jsonl").write_text("of an earlier version", encoding="utf-8")
    shutil.copytree(runs[1], part / "runs" / runs[1].name)
    made = pack_study(part, output)
    assert (made.added, made.replaced, made.runs) == (0, 1, 4)
    assert snapshot(output) == before
    new = RunFactory(part / "runs", rows=SMALL).run("linear")
    assert pack_study(part, output).runs == 5
    assert read_predictions(output / "runs" / new.name, "test").ids == read_predictions(runs[0], "test").ids
    assert len(study_files(output, "runs/*/record.json")) == 5
    # A run that is not packed stands beside those that are.
    RunFactory(output / "runs", rows=SMALL).run("recurrent-wide")
    assert len(run_folders(output)) == 6
    labels = {model["label"] for model in plain(output)["tables"][0]["models"]}
    assert labels == {"linear", "baseline", "recurrent", "recurrent-wide"}


def test_killed_between_two_files_the_records_are_those_from_before(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, part = tmp_path / "mine", tmp_path / "part"
    first, *_ = run_folders(study)
    shutil.copytree(first, part / "runs" / first.name)
    pack_study(part, output)
    whole = packing._write

    def killed(path: Path, lines: Any) -> None:
        if path.name == RECORDS_NAME:
            raise KeyboardInterrupt
        whole(path, lines)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(packing, "_write", killed)
        pack_study(study, output)
    assert [run.name for run in run_folders(output)] == [first.name]
    assert read_predictions(output / "runs" / first.name, "test").key
    assert pack_study(study, output).runs == 4


def test_nothing_damaged_is_packed(study: Path, tmp_path: Path) -> None:
    output = tmp_path / "mine"
    run = next(run for run in run_folders(study) if holds_any_record(run))
    for name, damage, message in (
        ("record.json", lambda data: data.replace(b'"seed": 0', b'"seed": 7'), "was changed after it was written"),
        ("record.json", lambda data: data[:-20], "not valid JSON"),
        ("predictions/test.parquet", lambda data: data[:-20], "cannot be read as Parquet"),
    ):
        intact = (run / name).read_bytes()
        (run / name).write_bytes(damage(intact))
        with pytest.raises(CheckpointError, match=message):
            pack_study(study, output)
        (run / name).write_bytes(intact)
    assert not output.exists() or list(output.iterdir()) == []
    (study / "notes.json").write_text("12", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"'.*notes.json' cannot be read as JSON \(neither an object"):
        pack_study(study, output)
    (study / "notes.json").unlink()
    run.rename(run.with_name("renamed"))
    with pytest.raises(CheckpointError, match="name the folder like the run"):
        pack_study(study, output)
    with pytest.raises(CheckpointError, match="no finished run"):
        pack_study(tmp_path / "nothing", output)


def test_a_packed_study_that_was_changed_is_refused(study: Path, tmp_path: Path) -> None:
    output = tmp_path / "mine"
    pack_study(study, output)
    records = output / RECORDS_NAME
    intact = records.read_bytes()
    name = next(iter(study_files(output, "runs/*/record.json")))
    records.write_bytes(intact.replace(b'"created": "2026', b'"created": "2025'))
    with pytest.raises(CheckpointError, match="was changed after it was written"):
        read_any_record(name)
    records.write_bytes(intact[:-100])
    with pytest.raises(CheckpointError, match=rf"'{records}' is damaged in line {len(intact.splitlines())}"):
        packed_files(output)
    for line in (rb'"a\qb", "content": {}}', b'"a", "content": "a" "b"}', b'"a", "content": 12}'):
        records.write_bytes(intact + b'{"file": ' + line + b"\n")
        with pytest.raises(CheckpointError, match=r"is damaged in line"):
            packed_files(output)
    # White space between values is no change of a record.
    records.write_bytes(b"".join(json.dumps(json.loads(line)).encode() + b"\n" for line in intact.splitlines()))
    assert read_any_record(name).run_id == name.parent.name
    predictions = output / "predictions.parquet"
    for damaged in (predictions.read_bytes()[:-20], b""):
        predictions.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"cannot be read as Parquet.*pack the study again"):
            read_predictions(name.parent, "test")


def test_the_commands_pack_and_report(study: Path, tmp_path: Path, command: Command) -> None:
    page, demo = tmp_path / "page", tmp_path / "demo"
    packed = command("study", "pack", study, "--output", tmp_path / "results" / "mine", "--json").json
    assert packed["runs"] == 4
    reported = command("study", "report", RESULTS / "demo", "--output", page).out
    assert "recurra-small" in (page / "report.html").read_text(encoding="utf-8") and "next:" not in reported
    assert not (RESULTS / "demo" / "report.html").exists()
    shutil.copytree(RESULTS / "demo", demo)
    (demo / "latency.json").write_text('{"memory_mib": {"a": "310"}}', encoding="utf-8")
    result = report_records(demo, page, command="")
    (warning,) = result.content.warnings
    assert "'latency.json' is damaged" in warning
    assert result.commands == [], "of what is packed there is no model"
    models = result.summary["tables"][0]["models"]
    assert {Path(run["folder"]).parent for model in models for run in model["runs"]} == {demo / "runs"}


@pytest.mark.slow
def test_a_packed_study_goes_on_where_it_was_packed(tmp_path: Path, command: Command) -> None:
    spec, first = tmp_path / "mine.yaml", tmp_path / "first"
    one = "name: mine\ntitle: Mine\ndata: [{name: demo}]\nmodels: [linear-tuned]\n"
    spec.write_text(one, encoding="utf-8")
    command("study", "run", spec, "-o", first, "-q")
    pack_study(first, tmp_path / "packed")
    (done,) = (first / "runs").iterdir()
    assert report_records(first, command="").best_path == first
    # A page elsewhere is no study.
    assert report_records(first, tmp_path / "page", command="").best_path == done
    spec.write_text(one.replace("[linear-tuned]", "[linear-tuned, linear]"), encoding="utf-8")
    second = tmp_path / "second"
    shutil.copytree(tmp_path / "packed", second)
    assert [done.state for done in plan_study(load_study(spec), second)] == ["done", "to do"]
    went_on = command("study", "run", spec, "-o", second, "-q").out
    times, before = (read_json(folder / "latency.json") for folder in (second, first))
    assert len(times["runs"]) == 2 and times["runs"][done.name] == before["runs"][done.name]
    assert times["earlier"] == [done.name]
    # The recommended model is the packed one.
    assert "next:" not in went_on and not (second / "best.json").exists()
    assert len(list((second / "runs").iterdir())) == 1, "what was packed is not run again"
    assert [done.state for done in plan_study(load_study(spec), second)] == ["done", "done"]
    assert pack_study(second, tmp_path / "packed").runs == 2
    # A split on disk beside packed ones takes none away.
    own = second / "runs" / done.name / "predictions"
    own.mkdir(parents=True)
    shutil.copy(done / "predictions" / "test.parquet", own)
    # Elsewhere too: what was packed goes along, and a packed study is packed as one.
    for source, name in ((second, "elsewhere"), (tmp_path / "packed", "copy")):
        made = pack_study(source, tmp_path / name)
        assert (made.runs, made.added) == (2, 2)
        assert packed_files(tmp_path / name) == packed_files(tmp_path / "packed")
        for folder in run_folders(tmp_path / "packed"):
            for split in ("validation", "test"):
                assert_same_predictions(*(tmp_path / each / "runs" / folder.name for each in (name, "packed")), split)


# Timing side by side.


def test_models_that_read_other_lengths_of_the_same_texts_are_timed_apart_on_no_more_texts_than_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labelling_task, "MOST_SAMPLES", 10)
    name = str(write_reviews(tmp_path / "reviews.csv", 150))
    data = [{"name": name, "tokenizer": "trained", "max_length": length} for length in (32, 64)]
    runs = expand(StudySpec.parse({"name": "lengths", "data": data, "models": ["linear"]}))
    known = StudyData(Machine(cache_dir=tmp_path / "cache", threads=1))
    records = [execute_run(known, tmp_path / "runs" / run.run_id, run) for run in runs]
    time_all(known, str(tmp_path), {"runs": [run.run_id for run in runs], "exports": []})
    short, long = read_json(tmp_path / "latency.json")["runs"].values()
    assert short != long
    assert records[0] is not None
    assert records[0].latency["batch_1"].samples == short["batch_1"]["samples"] in range(5, 11)
    # Times that are kept keep their warning.
    kept = StudyLatency(runs={"packed": latency_of("recurrent")}, waited=0.9).times_of(["packed"])
    time_all(known, str(tmp_path), {"runs": [runs[0].run_id], "exports": []}, kept)
    again = read_json(tmp_path / "latency.json")
    assert (again["waited"], again["earlier"], len(again["runs"])) == (0.9, ["packed"], 2)


def test_memory_that_cannot_be_measured_takes_no_other_figure_with_it(
    linear_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text('print("a library says hello", end="")', encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    record, measured = read_record(linear_run), list[float]()

    def measure(folder: Path, *arguments: Any) -> float:
        measured.append(measure_footprint(folder, *arguments))
        return measured[-1]

    monkeypatch.setattr(timing, "measure_footprint", measure)
    exports = [Timed(f"run/{folder.name}", folder, record, (folder.name,)) for folder in (tmp_path, linear_run)]
    found = timing._memory_of(exports, ["a text"], 1)
    assert found == {f"run/{linear_run.name}": measured[0]} and measured[0] > 20


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
    times, kinds = latency_of("recurrent"), {"runs", "exports", "memory_mib", "waited"}
    known = StudyLatency(runs={old.run_id: times}, exports={export: times}, memory_mib={export: 310.5}, waited=0.9)
    (first / "latency.json").write_text(known.model_dump_json(include=kinds))
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
    before = known.model_dump(mode="json", include=kinds)
    assert timer.asked == [[{"runs": [new.run_id], "exports": []}, before]]
    time_again()
    assert len(timer.asked) == 1, "it is timed once"
    assert time_side_by_side(packed, [packed / "runs" / old.run_id], Machine(), Reporter(), timer) is None
    assert len(timer.asked) == 1, "there is no model to time"


def test_an_export_is_measured_at_the_temperature_of_its_run() -> None:
    rng = np.random.default_rng(0)
    logits, reference = (rng.normal(scale=4, size=(80, 3)).astype(np.float32) for _ in range(2))
    labels = rng.integers(0, 3, size=80)
    split = compare_split(logits, reference, labels, 3.0)
    assert split.metrics == evaluate_logits(logits, labels, 3.0)
    assert split.reference == evaluate_logits(reference, labels, 3.0)
    # With three labels the temperature changes the order of the rows.
    assert split.metrics.average_precision != evaluate_logits(logits, labels).average_precision
