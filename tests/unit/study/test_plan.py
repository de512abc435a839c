"""What is wrong is told before a run starts; run folders are its own or refused; how far a run and a study are."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import subprocess
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import recurra.study.run as run_module
import recurra.tasks.study_data as study_data_module
from factories import finish
from recurra.cli.main import main
from recurra.core.configuration import write_yaml
from recurra.core.errors import ConfigurationError, DataError, RecurraError, StorageError, UnavailableError
from recurra.core.files import LOCK_NAME, locked_folder, write_json
from recurra.core.progress import Reporter
from recurra.data.configuration import DataConfig, LanguageDataConfig, MultiLabelData
from recurra.reported_study import refuse_folder_of_another, run_and_report
from recurra.study.plan import (
    PROGRESS_NAME,
    SILENT_AFTER_S,
    PlannedRun,
    ProgressReporter,
    RunProgress,
    claim_folder,
    load_run_config,
    plan_study,
    read_progress,
    run_folder,
)
from recurra.study.run import execute_run, preflight
from recurra.study.spec import StudySpec
from recurra.study.status import find_study, plan_with_cost, study_status
from recurra.tasks.base import RunConfig, TeacherConfig
from recurra.tasks.labelling import labelled
from recurra.tasks.labelling.configuration import model_configuration
from recurra.tasks.runs import make_run
from recurra.tasks.study_data import Machine, StudyData
from recurra.training.protocols import LANGUAGE_PROTOCOLS, PROTOCOLS
from reviews import Command, snapshot, write_csv, write_reviews


def config(seed: int = 0) -> RunConfig:
    return make_run("baseline", DataConfig(name="demo"), PROTOCOLS["paper"], seed=seed, precision="fp32")


def test_a_fresh_folder_gets_the_configuration_whatever_a_failed_start_or_a_kill_left(tmp_path: Path) -> None:
    for name in (".lock", "log.txt", "error.json", ".config.yaml.a1b2_c3d.part"):
        (tmp_path / name).write_text("x", encoding="utf-8")
    assert claim_folder(config(), tmp_path) is None
    assert load_run_config(tmp_path) == config()
    before = snapshot(tmp_path)
    assert set(before) == {".lock", "log.txt", "error.json", "config.yaml"}
    assert claim_folder(config(), tmp_path) is None
    assert snapshot(tmp_path) == before
    study = tmp_path / "study"
    study.mkdir()
    (study / ".study.yaml.a1b2_c3d.part").write_text("name: hal", encoding="utf-8")
    refuse_folder_of_another("any", study)


@pytest.mark.parametrize(
    ("name", "text", "error", "message"),
    [
        (
            "config.yaml",
            write_yaml(config(seed=1).plain()),
            StorageError,
            r"holds another run \(demo-default-baseline-paper-s1-.*, wanted .*-s0-.*choose another --output",
        ),
        ("config.yaml", "model: [", ConfigurationError, "is not valid YAML"),
        ("thesis.tex", "x", StorageError, "is not empty and not a run folder of ours; choose another --output"),
    ],
)
def test_a_folder_of_something_else_is_refused_and_untouched(
    name: str, text: str, error: type[RecurraError], message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(error, match=message):
        claim_folder(config(), tmp_path)
    assert snapshot(tmp_path) == {name: text.encode()}


def spec() -> StudySpec:
    values = {"name": "s", "data": [{"name": "demo", "tokenizer": "trained"}], "models": ["linear", "baseline"]}
    return StudySpec.parse({**values, "seeds": [0, 1, 2, 3]})


def progress(**values: object) -> RunProgress:
    now = time.time()
    return replace(RunProgress(socket.gethostname(), os.getpid(), now - 100, now, "training"), **values)  # type: ignore[arg-type]


def begin(output: Path, config: RunConfig, **values: object) -> None:
    folder = run_folder(output, config)
    folder.mkdir(parents=True)
    claim_folder(config, folder)
    write_json(folder / PROGRESS_NAME, asdict(progress(**values)))


@pytest.fixture(scope="module")
def gone() -> int:
    """Number of a process that has ended."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


