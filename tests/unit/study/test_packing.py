"""Studies in two files: what is packed is read as if it lay in folders, and nothing damaged is packed or read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from committed import RESULTS
from factories import RunFactory, study_latency
from recurra.core.errors import CheckpointError
from recurra.core.files import read_json
from recurra.core.packed import RECORDS_NAME, in_study, packed_files, read_study_bytes, run_folders, study_files
from recurra.core.record import holds_any_record, holds_record, read_any_record, read_record
from recurra.evaluation.predictions import read_predictions
from recurra.report.summary import read_latency_file, read_study
from recurra.reported_study import report_records
from recurra.study import packing
from recurra.study.packing import pack_study
from recurra.study.plan import plan_study
from recurra.study.spec import load_study
from rendered import summarise_runs
from reviews import Command

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
    return json.loads(text.replace(str(folder), "").replace(folder.as_posix(), ""))


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
        assert holds_any_record(packed) and holds_record(packed, read_record(run).config_hash)
        one, other = read_predictions(packed, "test"), read_predictions(run, "test")
        assert one.key == other.key and one.logits.tobytes() == other.logits.tobytes()
    assert read_json(output / "latency.json") == read_json(study / "latency.json")
    assert read_study_bytes(output / "study.yaml") == (study / "study.yaml").read_bytes()
    assert plain(output) == plain(study)
    assert not in_study(output / "summary.json") and not holds_any_record(output / "runs" / "other")


def test_other_runs_stay_and_packing_again_changes_nothing(study: Path, tmp_path: Path) -> None:
    output, part = tmp_path / "results" / "mine", tmp_path / "part"
    runs = [run for run in run_folders(study) if holds_any_record(run)]
    pack_study(study, output)
    before = {path.name: path.read_bytes() for path in output.iterdir()}
    (output / "history.jsonl").write_text("of an earlier version", encoding="utf-8")
    shutil.copytree(runs[1], part / "runs" / runs[1].name)
    made = pack_study(part, output)
    assert (made.added, made.replaced, made.runs) == (0, 1, 4)
    assert {path.name: path.read_bytes() for path in output.iterdir()} == before
    new = RunFactory(part / "runs", rows=SMALL).run("linear")
    assert pack_study(part, output).runs == 5
    assert read_predictions(output / "runs" / new.name, "test").ids == read_predictions(runs[0], "test").ids
    assert len(study_files(output, "runs/*/record.json")) == 5


def test_a_run_that_is_not_packed_stands_beside_those_that_are(study: Path, tmp_path: Path) -> None:
    output = tmp_path / "mine"
    pack_study(study, output)
    RunFactory(output / "runs", rows=SMALL).run("linear")
    assert len(run_folders(output)) == 5 and {model["label"] for model in plain(output)["tables"][0]["models"]} == {
        "linear",
        "baseline",
        "recurrent",
    }


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

    monkeypatch.setattr(packing, "_write", killed)
    with pytest.raises(KeyboardInterrupt):
        pack_study(study, output)
    assert [run.name for run in run_folders(output)] == [first.name]
    assert read_predictions(output / "runs" / first.name, "test").key
    monkeypatch.setattr(packing, "_write", whole)
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
    for line in (
        rb'{"file": "a\qb", "content": {}}',
        b'{"file": "a", "content": "a" "b"}',
        b'{"file": "a", "content": 12}',
    ):
        records.write_bytes(intact + line + b"\n")
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
    output, page = tmp_path / "results" / "mine", tmp_path / "page"
    assert command("study", "pack", study, "--output", output, "--json").json["runs"] == 4
    reported = command("study", "report", RESULTS / "demo", "--output", page).out
    assert "recurra-small" in (page / "report.html").read_text(encoding="utf-8") and "next:" not in reported
    assert not (RESULTS / "demo" / "report.html").exists()
    as_json = command("study", "report", RESULTS / "demo", "--output", page, "--json").json
    assert as_json["commands"] == [], "of what is packed there is no model"
    models = report_records(RESULTS / "demo", page, command="").summary["tables"][0]["models"]
    assert {Path(run["folder"]).parent for model in models for run in model["runs"]} == {RESULTS / "demo" / "runs"}


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
                places = (tmp_path / each / "runs" / folder.name for each in (name, "packed"))
                ours, theirs = (read_predictions(place, split) for place in places)
                assert ours.ids == theirs.ids and (ours.logits == theirs.logits).all()


def test_a_damaged_file_of_timings_is_said_to_be_one(tmp_path: Path) -> None:
    shutil.copytree(RESULTS / "demo", tmp_path / "demo")
    (tmp_path / "demo" / "latency.json").write_text('{"memory_mib": {"a": "310"}}', encoding="utf-8")
    warnings = report_records(tmp_path / "demo", tmp_path / "page", command="").content.warnings
    assert len(warnings) == 1 and "'latency.json' is damaged" in warnings[0]
