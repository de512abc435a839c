"""Run folders are fresh, the same run, or refused; how far a run and a study are, seen from outside."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from factories import finish
from recurra.cli.main import main
from recurra.core.configuration import write_yaml
from recurra.core.errors import ConfigurationError, RecurraError, StorageError
from recurra.core.files import LOCK_NAME, locked_folder, write_json
from recurra.data.configuration import DataConfig
from recurra.reported_study import refuse_folder_of_another
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
from recurra.study.spec import StudySpec
from recurra.study.status import find_study, study_status
from recurra.tasks.base import RunConfig
from recurra.tasks.runs import make_run
from recurra.tasks.study_data import Machine
from recurra.training.protocols import PROTOCOLS
from reviews import Command, snapshot


def config(seed: int = 0) -> RunConfig:
    return make_run("baseline", DataConfig(name="demo"), PROTOCOLS["paper"], seed=seed, precision="fp32")


def test_a_fresh_folder_gets_the_configuration(tmp_path: Path) -> None:
    assert claim_folder(config(), tmp_path) is None
    assert load_run_config(tmp_path) == config()
    before = snapshot(tmp_path)
    assert claim_folder(config(), tmp_path) is None
    assert snapshot(tmp_path) == before


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


def test_what_a_failed_start_or_a_kill_left_is_no_hindrance(tmp_path: Path) -> None:
    for name in (".lock", "log.txt", "error.json", ".config.yaml.a1b2_c3d.part"):
        (tmp_path / name).write_text("x", encoding="utf-8")
    assert claim_folder(config(), tmp_path) is None
    assert set(snapshot(tmp_path)) == {".lock", "log.txt", "error.json", "config.yaml"}
    study = tmp_path / "study"
    study.mkdir()
    (study / ".study.yaml.a1b2_c3d.part").write_text("name: hal", encoding="utf-8")
    refuse_folder_of_another("any", study)


def test_a_machine_comes_back_from_the_worker_s_argument(tmp_path: Path) -> None:
    machine = Machine(data_root=tmp_path, threads=3, latency=False)
    assert Machine.from_json(machine.to_json()) == machine
    assert Machine.from_json(Machine().to_json()) == Machine()


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


def gone() -> int:
    """Number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_a_run_says_what_it_does_and_removes_the_file_at_the_end(tmp_path: Path) -> None:
    with ProgressReporter(tmp_path, epochs=3, quiet=True) as reporter:
        first = read_progress(tmp_path)
        assert (
            first is not None and first.alive and (first.stage, first.epochs, first.pid) == ("starting", 3, os.getpid())
        )
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


def test_only_a_living_process_counts_as_running() -> None:
    assert progress().alive
    assert not progress(pid=gone()).alive
    # The number may belong to another process by now: ours would have renewed its file.
    assert not progress(updated=time.time() - 2 * SILENT_AFTER_S).alive
    # A process of another machine cannot be asked for.
    assert progress(host="elsewhere", pid=gone()).alive
    assert not progress(host="elsewhere", updated=time.time() - 2 * SILENT_AFTER_S).alive


def test_what_is_left_is_judged_by_this_process_alone() -> None:
    now = time.time()
    half = progress(step=60, steps=100, first_step=20, started=now - 80, updated=now)
    assert half.remaining_s == pytest.approx(80)
    assert progress(step=20, steps=100, first_step=20).remaining_s is None
    assert progress().remaining_s is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 3}', '{"unknown": 1}'])
def test_a_damaged_file_says_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / PROGRESS_NAME).write_text(text, encoding="utf-8")
    assert read_progress(tmp_path) is None