def test_a_run_says_what_it_does_and_removes_the_file_at_the_end(tmp_path: Path) -> None:
    with ProgressReporter(tmp_path, epochs=3, quiet=True) as reporter:
        first = read_progress(tmp_path)
        assert first is not None and first.alive
        assert (first.stage, first.epochs, first.pid) == ("starting", 3, os.getpid())
        reporter.stage("run", "loading data")
        with reporter.task("training", 30) as task:
            task.advance(10)  # done by an earlier process
            for _ in range(5):
                task.advance(1, note="epoch 2")
        reporter.stage("run", "evaluating")
        now = read_progress(tmp_path)
    assert now is not None
    assert (now.stage, now.step, now.steps, now.epoch, now.first_step) == ("evaluating", 15, 30, 2, 10)
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_renewed_while_the_run_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recurra.study.plan.RENEWED_EVERY_S", 0.01)
    with ProgressReporter(tmp_path, epochs=1, quiet=True) as reporter, reporter.task("training", 9) as task:
        task.advance(4, note="epoch 1")
        deadline = time.monotonic() + 20
        while (seen := read_progress(tmp_path)) is None or seen.step < 4:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_only_a_living_process_counts_as_running(gone: int) -> None:
    assert progress().alive
    assert not progress(pid=gone).alive
    # The number may belong to another process by now: ours would have renewed its file.
    silent = time.time() - 2 * SILENT_AFTER_S
    assert not progress(updated=silent).alive
    # A process of another machine cannot be asked for.
    assert progress(host="elsewhere", pid=gone).alive
    assert not progress(host="elsewhere", updated=silent).alive


def test_what_is_left_is_judged_by_this_process_alone() -> None:
    now = time.time()
    half = progress(step=60, steps=100, first_step=20, started=now - 80, updated=now)
    assert half.remaining_s == pytest.approx(80)
    assert progress(step=20, steps=100, first_step=20).remaining_s is None
    assert progress().remaining_s is None


@pytest.mark.parametrize("text", ["", "[]", '{"pid": 3}', '{"unknown": 1}'])
def test_a_damaged_file_says_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / PROGRESS_NAME).write_text(text, encoding="utf-8")
    assert read_progress(tmp_path) is None


@pytest.fixture
def runs(tmp_path: Path, gone: int) -> list[PlannedRun]:
    """One run done in 200 s, one under way at half, one interrupted, one failed, one not begun."""
    output = tmp_path / "out"
    runs = [run.config for run in plan_study(spec(), output)]
    finish(output, runs[1], values={"wall_s": 200.0})
    now = time.time()
    begin(output, runs[2], step=50, steps=100, epoch=2, epochs=4, started=now - 100, updated=now)
    begin(output, runs[3], pid=gone, step=10, steps=100)
    failed = run_folder(output, runs[4])
    failed.mkdir()
    write_json(failed / "error.json", {"error": "the loss is not finite"})
    (output / "study.yaml").write_text(write_yaml(spec().plain()), encoding="utf-8")
    return plan_study(spec(), output)


def test_every_state_is_told_from_outside_and_the_rest_estimated(
    runs: list[PlannedRun], tmp_path: Path, command: Command
) -> None:
    assert [run.state for run in runs] == ["to do", "done", "running", "interrupted", "failed"]
    assert runs[2].progress is not None and runs[2].progress.step == 50
    assert runs[4].reason == "the loss is not finite"
    output, file = tmp_path / "out", tmp_path / "s.yaml"
    # The run under way has 100 s left; the interrupted one will take 200 s like the finished run and the one under way;
    # the linear control, of which nothing is known, is taken for one of them.
    assert study_status(spec(), output).remaining_s == pytest.approx(100 + 200 + 200, rel=0.1)
    # A folder or a file, and nothing changes.
    file.write_text(write_yaml(spec().plain()), encoding="utf-8")
    before = snapshot(tmp_path)
    table = command("study", "status", output).out
    assert re.search(r"epoch 2 of 4, step 50 of 100, for 1\d\d s", table) and "the loss is not finite" in table
    assert re.search(r"about [89] min left", table)
    by_folder = command("study", "status", output, "--json").json
    by_file = command("study", "status", file, "--output", output, "--json").json
    counts = {"to do": 1, "done": 1, "running": 1, "interrupted": 1, "failed": 1}
    assert by_folder["counts"] == by_file["counts"] == counts and len(by_folder["runs"]) == 5
    assert by_folder["runs"][2]["progress"]["epoch"] == 2
    assert snapshot(tmp_path) == before


def test_nothing_is_estimated_while_nothing_runs(tmp_path: Path) -> None:
    assert study_status(spec(), tmp_path).remaining_s is None
    for run in plan_study(spec(), tmp_path):
        finish(tmp_path, run.config, values={"wall_s": 1.0})
    assert study_status(spec(), tmp_path).remaining_s == 0


def test_a_plan_of_finished_runs_reads_no_record_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for run in plan_study(spec(), tmp_path):
        finish(tmp_path, run.config)
    monkeypatch.setattr("recurra.core.record.read_any_record", lambda _: pytest.fail("a record is read"))
    assert {run.state for run in plan_study(spec(), tmp_path)} == {"done"}


