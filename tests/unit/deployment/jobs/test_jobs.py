"""Folders predicted file by file: what is done stays, what is not is made, and what cannot be is told."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from interrupted import JOB_MOMENTS, in_a_process, predict_folder
from recurra import Classifier
from recurra.cli.main import main
from recurra.core.files import FolderLock
from recurra.core.progress import Reporter
from recurra.deployment.jobs.job import Job
from recurra.deployment.jobs.partitions import PartManifest
from recurra.deployment.jobs.run import LocalEngine, Results, run_job
from reviews import review_rows, snapshot, train_linear

TEXTS = [text for text, _ in review_rows(40, seed=6)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_linear(tmp_path_factory.mktemp("jobs"))


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """Five files of four formats, two of which differ only in their folder; and what is no input."""
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in TEXTS[:9]), encoding="utf-8")
    (folder / "deep" / "a.jsonl").write_text('{"text": "great"}\n{"text": ""}\n', encoding="utf-8")
    (folder / "a.csv").write_text("text\nawful\n", encoding="utf-8")
    (folder / "b.txt").write_text("\n".join(TEXTS[9:20]) + "\n", encoding="utf-8")
    pq.write_table(pa.table({"text": TEXTS[20:]}), folder / "c.parquet")
    (folder / "_SUCCESS").write_text("", encoding="utf-8")
    (folder / ".d.jsonl").write_text("broken", encoding="utf-8")
    (folder / "notes.md").write_text("no input", encoding="utf-8")
    return folder


def predict(run: Path, inputs: Path, output: Path, **options: Any) -> Results:
    return run_job(Job(run, inputs, output, **options), LocalEngine(), Reporter(quiet=True))


def rows_of(output: Path) -> dict[str, list[str]]:
    """The texts of each input as they stand in the predictions."""
    found = {}
    for path in output.glob("*.part.json"):
        part = PartManifest.read(path, what="a part", cure="")
        found[part.name] = pq.read_table(output / part.output).column("text").to_pylist()
    return found


def test_every_row_of_every_file_comes_out_in_its_place(run: Path, inputs: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    results = predict(run, inputs, output)
    wanted = {
        "a.jsonl": TEXTS[:9], "deep/a.jsonl": ["great", ""], "a.csv": ["awful"], "b.txt": TEXTS[9:20],
        "c.parquet": TEXTS[20:],
    }  # fmt: skip
    assert rows_of(output) == wanted
    classifier = Classifier.open(run)
    for part in results.parts:
        table = pq.read_table(output / part.output)
        assert table.column("label").to_pylist() == classifier.predict(wanted[part.name]).tolist()
        assert part.rows == len(wanted[part.name]) and sum(part.labels.values()) == part.rows
    plain = results.plain()
    assert (plain["files"], plain["rows"], plain["empty"], plain["made"], plain["failures"]) == (5, 43, 1, 5, [])
    summary = json.loads((output / "summary.json").read_text(encoding="utf-8"))
    assert summary["rows"] == 43 and summary["labels"] == plain["labels"]


def test_a_second_start_makes_only_what_is_missing_or_was_changed(run: Path, inputs: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    parts = {part.name: part for part in predict(run, inputs, output).parts}
    before = snapshot(output)
    assert predict(run, inputs, output).made == 0
    assert {name: content for name, content in snapshot(output).items() if name != "summary.json"} == {
        name: content for name, content in before.items() if name != "summary.json"
    }
    (output / parts["a.csv"].output).unlink()
    (output / parts["b.txt"].output).write_bytes(b"cut")
    (output / "x").with_name(Path(parts["c.parquet"].output).stem + ".part.json").write_text("{}", encoding="utf-8")
    (inputs / "deep" / "a.jsonl").write_text('{"text": "GREAT"}\n{"text": ""}\n', encoding="utf-8")  # of the same size
    (inputs / "e.txt").write_text("new\n", encoding="utf-8")
    results = predict(run, inputs, output)
    assert results.made == 5 and results.plain()["files"] == 6
    assert rows_of(output)["deep/a.jsonl"] == ["GREAT", ""] and rows_of(output)["e.txt"] == ["new"]


def test_a_broken_file_does_not_stop_the_others(
    run: Path, inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (inputs / "broken.jsonl").write_text('{"text": "fine"}\n{"text": \n', encoding="utf-8")
    (inputs / "cut.parquet").write_bytes((inputs / "c.parquet").read_bytes()[:-20])
    output = tmp_path / "out"
    command = ["predict", str(run), "--input", str(inputs), "--output", str(output), "--json"]
    assert main(command) == 1
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert answer["files"] == 5 and [line.partition(":")[0] for line in answer["failures"]] == [
        "broken.jsonl", "cut.parquet",
    ]  # fmt: skip
    assert "error: failed: broken.jsonl: " in err and "line 2, column" in err and "failed: cut.parquet: " in err
    assert main([*command, "--quiet"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: failed: broken.jsonl: ") and err.count("\n") == 1 and "(and 1 more files, see" in err
    assert not list(output.glob("broken*")) and not list(output.glob(".*"))
    (inputs / "broken.jsonl").unlink()
    (inputs / "cut.parquet").unlink()
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["made"] == 0


@pytest.mark.parametrize("moment", JOB_MOMENTS)
def test_killed_at_any_moment_it_goes_on(moment: str, run: Path, inputs: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert in_a_process(predict_folder, run, inputs, output, moment) == -9
    for path in output.glob("*.part.json"):
        part = PartManifest.read(path, what="a part", cure="")
        assert pq.read_table(output / part.output).num_rows == part.rows
    whole = snapshot(output)
    done = {name for name in whole if name.endswith(".part.json")}
    results = predict(run, inputs, output)
    assert results.made == 5 - len(done) and results.plain()["rows"] == 43
    after = snapshot(output)
    assert {name: after[name] for name in done} == {name: whole[name] for name in done}
    assert set(after) == {"job.json", "summary.json", *(part.output for part in results.parts),
                          *(f"{Path(part.output).stem}.part.json" for part in results.parts)}  # fmt: skip


def test_an_input_that_changes_under_way_is_no_result(
    run: Path, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Meddler(Classifier):
        def logits(self, texts: Sequence[str], *, clean: bool = True) -> np.ndarray:
            os.utime(inputs / "b.txt", (1, 1))
            return super().logits(texts, clean=clean)

    classifier = Classifier.open(run)
    meddler = Meddler(classifier.engine, classifier.classes_.tolist())
    for name in ("a.jsonl", "a.csv", "c.parquet", "deep/a.jsonl"):
        (inputs / name).unlink()
    results = run_job(Job(run, inputs, tmp_path / "out"), LocalEngine(meddler), Reporter(quiet=True))
    assert not results.parts and "was changed while it was read" in results.failures[0]
    assert not list((tmp_path / "out").glob("b-*"))


def test_mistakes_are_one_line(run: Path, inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out"
    predict(run, inputs, output, part_format="jsonl")

    def refused(*arguments: object, source: Path = inputs, target: Path = output) -> str:
        capsys.readouterr()
        code = main(["predict", str(run), "--input", str(source), "--output", str(target), *map(str, arguments)])
        out, err = capsys.readouterr()
        assert (code, out, err.count("\n")) == (2, "", 1), err
        return err

    assert "was begun with --part-format jsonl, not parquet" in refused()
    options = ("--part-format", "jsonl")
    assert "was begun with --text-column text, not body" in refused(*options, "--text-column", "body")
    assert "unknown format of parts 'parqet' (did you mean 'parquet'?)" in refused("--part-format", "parqet")
    assert "lie one inside the other" in refused(target=inputs / "out")
    assert "lie one inside the other" in refused(target=tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine", encoding="utf-8")
    assert "is not empty and holds no job of ours" in refused(target=tmp_path / "full")
    assert "is a file, where a folder is needed" in refused(target=tmp_path / "full" / "mine.txt")
    (tmp_path / "none").mkdir()
    assert "holds no file to predict; allowed: .csv" in refused(source=tmp_path / "none", target=tmp_path / "o")
    assert "a folder into a folder; --input" in refused("--engine", "ray", source=inputs / "a.csv")
    with FolderLock(output):
        assert "is in use by another process" in refused(*options)


def test_predictions_of_another_model_are_left_alone(run: Path, inputs: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    predict(run, inputs, output)
    other = train_linear(tmp_path, rows=120)
    before = snapshot(output)
    assert main(["predict", str(other), "--input", str(inputs), "--output", str(output)]) == 2
    assert snapshot(output) == before
