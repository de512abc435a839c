"""The alarm for perplexities that are too good."""

from __future__ import annotations

import pytest

from recurra.core.record import AuditResult
from recurra.evaluation.audits.leakage import audit_too_good


def causality(status: str, calls: list[str]) -> list[AuditResult]:
    calls.append(status)
    return [AuditResult(name="causality.final", status=status, summary="said by the audit")]


@pytest.mark.parametrize("perplexity", [15.0, 37.5, float("inf")])
def test_an_honest_perplexity_forces_nothing(perplexity: float) -> None:
    calls: list[str] = []
    (alarm,) = audit_too_good(perplexity, lambda: causality("passed", calls))
    assert alarm.status == "passed" and calls == []


def test_a_perplexity_below_15_forces_the_causality_audit_and_falls_with_it() -> None:
    calls: list[str] = []
    alarm, audit = audit_too_good(1.08, lambda: causality("failed", calls))
    assert calls == ["failed"] and audit.name == "causality.final"
    assert alarm.status == "failed" and "ALARM: word perplexity 1.08 is below 15" in alarm.summary
    assert "the model leaks (causality.final)" in alarm.summary


def test_a_causal_model_keeps_the_alarm_as_a_figure() -> None:
    alarm, audit = audit_too_good(14.9, lambda: causality("passed", []))
    assert (alarm.status, alarm.value, audit.status) == ("measured", 14.9, "passed")
    assert "look for test text in training" in alarm.summary