def test_a_line_is_of_runs_that_differ_in_the_seed_alone(tmp_path: Path) -> None:
    def lines(model: str, **data: Any) -> list[tuple[str, int]]:
        study = StudySpec.parse({"name": "s", "data": [data], "models": [model], "seeds": [0, 1, 2]})
        view = plan_with_cost(study, tmp_path, StudyData(), cost=False, reporter=Reporter(quiet=True))
        return [(name, len(runs)) for name, runs in view.groups()]

    assert lines("baseline", name="demo", tokenizer="trained") == [("demo-default-baseline-paper", 3)]
    # Folds, of a file whose name holds what a seed begins with.
    file = write_reviews(tmp_path / "my-set.csv", 60)
    assert [runs for _, runs in lines("linear", name=str(file), folds=3)] == [1, 1, 1]


def test_status_leaves_the_locks_alone(runs: list[PlannedRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "out"
    with locked_folder(output), locked_folder(runs[2].folder):
        taken = []
        flock = fcntl.flock
        monkeypatch.setattr(fcntl, "flock", lambda *arguments: taken.append(arguments) or flock(*arguments))
        assert main(["study", "status", str(output)]) == 0
        assert taken == []
        assert (output / LOCK_NAME).read_text(encoding="ascii") == str(os.getpid())


def test_status_says_where_to_be_called_if_a_file_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reviews.csv").touch()
    # A file of fastText needs no ending.
    for data, missing in (
        ({"name": "gone.csv"}, "gone.csv"),
        ({"name": "reviews.csv", "test": "later.csv"}, "later.csv"),
        ({"name": "reviews"}, "reviews"),
    ):
        study = StudySpec.parse({"name": "s", "data": [data], "models": ["linear"]})
        with pytest.raises(ConfigurationError, match=rf"'{missing}' is not in .*; run this command in the folder"):
            study_status(study, tmp_path / "out")
    with pytest.raises(StorageError, match=r"holds no study \('study.yaml' is missing\)"):
        find_study(tmp_path, None)


# What is wrong is told before anything starts.

HEADS: dict[str, Any] = {"learned_halt": True, "tokens_without_recurrence": 2}


def run(path: Path, model: str = "recurrent", seed: int = 0, **keys: Any) -> RunConfig:
    options = {name: keys.pop(name) for name in ("overrides", "teachers") if name in keys}
    config = DataConfig.parse({"name": str(path), "tokenizer": "trained", **keys})
    return make_run(model, config, PROTOCOLS["tuned"], seed=seed, precision="fp32", **options)


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    return write_reviews(tmp_path / "r.csv", 60)


@pytest.mark.parametrize("imitated", [True, False])
def test_it_says_once_that_bf16_is_imitated(reviews: Path, imitated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recurra.models.inference.imitates_bf16", lambda device: imitated)
    runs = [run(reviews, seed=seed) for seed in range(2)]
    halved = [each.model_copy(update={"precision": "bf16"}) for each in runs]
    assert not any("bf16" in line for line in preflight(runs, StudyData()))
    assert sum("emulates them" in line for line in preflight([*runs, *halved], StudyData())) == int(imitated)


def test_rows_of_several_labels_are_not_weighed_by_class(reviews: Path) -> None:
    protocol = PROTOCOLS["tuned"].model_copy(update={"class_weights": "balanced"})
    data = MultiLabelData(name=str(reviews), tokenizer="trained", label_separator=";")
    with pytest.raises(ConfigurationError, match="a row may have several labels"):
        preflight([make_run("recurrent", data, protocol, seed=0, precision="fp32")], StudyData())


def test_one_of_several_processes_fits_a_control(
    reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "speaks_for_all", lambda: False)
    assert execute_run(StudyData(), tmp_path / "out", run(reviews, "linear")) is None
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"text_column": "txet"}, DataError, "did you mean 'text'"),
        ({"tokenizer": "bert-base-uncased"}, UnavailableError, "--data-root"),
        ({"tokenizer": "trainde"}, ConfigurationError, "did you mean 'trained'"),
        ({"overrides": {"hiden_size": 8}}, ConfigurationError, "did you mean 'hidden_size'"),
        ({"overrides": {"num_labels": 8}}, ConfigurationError, "decided by the data"),
        ({"overrides": {"max_position_embeddings": 16}}, ConfigurationError, "at most 16 tokens"),
        ({"overrides": {"preset": "recurent"}}, ConfigurationError, "did you mean 'recurrent'"),
    ],
)
def test_what_cannot_work_is_refused(
    reviews: Path, change: dict[str, Any], error: type[RecurraError], said: str
) -> None:
    with pytest.raises(error) as caught:
        preflight([run(reviews, **change)], StudyData())
    assert said in str(caught.value)
    # The linear control needs no tokenizer.
    if change.get("tokenizer") == "bert-base-uncased":
        preflight([run(reviews, "linear", **change)], StudyData())