def make_study(output: Path) -> list[PlannedRun]:
    """One run done in 200 s, one under way at half, one interrupted, one failed, one not begun."""
    runs = [run.config for run in plan_study(spec(), output)]
    finish(output, runs[1], values={"wall_s": 200.0})
    now = time.time()
    begin(output, runs[2], step=50, steps=100, epoch=2, epochs=4, started=now - 100, updated=now)
    begin(output, runs[3], pid=gone(), step=10, steps=100)
    failed = run_folder(output, runs[4])
    failed.mkdir()
    write_json(failed / "error.json", {"error": "the loss is not finite"})
    (output / "study.yaml").write_text(write_yaml(spec().plain()), encoding="utf-8")
    return plan_study(spec(), output)


def test_every_state_is_told_from_outside(tmp_path: Path) -> None:
    runs = make_study(tmp_path)
    assert [run.state for run in runs] == ["to do", "done", "running", "interrupted", "failed"]
    assert runs[2].progress is not None and runs[2].progress.step == 50
    assert runs[4].reason == "the loss is not finite"


def test_the_rest_is_estimated_from_what_was_done(tmp_path: Path) -> None:
    make_study(tmp_path)
    status = study_status(spec(), tmp_path)
    # The run under way has 100 s left; the interrupted one will take 200 s like the finished run and the one under way;
    # the linear control, of which nothing is known, is taken for one of them.
    assert status.remaining_s == pytest.approx(100 + 200 + 200, rel=0.1)
    assert status.counts == {"to do": 1, "done": 1, "running": 1, "interrupted": 1, "failed": 1}


def test_nothing_is_estimated_while_nothing_runs(tmp_path: Path) -> None:
    assert study_status(spec(), tmp_path).remaining_s is None
    for run in plan_study(spec(), tmp_path):
        finish(tmp_path, run.config, values={"wall_s": 1.0})
    assert study_status(spec(), tmp_path).remaining_s == 0


def test_status_takes_a_folder_or_a_file_and_changes_nothing(tmp_path: Path, command: Command) -> None:
    output = tmp_path / "out"
    make_study(output)
    file = tmp_path / "s.yaml"
    file.write_text(write_yaml(spec().plain()), encoding="utf-8")
    before = snapshot(tmp_path)
    table = command("study", "status", output).out
    assert re.search(r"epoch 2 of 4, step 50 of 100, for 1\d\d s", table) and "the loss is not finite" in table
    assert re.search(r"about [89] min left", table)
    by_folder = command("study", "status", output, "--json").json
    by_file = command("study", "status", file, "--output", output, "--json").json
    assert by_folder["counts"] == by_file["counts"] and len(by_folder["runs"]) == 5
    assert by_folder["runs"][2]["progress"]["epoch"] == 2
    assert snapshot(tmp_path) == before


def test_status_leaves_the_locks_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = make_study(tmp_path)
    with locked_folder(tmp_path), locked_folder(runs[2].folder):
        taken = []
        flock = fcntl.flock
        monkeypatch.setattr(fcntl, "flock", lambda *arguments: taken.append(arguments) or flock(*arguments))
        assert main(["study", "status", str(tmp_path)]) == 0
        assert taken == []
        assert (tmp_path / LOCK_NAME).read_text(encoding="ascii") == str(os.getpid())


def test_status_says_where_to_be_called_if_a_file_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    study = StudySpec.parse({"name": "s", "data": [{"name": "reviews.csv"}], "models": ["linear"]})
    with pytest.raises(ConfigurationError, match=r"'reviews.csv' is not in .*; run this command in the folder"):
        study_status(study, tmp_path / "out")
    (tmp_path / "reviews.csv").touch()
    tested = study.plain() | {"data": [{"name": "reviews.csv", "test": "later.csv"}]}
    with pytest.raises(ConfigurationError, match=r"'later.csv' is not in"):
        study_status(StudySpec.parse(tested), tmp_path / "out")
    # A file of fastText needs no ending.
    with pytest.raises(ConfigurationError, match=r"'reviews' is not in"):
        study_status(StudySpec.parse(study.plain() | {"data": [{"name": "reviews"}]}), tmp_path / "out")


def test_a_folder_without_a_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"holds no study \('study.yaml' is missing\)"):
        find_study(tmp_path, None)
