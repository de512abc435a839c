"""A study: plan, skip what is done, report, and refuse a folder of another; what `recurra.compare` gives back."""

from __future__ import annotations

import csv
import html
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import recurra
from factories import finish, leakage
from recurra import reported_study
from recurra.cli.main import main
from recurra.comparison import compare as compare_models
from recurra.core.best_run import BestRunRecord, find_run
from recurra.core.errors import CheckpointError, RunError, StorageError, UnavailableError
from recurra.core.files import read_json, write_json
from recurra.core.progress import Reporter
from recurra.core.record import AuditResult, RunRecord, read_record
from recurra.reported_study import StudyResult, report_study, run_and_report, time_side_by_side
from recurra.study.plan import PlannedRun, plan_study, run_folder
from recurra.study.spec import StudySpec
from recurra.tasks.base import RunConfig
from recurra.tasks.study_data import Machine, StudyData
from reviews import Command, review_rows, snapshot
from small_study import Inline

FRAME = pd.DataFrame(review_rows(40), columns=["text", "label"])
KEYS: dict[str, Any] = {
    "models": ["linear", "baseline", "recurrent"],
    "seeds": 2,
    "folds": 1,
    "quiet": True,
    "final": False,
    "max_epochs": 1,
}


def spec(**values: Any) -> StudySpec:
    data = [{"name": "demo", "tokenizer": "trained"}]
    plain = {"name": "s", "title": "A study", "data": data, "models": ["linear", "baseline"], "seeds": [0, 1]}
    return StudySpec.parse({**plain, **values})


