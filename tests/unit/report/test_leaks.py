"""Whether rows that also stand in the training rows decide a comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factories import RunFactory
from recurra.cli.main import main
from recurra.core.record import AuditResult, read_record, write_record
from recurra.evaluation.audits.grading import grade, keep_rows
from recurra.evaluation.metrics import evaluate_logits
from recurra.evaluation.predictions import read_predictions, write_predictions
from recurra.study.spec import load_study
from rendered import summarise_folders, summarise_runs

ROWS = {"train": 900, "validation": 300, "test": 600}
COPIES = np.arange(600) < 40


def finding() -> AuditResult:
    """What the leakage audit says before it is graded."""
    return AuditResult(
        name="leakage.exact.test",
        status="failed",
        summary="6.67% of rows (40 of 600): the text is a training text; allowed: 1%",
        value=40 / 600,
        threshold=0.01,
        details={"examples": [{"id": "0", "text": "a film", "train_text": "a film"}], **keep_rows(COPIES)},
    )


def run(factory: RunFactory, model: str, rest: float, on_copies: float, *, sure: int | None = None) -> Path:
    """A run that is right on a share of the fresh rows and on a share of the copies, graded by that.

    Rows of the label ``sure`` are right whatever the shares.
    """
    folder = factory.run(model)
    kept = read_predictions(folder, "test")
    # The easiest rows of all models are the same.
    right = np.concatenate([np.arange(40) < 40 * on_copies, np.arange(560) < 560 * rest]) | (kept.labels == sure)
    said = np.where(right, kept.labels, 1 - kept.labels)
    logits = np.eye(2, dtype=np.float32)[said] * 3
    write_predictions(folder, "test", kept.ids, kept.labels, logits)
    record = read_record(folder)
    metrics = {**record.metrics, "test": evaluate_logits(logits, kept.labels)}
    audits = grade([finding()], {"test": right}, model)
    write_record(folder, record.model_copy(update={"metrics": metrics, "audits": audits}))
    return folder


def line(folders: list[Path]) -> dict:
    (table,) = summarise_runs(folders)["tables"]
    (found,) = [each for each in table["audits"] if each["status"] in ("note", "failed")]
    return found


def test_copies_that_change_no_verdict_are_a_note(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path / "runs", rows=ROWS)
    folders = [run(factory, "linear", 0.7, 0.8), run(factory, "recurrent", 0.8, 0.9)]
    found = line(folders)
    assert found["status"] == "note" and found["concerns"] == "every run"
    assert (
        "without these rows the verdict is the same" in found["summary"] and "inside the interval" in found["summary"]
    )
    (table,) = summarise_folders(folders).tables
    assert not table.failed_groups and all(not model.failed_audits for model in table.models)
    assert "Notes of the audits, not failures: leakage on test." in table.conclusion
    assert main(["audit", "study", str(tmp_path)]) == 0


def test_copies_that_make_the_difference_fail_for_every_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    factory = RunFactory(tmp_path / "runs", rows=ROWS)
    # Ahead on the copies alone; neither figure leaves its own interval without them.
    folders = [run(factory, "linear", 0.8, 0.55), run(factory, "recurrent", 0.8, 1.0)]
    assert {audit.status for folder in folders for audit in read_record(folder).audits} == {"note"}
    found = line(folders)
    assert found["status"] == "failed" and "recurrent is no longer shown to be better" in found["summary"]
    assert found["meaning"].startswith("Rows of this split are also")
    (table,) = summarise_folders(folders).tables
    assert all(model.failed_groups == ["leakage on test"] for model in table.models)
    assert main(["audit", "study", str(tmp_path), "--json"]) == 3
    audits = json.loads(capsys.readouterr().out)["audits"]
    assert [(each["status"], each["concerns"]) for each in audits] == [("failed", "every run")]


def test_rows_that_a_teacher_knew_fail_for_its_student_alone(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=ROWS)
    folders = [run(factory, "linear", 0.8, 0.55), run(factory, "recurrent", 0.8, 1.0)]
    for folder, audits in zip(folders, ([], [{"name": "teacher.exact.test"}]), strict=True):
        record = read_record(folder)
        own = [record.audits[0].model_copy(update=audit) for audit in audits]
        write_record(folder, record.model_copy(update={"audits": own}))
    (table,) = summarise_folders(folders).tables
    assert {model.label: model.failed_audits for model in table.models} == {
        "linear": [], "recurrent": ["teacher.exact.test"],
    }  # fmt: skip
    assert table.recommended is not None and table.recommended.choice == "linear"


def test_a_leak_is_judged_by_what_the_study_is_judged_by(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path / "runs", rows=ROWS)
    # Ahead on the copies alone, in rows whose mistakes cost nothing.
    folders = [run(factory, "linear", 0.6, 0.0, sure=1), run(factory, "recurrent", 0.6, 1.0, sure=1)]
    assert line(folders)["status"] == "failed" and main(["audit", "study", str(tmp_path)]) == 3
    costs = {"negative": {"negative": 0, "positive": 0}, "positive": {"negative": 1, "positive": 0}}
    study: dict[str, Any] = {"name": "cheap", "data": [{"name": "sst2"}], "models": ["linear", "recurrent"]}
    study |= {"measure": "cost", "costs": costs}
    (tmp_path / "study.yaml").write_text(json.dumps(study))
    questions = load_study(tmp_path / "study.yaml").questions
    (table,) = summarise_folders(folders, questions=questions).tables
    assert [each.status for each in table.audits] == ["note"] and main(["audit", "study", str(tmp_path)]) == 0


def test_the_first_place_among_equals_is_told_and_no_verdict(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=ROWS)
    found = line([run(factory, "linear", 0.8, 0.9), run(factory, "recurrent", 0.802, 0.85)])
    assert found["status"] == "note" and "recurrent instead of linear scores highest" in found["summary"]


def test_one_model_has_no_verdict_and_lost_predictions_no_say(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=ROWS)
    folders = [run(factory, "linear", 0.8, 0.55)]
    assert "verdict" not in line(folders)["summary"]
    folders.append(run(factory, "recurrent", 0.8, 1.0))
    (folders[0] / "predictions" / "test.parquet").unlink()
    assert line(folders)["status"] == "note" and "verdict" not in line(folders)["summary"]
