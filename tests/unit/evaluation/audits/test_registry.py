"""Every audit is registered once; what is registered runs, and has its meaning in every report."""

from __future__ import annotations

import pytest

from committed import committed
from recurra.core.record import AuditResult, read_any_record
from recurra.evaluation.audits import registry
from recurra.evaluation.audits.registry import AUDITS, MEANINGS, NOTES, UNKNOWN_MEANING, Subject, meaning, run_audits
from recurra.tasks.classification.task import TASK


def test_every_audit_of_a_committed_record_is_registered() -> None:
    names = {audit.name for path in committed() for audit in read_any_record(path).audits}
    assert names and {name.partition(".")[0] for name in names} <= AUDITS.keys()


def test_whatever_can_fail_says_what_that_means() -> None:
    # Long texts and what an encoder has read are noted and never fail; what was seen is measured.
    silent = {"long-texts", "seen", "encoder"}
    assert all((meaning(f"{name}.x") == UNKNOWN_MEANING) == (name in silent) for name in AUDITS if name != "shortcuts")
    assert all(any(prefix.startswith(name[:8]) for name in AUDITS) for prefix in (*MEANINGS, *NOTES))


def test_a_registered_audit_runs_for_its_subject_and_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new audit is a module and an entry: tasks run it, reports know it, without another change."""
    made = AuditResult(name="emptiness.rows", status="failed", summary="it is empty")
    monkeypatch.setattr("recurra.evaluation.audits.leakage.audit_emptiness", lambda dataset: made, raising=False)
    monkeypatch.setattr(registry, "AUDITS", {"emptiness": (Subject.LABELLED_DATA, "leakage:audit_emptiness")})
    monkeypatch.setitem(MEANINGS, "emptiness", "There is nothing.")
    assert run_audits(Subject.LABELLED_DATA, object()) == [made] == TASK.data_audits(object())  # type: ignore[arg-type]
    assert run_audits(Subject.CLASSIFIER, object()) == []
    assert meaning("emptiness.rows") == "There is nothing."
