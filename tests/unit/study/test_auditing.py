"""Audits on request."""

from __future__ import annotations

from pathlib import Path

import pytest

from factories import RunFactory, invariance, leakage, seen, skipped
from recurra.core.errors import CheckpointError
from recurra.core.record import read_record, write_record
from recurra.study.model_auditing import audit_model, audit_study
from reviews import train_linear, train_tiny

ROWS = {"train": 60, "validation": 20, "test": 20}


def test_a_study_s_audits_are_collected_over_its_runs(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path / "runs", rows=ROWS)
    audits = [leakage(failed=False), skipped()]
    factory.run("linear", audits=audits)
    factory.run("recurrent", audits=[*audits, invariance()])
    bad = factory.run("recurrent", seed=1, audits=[*audits, invariance(failed=True)])
    (tmp_path / "runs" / "broken").mkdir()
    found, missing = audit_study(tmp_path)
    states = {audit.name: (audit.status, audit.runs, audit.failed_runs) for audit in found}
    assert states == {
        "leakage.contained.test": ("passed", 3, []),
        "leakage.source.test": ("skipped", 3, []),
        "invariance.padding": ("failed", 2, [bad.name]),
    }
    factory.run("linear", run_id="measured", audits=[seen(0.1)])
    assert {audit.name: audit.status for audit in audit_study(tmp_path)[0]}["seen.test"] == "measured"
    assert "3.1e-02" in next(audit.summary for audit in found if audit.name == "invariance.padding")
    assert list(missing) == ["broken"]


def test_audits_on_different_data_stay_apart(tmp_path: Path) -> None:
    RunFactory(tmp_path / "runs", rows=ROWS).run("linear", audits=[leakage(failed=True)])
    RunFactory(tmp_path / "runs", rows=ROWS, protocol="pooled").run("linear", audits=[leakage(failed=False)])
    found, _ = audit_study(tmp_path)
    assert sorted(audit.status for audit in found) == ["failed", "passed"]
    assert len({audit.data for audit in found}) == 2


def test_a_run_folder_is_a_study_of_one_and_a_folder_without_runs_is_none(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no finished run"):
        audit_study(tmp_path)
    run = RunFactory(tmp_path, rows=ROWS).run("linear", audits=[skipped()])
    assert [audit.status for audit in audit_study(run)[0]] == ["skipped"]


def test_a_trained_model_passes_and_a_wrong_count_is_found(tmp_path: Path) -> None:
    run = train_tiny(tmp_path)
    audits = {audit.name: audit for audit in audit_model(str(run))}
    assert {audit.status for audit in audits.values()} == {"passed"}
    assert audits["parameters.count"].details["counted"] > 1000

    record = read_record(run)
    model = record.model.model_copy(update={"parameters": record.model.parameters + 1})
    write_record(run, record.model_copy(update={"model": model}))
    audits = {audit.name: audit for audit in audit_model(str(run))}
    assert (audits["parameters.count"].status, audits["parameters.count"].value) == ("failed", 1.0)
    assert audits["invariance.padding"].status == "passed"


def test_a_linear_model_has_only_its_parameters_to_audit(tmp_path: Path) -> None:
    run = train_linear(tmp_path)
    states = {audit.name: audit.status for audit in audit_model(str(run))}
    assert states == {
        "invariance.padding": "skipped",
        "invariance.neighbours": "skipped",
        "parameters.count": "passed",
    }