def test_a_halt_that_no_label_would_teach_is_refused_before_its_teacher_is_trained(reviews: Path) -> None:
    def taught(weight: float, **keys: Any) -> RunConfig:
        teachers = [TeacherConfig(name="minilm", run_id="of-this-study")] if "teacher" in keys else []
        protocol = PROTOCOLS["tuned"].model_copy(update={"distillation_weight": weight})
        return run(reviews, overrides=keys, teachers=teachers).model_copy(update={"protocol": protocol})

    exits = taught(1, teacher="minilm", exits=[1])
    fine = [taught(1, teacher="minilm"), exits, taught(1, **HEADS), taught(0.9, teacher="minilm", **HEADS)]
    preflight(fine, StudyData())
    with pytest.raises(ConfigurationError, match="'distillation_weight' is 1 for a model with"):
        preflight([taught(1, teacher="minilm", **HEADS)], StudyData())


def test_the_table_must_hold_the_vocabulary(reviews: Path) -> None:
    small = run(reviews, overrides={"vocab_size": 50})
    with pytest.raises(ConfigurationError, match="'vocab_size' is 50, the tokenizer has 60"):
        model_configuration(small, ["a", "b"], 60)
    wide = model_configuration(run(reviews, overrides={"vocab_size": 64}), ["a", "b", "c"], 60)
    assert (wide.vocab_size, wide.id2label) == (64, {0: "a", 1: "b", 2: "c"})


def test_a_study_with_bad_data_starts_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "r.csv", [("a text", "same")] * 3)
    data = DataConfig(name=str(path), tokenizer="trained")
    spec = StudySpec.parse({"name": "s", "data": [data], "models": ["linear", "recurrent"]})
    output = tmp_path / "out"
    with pytest.raises(DataError, match="one class only"):
        run_and_report(spec, output, StudyData(), reporter=Reporter(quiet=True), command="test")
    assert not output.exists()


@pytest.mark.parametrize("kept", [True, False])
def test_a_file_that_changes_after_a_run_was_planned_is_refused(
    reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    monkeypatch.setattr(study_data_module, "MOST_CHARACTERS", study_data_module.MOST_CHARACTERS if kept else 0)
    planned, data = run(reviews, "linear"), StudyData(Machine(threads=1, latency=False))
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("one line of running text\n" * 400, encoding="utf-8")
    text = LanguageDataConfig(name=str(corpus), context=8, tokenizer="trained")
    spoken = make_run("crt-tiny", text, LANGUAGE_PROTOCOLS["paper"], seed=0, precision="fp32")
    before = reviews.read_bytes()
    write_reviews(reviews, 50, seed=1)
    corpus.write_text("another line of running text\n" * 400, encoding="utf-8")
    for number, config in enumerate((planned, spoken)):
        with pytest.raises(DataError, match=r"was changed after the run was planned; start the same command again"):
            execute_run(data, tmp_path / f"changed-{number}", config)
        assert not (tmp_path / f"changed-{number}" / "record.json").exists()
    # Rows that were read before are those of the plan, whatever the file holds since.
    reviews.write_bytes(before)
    same = StudyData(data.machine)
    same.rows(labelled(planned.data))
    write_reviews(reviews, 50, seed=1)
    if kept:
        assert execute_run(same, tmp_path / "kept", planned) is not None
    else:
        with pytest.raises(DataError, match="was changed"):
            execute_run(same, tmp_path / "kept", planned)


def test_a_kill_leaves_no_checkpoints_beside_a_record(
    reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who finds a record does nothing any more: what is to go must be gone when it is written."""
    folder, seen = tmp_path / "run", []

    def train(*_: object) -> None:
        (folder / "checkpoints" / "checkpoint-1").mkdir(parents=True)

    task = SimpleNamespace(trainer=lambda _: train, record_run=lambda *_, **__: "record")
    monkeypatch.setattr(run_module, "task_of_data", lambda _: task)
    monkeypatch.setattr(run_module, "write_record", lambda *_: seen.append((folder / "checkpoints").exists()))
    execute_run(StudyData(Machine(threads=1, latency=False)), folder, run(reviews))
    assert seen == [False]
