"""Folders predicted file by file: what is done stays, what is not is made, and what cannot be is told."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from interrupted import FOLDER_MOMENTS, fork_server, in_a_process, predict_folder
from recurra import Classifier
from recurra.core.errors import ConfigurationError, RunError, StorageError
from recurra.core.progress import Reporter
from recurra.deployment.prediction import folder as module
from recurra.deployment.prediction.folder import FolderJob, FolderResult, predict_on_node, predict_on_ray
from recurra.models.controls import LINEAR_NAME
from reviews import Command, read_rows, review_rows, snapshot, train_linear

TEXTS = [text for text, _ in review_rows(40, seed=6)]
WANTED = {
    "a.jsonl": TEXTS[:9], "deep/a.jsonl": ["great", ""], "a.csv": ["awful"], "b.txt": TEXTS[9:20],
    "c.parquet": TEXTS[20:],
}  # fmt: skip


@pytest.fixture
def run(linear_run: Path) -> Path:
    return linear_run


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


def predict(run: Path, inputs: Path, output: Path, **options: Any) -> FolderResult:
    return module.predict_folder(FolderJob(run, inputs, output, **options), Reporter(quiet=True))


def column(output: Path, name: str) -> dict[str, list[str]]:
    """A column of the predictions of each input."""
    paths = (path for path in output.rglob("*.parquet") if not path.name.startswith("."))
    return {
        path.relative_to(output).as_posix().removesuffix(".parquet"): pq.read_table(path).column(name).to_pylist()
        for path in paths
    }


def rows_of(output: Path) -> dict[str, list[str]]:
    """The texts of each input as they stand in the predictions."""
    return column(output, "text")


def test_every_row_comes_out_in_its_place_and_a_second_start_makes_only_what_is_missing_or_was_changed(
    run: Path, inputs: Path, tmp_path: Path, command: Command
) -> None:
    output = tmp_path / "out"
    plain = predict(run, inputs, output).plain()
    assert rows_of(output) == WANTED
    classifier = Classifier.open(run)
    assert column(output, "label") == {name: classifier.predict(texts).tolist() for name, texts in WANTED.items()}
    assert (plain["made"], plain["skipped"], plain["rows"], plain["empty"], plain["failures"]) == (5, 0, 43, 1, [])
    assert sum(plain["labels"].values()) == 43
    before = snapshot(output)
    said = command("predict", run, "--input", inputs, "--output", output).err
    assert "skipped 5 files that are predicted already: a.csv, a.jsonl, b.txt, c.parquet, deep/a.jsonl\n" in said
    assert snapshot(output) == before
    (output / "a.csv.parquet").unlink()
    (inputs / "deep" / "a.jsonl").write_text('{"text": "GREAT"}\n{"text": ""}\n', encoding="utf-8")  # of the same size
    (inputs / "e.txt").write_text("new\n", encoding="utf-8")
    result = predict(run, inputs, output)
    assert (result.made, result.skipped) == (3, ["a.jsonl", "b.txt", "c.parquet"])
    assert rows_of(output) == {**WANTED, "deep/a.jsonl": ["GREAT", ""], "e.txt": ["new"]}


def test_a_broken_file_does_not_stop_the_others_and_an_encoding_holds_for_it(
    run: Path, inputs: Path, tmp_path: Path, command: Command
) -> None:
    (inputs / "broken.jsonl").write_text('{"text": "fine"}\n{"text": \n', encoding="utf-8")
    (inputs / "cut.parquet").write_bytes((inputs / "c.parquet").read_bytes()[:-20])
    texts = ["caf\u00e9 lovely", "na\u00efve plot"]
    (inputs / "old.txt").write_text("\n".join(texts) + "\n", encoding="cp1252")
    output = tmp_path / "out"
    words = ["predict", run, "--input", inputs, "--output", output, "--json"]
    said = command(*words, code=1)
    assert said.json["made"] == 5
    assert [line.partition(":")[0] for line in said.json["failures"]] == ["broken.jsonl", "cut.parquet", "old.txt"]
    assert "error: failed: broken.jsonl: " in said.err and "failed: cut.parquet: " in said.err
    assert "line 2, column" in said.err and "name its encoding, for example --encoding cp1252" in said.err
    err = command(*words, "--quiet", code=1).err
    assert err.startswith("error: failed: broken.jsonl: ") and err.count("\n") == 1 and "(and 2 more files)" in err
    assert rows_of(output) == WANTED and not list(output.glob(".*"))
    (inputs / "broken.jsonl").unlink()
    (inputs / "cut.parquet").unlink()
    assert command(*words, "--encoding", "cp1252").json["skipped"] == 5
    assert rows_of(output) == {**WANTED, "old.txt": texts}


def test_formulas_are_escaped_in_the_parts_of_a_folder(
    run: Path, tmp_path: Path, command: Command, refused: Callable[..., str]
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("=1+1\ngreat\n", encoding="utf-8")
    words = ["predict", run, "--input", tmp_path / "in", "--output", tmp_path / "out"]
    said = refused(*words, "--escape-formulas")
    assert "is for .csv and .tsv files; the output is of a folder parquet (--part-format)" in said
    words += ["--part-format", "tsv"]
    command(*words, "--escape-formulas")
    assert [row["text"] for row in read_rows(tmp_path / "out" / "a.txt.tsv")] == ["'=1+1", "great"]
    assert "skipped 1 files" in command(*words, "--escape-formulas").err
    assert "was begun with --escape-formulas given, not left out" in refused(*words)


@pytest.mark.parametrize("moment", FOLDER_MOMENTS)
def test_killed_at_any_moment_it_goes_on(moment: str, run: Path, inputs: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert in_a_process(predict_folder, run, inputs, output, moment) == -9
    done = rows_of(output)
    assert done == {name: WANTED[name] for name in done}
    whole = snapshot(output)
    result = predict(run, inputs, output)
    assert (result.skipped, result.made) == (sorted(done), 5 - len(done))
    after = snapshot(output)
    assert all(after[f"{name}.parquet"] == whole[f"{name}.parquet"] for name in done)
    assert set(after) == {"predictions.json", *(f"{name}.parquet" for name in WANTED)}


def test_two_processes_on_one_folder_leave_whole_files(run: Path, inputs: Path, tmp_path: Path) -> None:
    for number in range(10):
        (inputs / f"more-{number}.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    output = tmp_path / "out"
    processes = [fork_server().Process(target=predict_folder, args=(run, inputs, output, "")) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=200)
    assert [process.exitcode for process in processes] == [0, 0]
    assert rows_of(output) == {**WANTED, **{f"more-{number}.txt": TEXTS for number in range(10)}}


def test_an_input_that_changes_under_way_is_no_result(
    run: Path, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Meddler(Classifier):
        def logits(self, texts: Sequence[str], *, clean: bool = True) -> np.ndarray:
            os.utime(inputs / "b.txt", (1, 1))
            return super().logits(texts, clean=clean)

    classifier = Classifier.open(run)
    job = FolderJob(run, inputs, tmp_path / "out")
    outcome = job.predict("b.txt", Meddler(classifier.engine, classifier.classes_.tolist()))
    assert "was changed while it was read" in outcome.failures[0] and not job.output_of("b.txt").exists()


def test_names_of_any_kind_and_those_that_cannot_be_are_one_line(run: Path, tmp_path: Path, command: Command) -> None:
    names = ["a b.csv", "ü\u00a0☃.csv", "line\nfeed.csv", "-rf.csv", "'\"$(x).csv", "x" * 200 + ".csv"]
    folder, words = tmp_path / "in", ["predict", run, "--input", tmp_path / "in", "--output", tmp_path / "out"]
    folder.mkdir()
    for name in names:
        (folder / name).write_text("text\nawful\n", encoding="utf-8")
        (folder / f"broken {name}").write_text("no\n", encoding="utf-8")
    (folder / ("y" * 245 + ".csv")).write_text("text\nawful\n", encoding="utf-8")
    said = command(*words, "--json", code=1)
    assert rows_of(tmp_path / "out") == {name: ["awful"] for name in names}
    failures = said.json["failures"]
    assert len(failures) == len(names) + 1 and not any("\n" in line for line in failures)
    assert "File name too long" in failures[-1]
    Path(os.fsdecode(bytes(folder / "half") + b"\xff.csv")).write_text("text\nawful\n", encoding="utf-8")
    err = command(*words, "--quiet", code=2).err
    assert "has a name that is not UTF-8; rename it" in err and err.count("\n") == 1


def test_mistakes_are_one_line(run: Path, inputs: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    output = tmp_path / "out"
    predict(run, inputs, output, part_format="jsonl")

    def wrong(*arguments: object, source: Path = inputs, target: Path = output) -> str:
        return refused("predict", run, "--input", source, "--output", target, *arguments)

    assert "was begun with --part-format jsonl, not parquet" in wrong()
    options = ("--part-format", "jsonl")
    assert "was begun with --text-column text, not body" in wrong(*options, "--text-column", "body")
    assert "unknown format of parts 'parqet' (did you mean 'parquet'?)" in wrong("--part-format", "parqet")
    assert "leave precision out" in wrong("--precision", "bf16", target=tmp_path / "new")
    for engine in ("local", "ray"):
        assert "lie one inside the other" in wrong("--engine", engine, target=inputs / "out")
        assert not (inputs / "out").exists()
    assert "lie one inside the other" in wrong(target=tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine", encoding="utf-8")
    assert "is not empty and has no predictions.json" in wrong(target=tmp_path / "full")
    assert "a file stands where a folder is needed" in wrong(target=tmp_path / "full" / "mine.txt")
    (tmp_path / "none").mkdir()
    assert "holds no file to predict; allowed: .csv" in wrong(source=tmp_path / "none", target=tmp_path / "o")
    assert "a folder into another folder, but --input" in wrong("--engine", "ray", source=inputs / "a.csv")
    for damaged in ("", "[1]", "{}"):
        (output / "predictions.json").write_text(damaged, encoding="utf-8")
        assert "choose another --output" in wrong(*options)


def test_a_precision_that_cannot_be_begins_no_folder(
    run: Path, inputs: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "model" / LINEAR_NAME).unlink()  # as of a Transformer
    command = ("predict", tmp_path / "run", "--input", inputs, "--output", tmp_path / "out")
    for engine in ("local", "ray"):
        assert "unknown precision" in refused(*command, "--precision", "bf17", "--engine", engine)
    assert "needs an accelerator" in refused(*command, "--precision", "fp16")
    assert not (tmp_path / "out").exists()


class LostError(Exception):
    """What Ray raises for a task whose worker died; a KeyError stands for what else it raises."""


class Cluster:
    """Stands in for Ray with two cores; a task whose file is named next in ``lost`` ends with its worker."""

    def __init__(self, *lost: str) -> None:
        self.lost = list(lost)
        self.begun: list[str] = []
        self.exceptions = SimpleNamespace(RayError=LostError, RayTaskError=KeyError, RaySystemError=KeyError)

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2}

    def remote(self, function: Callable[..., dict[str, Any]]) -> Any:
        def begin(job: FolderJob, name: str, threads: int) -> Callable[[], dict[str, Any]]:
            self.begun.append(name)
            return partial(function, job, name, threads)

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=begin))

    def wait(self, references: list[Any]) -> tuple[list[Any], list[Any]]:
        assert len(references) <= 2
        return references[:1], references[1:]

    def get(self, reference: Any) -> dict[str, Any]:
        name = reference.args[1][0]
        if self.lost and self.lost[0] in (name, "cluster"):
            raise KeyError if self.lost.pop(0) == "cluster" else LostError
        result: dict[str, Any] = reference()
        return result


@pytest.fixture
def job(run: Path, tmp_path: Path) -> FolderJob:
    (tmp_path / "in").mkdir()
    for name in "abc":
        (tmp_path / "in" / f"{name}.txt").write_text(f"{name} was great\n", encoding="utf-8")
    return FolderJob(run, tmp_path / "in", tmp_path / "out")


def on_ray(job: FolderJob, cluster: Any, retries: int = 1) -> FolderResult:
    compute = partial(predict_on_ray, ray=cluster, reporter=Reporter(quiet=True), retries=retries)
    return module.predict_folder(job, Reporter(quiet=True), compute)


def test_what_was_lost_is_begun_again_until_it_kills_its_worker_each_time(job: FolderJob) -> None:
    cluster = Cluster("b", "b", "b")
    result = on_ray(job, cluster, retries=2)
    assert cluster.begun == ["a.txt", "b.txt", "c.txt", "b.txt", "b.txt"]
    assert result.failures == ["b.txt: its worker died each time; see Ray's logs"] and result.made == 2
    again = on_ray(job, Cluster("b"))
    assert (again.rows, again.failures, again.skipped) == (1, [], ["a.txt", "c.txt"])


def test_what_was_finished_before_ray_failed_stays(job: FolderJob) -> None:
    with pytest.raises(RunError, match=r"the Ray cluster failed \(KeyError\); finished files are kept:"):
        on_ray(job, Cluster("b", "cluster"))
    again = on_ray(job, Cluster())
    assert (again.made, again.skipped) == (2, ["a.txt"])


def test_predictions_of_another_model_are_left_alone_and_so_by_a_node_that_sees_one(
    job: FolderJob, tmp_path: Path
) -> None:
    job.check(begin=True)
    elsewhere = replace(job, output=tmp_path / "elsewhere")
    other = replace(job, model=train_linear(tmp_path, rows=120))
    with pytest.raises(ConfigurationError, match="holds predictions of another model"):
        module.predict_folder(other, Reporter(quiet=True))
    for seen, reason in ((elsewhere, "cannot be read"), (other, "predictions of another model")):
        outcome = predict_on_node(seen, "a.txt", 1)
        assert "all nodes must see the same model" in str(outcome) and reason in str(outcome)
        with pytest.raises(StorageError, match=reason):
            list(predict_on_ray(seen, ["a.txt"], ray=Cluster(), reporter=Reporter(quiet=True)))
        assert not seen.output_of("a.txt").exists()
