"""A study: plan, skip what is done, report, and refuse a folder of another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from factories import RunFactory, leakage
from recurra import comparison
from recurra.cli.main import main
from recurra.comparison import StudyResult, carry_out, report_study
from recurra.core.errors import CheckpointError, StorageError, UnavailableError
from recurra.core.files import FolderLock, read_json, write_json
from recurra.core.progress import Reporter
from recurra.core.record import read_record, write_record
from recurra.report import files, summary
from recurra.study import study as study_module
from recurra.study.plan import plan_study, run_folder
from recurra.study.process import Outcome
from recurra.study.spec import StudySpec
from recurra.study.study import read_latency_file
from recurra.tasks.machine import Machine
from recurra.tasks.runs import RunConfig
from reviews import snapshot


def spec(**values: Any) -> StudySpec:
    return StudySpec.parse(
        {
            "name": "s", "title": "A study", "data": [{"name": "demo", "tokenizer": "trained"}],
            "models": ["linear", "baseline"], "seeds": [0, 1], **values,
        }
    )  # fmt: skip


class MadeUp:
    """Stands in for the executor: writes records without training; fails the seeds it is told to."""

    started: list[str]
    failing: set[int]

    def __init__(self, output: Path, machine: Machine, *, workers: int, reporter: Reporter) -> None:
        self.output = output

    def execute(self, pending: Sequence[RunConfig]) -> list[Outcome]:
        outcomes = []
        for config in reversed(pending):
            MadeUp.started.append(config.run_id)
            folder = run_folder(self.output, config)
            if config.seed in MadeUp.failing:
                outcomes.append(Outcome(config, folder, None, "went wrong", 1))
                continue
            factory = RunFactory(self.output / "runs", data="demo", rows={"train": 30, "validation": 20, "test": 20})
            audits = [leakage()] if config.seed == 1 else []
            factory.run(config.model, seed=config.seed, run_id=config.run_id, audits=audits)
            values = {"config_hash": config.config_hash, "config": config.plain()}
            record = read_record(folder).model_copy(update=values)
            write_record(folder, record)
            outcomes.append(Outcome(config, folder, record))
        return outcomes


@pytest.fixture(autouse=True)
def _no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    MadeUp.started, MadeUp.failing = [], set()
    monkeypatch.setattr(study_module, "LocalExecutor", MadeUp)
    monkeypatch.setattr(study_module, "preflight", lambda pending, machine: [])


def run(study: StudySpec, output: Path) -> StudyResult:
    return carry_out(study, output, Machine(latency=False), reporter=Reporter(quiet=True), command="recurra study run")


def test_a_study_runs_everything_once_and_reports_in_the_order_of_the_plan(tmp_path: Path) -> None:
    result = run(spec(), tmp_path)
    assert len(MadeUp.started) == 3
    assert [outcome.config.run_id for outcome in result.outcomes] == [
        planned.config.run_id for planned in plan_study(spec(), tmp_path)
    ]
    assert result.failed_runs == []
    assert result.failed_audits == ["demo (official): leakage.contained.test"]
    assert result.report is not None and "A study" in result.report.read_text(encoding="utf-8")


def test_models_that_cannot_be_timed_are_told_and_cost_no_result(tmp_path: Path) -> None:
    # The made-up runs have records and no models.
    result = carry_out(spec(), tmp_path, Machine(), reporter=Reporter(quiet=True), command="recurra study run")
    assert result.failed_runs == [] and result.report is not None
    assert result.timing_error is not None and "\n" not in result.timing_error
    assert "could not be timed side by side" in result.timing_error


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    run(spec(), tmp_path)
    MadeUp.started.clear()
    run(spec(), tmp_path)
    assert MadeUp.started == []
    run(spec(seeds=[0, 1, 2]), tmp_path)
    assert len(MadeUp.started) == 1 and "-s2-" in MadeUp.started[0]


def test_a_failed_run_is_isolated_named_and_tried_again(tmp_path: Path) -> None:
    MadeUp.failing = {1}
    result = run(spec(), tmp_path)
    assert [outcome.error for outcome in result.failed_runs] == ["went wrong"]
    assert result.report is not None and "went wrong" in result.report.read_text(encoding="utf-8")
    MadeUp.failing, MadeUp.started = set(), []
    assert run(spec(), tmp_path).failed_runs == []
    assert len(MadeUp.started) == 1


def test_without_any_record_there_is_no_report(tmp_path: Path) -> None:
    MadeUp.failing = {0, 1}
    result = run(spec(), tmp_path)
    assert result.report is None and len(result.failed_runs) == 3


def test_another_study_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    run(spec(), tmp_path)
    before = snapshot(tmp_path)
    with pytest.raises(StorageError, match=r"holds the study 's', not 'other'; choose another --output"):
        run(spec(name="other"), tmp_path)
    assert snapshot(tmp_path) == before


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x", encoding="utf-8")
    with pytest.raises(StorageError, match="is not empty and not a study of ours"):
        run(spec(), tmp_path)
    assert snapshot(tmp_path) == {"thesis.tex": b"x"}


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with FolderLock(tmp_path), pytest.raises(StorageError, match="in use by another process"):
        run(spec(), tmp_path)
    assert MadeUp.started == []


def test_a_report_can_be_made_of_what_is_there(tmp_path: Path) -> None:
    run(spec(seeds=[0]), tmp_path)
    MadeUp.started.clear()
    result = report_study(spec(), tmp_path, command="recurra study report")
    assert MadeUp.started == []
    assert [outcome.error for outcome in result.failed_runs] == ["not run yet"]
    assert result.report is not None


@pytest.mark.parametrize("change", ["edited", "newer"])
def test_a_record_that_cannot_be_trusted_stops_the_study_before_it_starts(
    change: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(spec(), tmp_path)
    MadeUp.started.clear()
    path = run_folder(tmp_path, plan_study(spec(), tmp_path)[1].config) / "record.json"
    text = path.read_text(encoding="utf-8")
    old, new = {
        "edited": ('"created": "2026', '"created": "2025'),
        "newer": ('"schema_version": 4', '"schema_version": 5'),
    }[change]
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")
    said = {"edited": "was changed after it was written", "newer": "has schema 5"}[change]
    before = snapshot(tmp_path)
    with pytest.raises(CheckpointError, match=said):
        run(spec(seeds=[0, 1, 2]), tmp_path)
    with pytest.raises(CheckpointError, match=said):
        report_study(spec(), tmp_path, command="recurra study report")
    assert MadeUp.started == [] and snapshot(tmp_path) == before
    for command in ("plan", "status"):
        capsys.readouterr()
        options = ["--no-cost"] if command == "plan" else []
        assert main(["study", command, str(tmp_path / "study.yaml"), "--output", str(tmp_path), *options]) == 2
        out, err = capsys.readouterr()
        assert "refused" in out and said in err and err.count("\n") == 1


def test_the_report_says_why_a_run_failed_also_later(tmp_path: Path) -> None:
    run(spec(seeds=[0]), tmp_path)
    failed = next(planned for planned in plan_study(spec(), tmp_path) if planned.state == "to do")
    write_json(failed.folder / "error.json", {"error": "out of memory", "kind": "RunError", "code": 1})
    result = report_study(spec(), tmp_path, command="recurra study report")
    assert [outcome.error for outcome in result.failed_runs] == ["out of memory"]
    assert result.report is not None and "out of memory" in result.report.read_text(encoding="utf-8")


def test_runs_are_summarised_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    summarise = summary.summarise

    def counted(*arguments: Any, **keywords: Any) -> Any:
        calls.append(arguments)
        return summarise(*arguments, **keywords)

    for module in (summary, files, comparison):
        monkeypatch.setattr(module, "summarise", counted)
    result = run(spec(), tmp_path)
    assert len(calls) == 1
    # The same but for the folders, which are relative to the study in its own file.
    shown, written = result.summary["tables"], read_json(tmp_path / "summary.json")["tables"]
    assert [table["conclusion"] for table in shown] == [table["conclusion"] for table in written]
    assert [len(table["models"]) for table in shown] == [len(table["models"]) for table in written]


def test_a_damaged_latency_file_counts_as_none(tmp_path: Path) -> None:
    assert read_latency_file(tmp_path) is None
    (tmp_path / "latency.json").write_text("{", encoding="utf-8")
    assert read_latency_file(tmp_path) is None
    write_json(tmp_path / "latency.json", [1])
    assert read_latency_file(tmp_path) is None
    write_json(tmp_path / "latency.json", {"runs": {}})
    assert read_latency_file(tmp_path) == {"runs": {}}


def test_a_study_that_asks_for_onnx_without_the_package_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    study = spec(exports=[{"format": "onnx", "precision": "int8"}])
    with pytest.raises(UnavailableError, match=r"needs the package onnx; pip install 'recurra\[onnx\]'"):
        run(study, tmp_path / "out")
    assert MadeUp.started == [] and not (tmp_path / "out").exists()
