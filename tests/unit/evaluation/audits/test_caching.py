"""The cache audit passes an exact cache and finds one that mixes up recurrences, positions or histories."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from recurra import RecurraForCausalLM
from recurra.evaluation.audits.invariance import audit_cache
from recurra.models.rows import CachedRows
from tiny import language_model, stir

CRT: dict[str, Any] = {"num_recurrences": 3, "exits": [1, 2], "max_position_embeddings": 40}


def stirred(**values: Any) -> RecurraForCausalLM:
    model = language_model(**{**CRT, **values})
    stir(model)
    return model


@pytest.mark.parametrize("values", [{}, {"feed_forward": "linear"}, {"position": "rotary"}], ids=str)
def test_an_exact_cache_passes(values: dict[str, Any]) -> None:
    model = stirred(**values).train()
    audit = audit_cache(model)
    assert audit.status == "passed" and model.training
    largest = audit.details["largest_difference"]
    assert audit.details["tokens"] == 40 and audit.details["precision"] == "fp32"
    assert 0 <= audit.value <= audit.threshold and (largest > 0) == (audit.value > 0)


def test_logits_that_are_no_numbers_fail_without_a_figure() -> None:
    model = stirred()
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    audit = audit_cache(model, tokens=4)
    assert (audit.status, audit.value) == ("failed", None)
    assert "not finite" in audit.summary and audit.details == {"tokens": 4}


def test_a_leaking_model_is_skipped() -> None:
    assert audit_cache(stirred(causal_convolution=False)).status == "skipped"


def test_recurrences_that_share_keys_and_values_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The later recurrences read what the first one kept, as if a shared layer needed one cache only."""
    right = CachedRows.attend

    def shared(self: CachedRows, query: Any, key: Any, value: Any, queries: Any, dropout: float) -> torch.Tensor:
        number = next(self.attentions)
        object.__setattr__(self, "attentions", iter([number]))
        found = right(self, query, key, value, queries, dropout)
        if number:
            kept, first = self.cache.layers[number], self.cache.layers[0]
            kept.keys, kept.values = first.keys, first.values
        object.__setattr__(self, "attentions", itertools.count(number + 1))
        return found

    monkeypatch.setattr(CachedRows, "attend", shared)
    assert audit_cache(stirred()).status == "failed"


def test_convolutions_that_forget_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(self: CachedRows, states: torch.Tensor, convolution: Any) -> torch.Tensor:
        return convolution(states)

    monkeypatch.setattr(CachedRows, "convolve", forgetful)
    model = stirred()
    whole = audit_cache(model)
    assert whole.status == "failed"
    # Logits a thousand times smaller, which differ by as much less, are as far apart.
    with torch.no_grad():
        for weight in model.get_output_embeddings().parameters():
            weight.mul_(2.0**-10)
    small = audit_cache(model)
    assert small.details["largest_difference"] == whole.details["largest_difference"] / 2**10 < 0.1
    assert small.value == whole.value


def test_padding_in_a_history_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    right = CachedRows.convolve

    def unmasked(self: CachedRows, states: torch.Tensor, convolution: Any) -> torch.Tensor:
        object.__setattr__(self, "real", None)
        return right(self, states, convolution)

    monkeypatch.setattr(CachedRows, "convolve", unmasked)
    assert audit_cache(stirred()).status == "failed"
