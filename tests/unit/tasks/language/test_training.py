"""The audits of a trained language model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from recurra.core.record import AuditResult
from recurra.tasks.language import training


@pytest.mark.parametrize(("causal", "alarm"), [("failed", "failed"), ("passed", "measured")])
def test_a_model_that_is_too_good_has_the_word_of_its_causality_audit(
    causal: str, alarm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = AuditResult(name="causality.final", status=causal, summary="")
    monkeypatch.setattr(training, "language_audits", lambda *_: [audit])
    monkeypatch.setattr(training, "running", lambda _: SimpleNamespace(min_characters=20))
    heads = {"exit 1": SimpleNamespace(word_perplexity=None), "final": SimpleNamespace(word_perplexity=2.0)}
    dataset: Any = SimpleNamespace(record=lambda _: {"splits": {}})
    config: Any = SimpleNamespace(seed=0, data=None)
    metrics: Any = {"test": SimpleNamespace(heads=heads)}
    results = training._audit(None, metrics, dataset, config)
    assert {result.name: result.status for result in results} == {
        "causality.final": causal,
        "perplexity.too-good": alarm,
    }