class MadeUp:
    """Stands in for the executor: writes records without training; fails the seeds it is told to."""

    started: list[str]
    failing: set[int]
    accuracies: dict[str, float]
    spoiled: set[str]
    rows: dict[str, int]

    def __init__(self, output: Path, machine: Machine, *_: Any, **__: Any) -> None:
        self.output = output

    def execute(self, pending: Sequence[RunConfig]) -> list[PlannedRun]:
        outcomes = []
        for config in reversed(pending):
            MadeUp.started.append(config.run_id)
            folder = run_folder(self.output, config)
            if config.seed in MadeUp.failing:
                outcomes.append(PlannedRun(config, folder, "failed", "went wrong", exit_code=1))
                continue
            audits = [leakage()] if config.seed == 1 else []
            if config.model in MadeUp.spoiled:
                audits.append(AuditResult(name="invariance.padding", status="failed", summary="it changes"))
            accuracy = MadeUp.accuracies.get(config.model, 0.8)
            finish(self.output, config, accuracy, rows=MadeUp.rows, audits=audits)
            outcomes.append(PlannedRun(config, folder, "done"))
        return outcomes


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is trained, and there are no models to time."""
    MadeUp.started, MadeUp.failing, MadeUp.accuracies, MadeUp.spoiled = [], set(), {}, set()
    MadeUp.rows = {"train": 30, "validation": 20, "test": 20}
    monkeypatch.setattr(reported_study, "LocalExecutor", MadeUp)
    monkeypatch.setattr(reported_study, "Workers", Inline)
    monkeypatch.setattr(reported_study, "preflight", lambda pending, machine: [])
    monkeypatch.setattr(reported_study, "time_side_by_side", lambda *_, **__: None)


def run(study: StudySpec, output: Path) -> StudyResult:
    data = StudyData(Machine(threads=1))
    return run_and_report(study, output, data, reporter=Reporter(quiet=True), command="recurra study run")


def compare(output: Path, data: Any = FRAME, **keys: Any) -> StudyResult:
    return compare_models(data, output=output, **{**KEYS, **keys})


def page(result: StudyResult) -> str:
    assert result.report is not None
    return html.unescape(result.report.read_text(encoding="utf-8"))


def test_a_study_runs_everything_once_and_reports_in_the_order_of_the_plan(tmp_path: Path) -> None:
    result = run(spec(), tmp_path)
    assert len(MadeUp.started) == 3
    assert [outcome.config for outcome in result.outcomes] == [each.config for each in plan_study(spec(), tmp_path)]
    assert result.failed_runs == [] and "A study" in page(result)
    assert result.failed_audits == ["demo (official): leakage.contained.test"]
    MadeUp.started.clear()
    # As a worker leaves it that is ended between its record and its end.
    (left,) = [folder / "progress.json" for folder in sorted((tmp_path / "runs").iterdir())[:1]]
    left.write_text("{}", encoding="utf-8")
    run(spec(), tmp_path)
    assert MadeUp.started == [] and not left.exists()
    run(spec(seeds=[0, 1, 2]), tmp_path)
    assert len(MadeUp.started) == 1 and "-s2-" in MadeUp.started[0]


def test_models_that_cannot_be_timed_are_told_and_cost_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The made-up runs have records and no models.
    monkeypatch.setattr(reported_study, "time_side_by_side", time_side_by_side)
    result = run(spec(), tmp_path)
    assert result.failed_runs == [] and result.report is not None
    assert result.timing_error is not None and "\n" not in result.timing_error
    assert "could not be timed side by side" in result.timing_error


def test_a_failed_run_is_isolated_named_and_tried_again(tmp_path: Path) -> None:
    MadeUp.failing = {1}
    result = run(spec(), tmp_path)
    assert [outcome.error for outcome in result.failed_runs] == ["went wrong"] and "went wrong" in page(result)
    MadeUp.started.clear()
    result = report_study(spec(), tmp_path, command="recurra study report")
    assert [outcome.error for outcome in result.failed_runs] == ["not run yet"] and result.report is not None
    (failed,) = (planned for planned in plan_study(spec(), tmp_path) if planned.state == "to do")
    write_json(failed.folder / "error.json", {"error": "out of memory", "kind": "RunError", "code": 1})
    result = report_study(spec(), tmp_path, command="recurra study report")
    assert [outcome.error for outcome in result.failed_runs] == ["out of memory"] and "out of memory" in page(result)
    assert MadeUp.started == []
    MadeUp.failing = set()
    assert run(spec(), tmp_path).failed_runs == []
    assert len(MadeUp.started) == 1


def test_a_report_without_a_finished_run_is_a_failure(tmp_path: Path, command: Command) -> None:
    file = tmp_path / "study.yaml"
    file.write_text("name: s\ndata: [{name: demo, tokenizer: trained}]\nmodels: [linear]\n", encoding="utf-8")
    shown = command("study", "report", file, "--output", tmp_path / "out", code=1)
    assert "No run finished" in shown.out and shown.err.startswith("error: demo-") and "not run yet" in shown.err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"created": "2026', '"created": "2025', "was changed after it was written"),
        ('"schema_version": 4', '"schema_version": 5', "has schema 5"),
    ],
)
def test_a_record_that_cannot_be_trusted_stops_the_study_before_it_starts(
    old: str, new: str, said: str, tmp_path: Path, command: Command
) -> None:
    run(spec(), tmp_path)
    MadeUp.started.clear()
    path = run_folder(tmp_path, plan_study(spec(), tmp_path)[1].config) / "record.json"
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")
    before = snapshot(tmp_path)
    with pytest.raises(CheckpointError, match=said):
        run(spec(seeds=[0, 1, 2]), tmp_path)
    with pytest.raises(CheckpointError, match=said):
        report_study(spec(), tmp_path, command="recurra study report")
    assert MadeUp.started == [] and snapshot(tmp_path) == before
    for words in (["plan", "--no-cost"], ["status"]):
        out, err = command("study", *words, tmp_path / "study.yaml", "--output", tmp_path, code=2)
        assert "refused" in out and said in err and err.count("\n") == 1


def test_a_record_of_a_later_version_stops_the_study_before_it_starts(tmp_path: Path) -> None:
    run(spec(), tmp_path)
    MadeUp.started.clear()
    path = run_folder(tmp_path, plan_study(spec(), tmp_path)[1].config) / "record.json"
    values = {**read_json(path), "later": 1}
    write_json(path, {**values, "content_hash": RunRecord.hash_of(values)})
    before = snapshot(tmp_path)
    with pytest.raises(CheckpointError, match="'later'"):
        run(spec(seeds=[0, 1, 2]), tmp_path)
    with pytest.raises(CheckpointError, match="'later'"):
        report_study(spec(), tmp_path, command="recurra study report")
    assert MadeUp.started == [] and snapshot(tmp_path) == before


def test_a_study_that_asks_for_onnx_without_the_package_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    study = spec(exports=[{"format": "onnx", "precision": "int8"}])
    with pytest.raises(UnavailableError, match=r"needs the package onnx; pip install 'recurra\[onnx\]'"):
        run(study, tmp_path / "out")
    assert MadeUp.started == [] and not (tmp_path / "out").exists()


def test_rows_in_memory_resume_and_are_the_runs_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # The command line would take its tokenizer from there.
    monkeypatch.delenv("RECURRA_DATA_ROOT", raising=False)
    result = compare(Path("a"))
    (rows,) = (tmp_path / "a" / "rows").iterdir()
    assert len(MadeUp.started) == 5
    before = snapshot(tmp_path / "a" / "runs")
    MadeUp.started.clear()
    compare(Path("a"), (list(FRAME["text"]), FRAME["label"].to_numpy()))
    assert MadeUp.started == [] and snapshot(tmp_path / "a" / "runs") == before
    # The command on the page does it again, from the file that was kept.
    (line,) = re.findall(r"recurra\.compare\(.*\)", page(result))
    eval(f"{line[:-1]}, final=False)", {"recurra": recurra})
    assert MadeUp.started == [] and f"a/rows/{rows.name}" in line
    # And the command line makes the same runs of it.
    arguments = ["compare", f"a/rows/{rows.name}", "--models", "linear,baseline,recurrent", "--seeds", "2", "--quiet"]
    arguments += ["--folds", "1", "--no-final", "--no-estimate"]
    assert main([*arguments, "--output", "b", "--no-latency", "max_epochs=1"]) in (0, 3)
    assert {run.name for run in Path("b/runs").iterdir()} == {run.name for run in Path("a/runs").iterdir()}
    # Other rows are another study and touch nothing.
    before = snapshot(tmp_path)
    with pytest.raises(StorageError, match=r"holds the study 'rows-\w+', not 'rows-\w+'; choose another output="):
        compare(Path("a"), FRAME[:-1])
    assert snapshot(tmp_path) == before


def test_the_best_run_is_that_of_the_advice_and_its_seed_was_chosen_without_test_rows(tmp_path: Path) -> None:
    MadeUp.rows = {"train": 30, "validation": 400, "test": 400}
    MadeUp.accuracies = {"linear": 0.6, "baseline": 0.9, "recurrent": 0.9}
    result = compare(tmp_path, seeds=[4, 2, 7])
    (table,) = result.content.tables
    (balance,) = [advice for advice in table.advice if advice.priority == "Recommended"]
    assert result.best.model == balance.choice == "recurrent" and result.best.why == balance.why
    losses = {}
    for outcome in result.outcomes:
        if outcome.config.model == "recurrent":
            training = read_record(outcome.folder).training
            losses[outcome.folder] = training.history[training.best_epoch - 1].validation_loss
    assert len({*losses.values()}) == 3
    assert result.best.folder == min(losses, key=lambda folder: losses[folder])
    assert result.best.seed == read_record(result.best.folder).seed
    kept = BestRunRecord.read(tmp_path / "best.json", what="", cure="")
    assert (tmp_path / kept.folder, kept.seed, kept.why) == (result.best.folder, result.best.seed, result.best.why)
    # The next command that is shown needs no name of a run.
    assert result.best_path == tmp_path and find_run(tmp_path).folder == result.best.folder


@pytest.mark.parametrize(
    ("accuracies", "spoiled", "best", "why"),
    [
        ((0.7, 0.95, 0.8), {"baseline"}, "recurrent", ""),
        ((0.7, 0.95, 0.8), {"baseline", "recurrent"}, "linear", ""),
        ((0.7, 0.95, 0.8), {"baseline", "recurrent", "linear"}, "", "none is finished, passed its audits and learned"),
        ((0.3, 0.4, 0.8), set(), "recurrent", "the only usable model"),
        ((0.3, 0.4, 0.2), set(), "", "learned its task"),
    ],
)
def test_a_model_that_failed_an_audit_or_learned_nothing_is_not_the_best(
    accuracies: tuple[float, ...], spoiled: set[str], best: str, why: str, tmp_path: Path
) -> None:
    MadeUp.rows = {"train": 30, "validation": 400, "test": 400}
    MadeUp.accuracies, MadeUp.spoiled = dict(zip(KEYS["models"], accuracies, strict=True)), spoiled
    result = compare(tmp_path)
    assert (tmp_path / "best.json").exists() == bool(best) == ("best:" in repr(result))
    assert ("audit failed: demo (official): invariance.padding" in repr(result)) == bool(spoiled)
    if best:
        assert result.best.model == best and why in result.best.why
        with pytest.raises(RunError, match=r"stays within 0\.001 MiB; the nearest is "):
            compare(tmp_path, max_mib=0.001).best
    else:
        with pytest.raises(RunError, match=f"can be recommended: .*{why}"):
            result.best


def test_of_several_data_sets_none_is_recommended_and_what_was_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(spec(), tmp_path)
    assert (tmp_path / "best.json").exists()
    several = replace(first.content, tables=first.content.tables * 2)
    monkeypatch.setattr(reported_study, "_summarise", lambda *_: ([], several))
    monkeypatch.setattr(reported_study, "write_study_report", lambda *_, **__: first.report)
    run(spec(), tmp_path)
    assert not (tmp_path / "best.json").exists()
    with pytest.raises(CheckpointError, match="recommends none; give one of them"):
        find_run(tmp_path)


def test_results_are_a_table_of_numbers_and_read_well(tmp_path: Path) -> None:
    result = compare(tmp_path, FRAME.rename(columns={"label": "<b>"}), label_column="<b>")
    table = result.table
    assert set(table.index) == {"linear", "baseline", "recurrent"} and len(table) == 3
    with (tmp_path / "tables" / "results.csv").open(encoding="utf-8") as stream:
        rows = {(row["model"], row["split"], row["measure"]): row for row in csv.DictReader(stream) if not row["seed"]}
    for model in table.index:
        assert float(rows[model, "test", "accuracy"]["value"]) == table.loc[model, "accuracy"]
        assert int(rows[model, "", "parameters"]["value"]) == table.loc[model, "parameters"]
    lines = repr(result).splitlines()
    assert lines[0].startswith("demo") and lines[1].split()[:3] == ["Model", "Seeds", "Accuracy"]
    assert max(map(len, lines[:5])) <= 120
    assert any(line.startswith(f"best: {result.best.model} (") for line in lines)
    assert lines[-1] == f"report: {tmp_path / 'report.html'}"


def test_without_a_finished_run_a_result_still_says_what_it_is(tmp_path: Path) -> None:
    MadeUp.failing = {0, 1}
    result = compare(tmp_path)
    assert result.report is None and len(result.failed_runs) == 5
    assert repr(result).splitlines()[-1] == "no report: no run is finished" and "went wrong" in repr(result)
    assert result.table.empty
    with pytest.raises(RunError, match="can be recommended"):
        result.best
