"""Audits of padding, neighbours and caches: right models pass, and each that is broken in one way fails there."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from recurra import RecurraForCausalLM
from recurra.core.record import AuditResult
from recurra.evaluation.audits.invariance import audit_cache, audit_invariance
from recurra.models.rows import CachedRows
from tiny import language_model, stir

VOCABULARY = 50
ROWS = [
    {"input_ids": np.random.default_rng(row).integers(1, VOCABULARY, size=3 + row % 17), "labels": row % 2}
    for row in range(60)
]


class Attending(nn.Module):
    """One attention layer and a head, right in itself; subclasses break one thing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(VOCABULARY, 16)
        self.mix = nn.Linear(16, 48)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(16, 3)

    def mask(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return attention_mask.bool()

    def pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        return hidden[:, 0]

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        mask = self.mask(input_ids, attention_mask)
        query, key, value = self.mix(self.table(input_ids)).chunk(3, dim=-1)
        scores = (query @ key.transpose(1, 2)).masked_fill(~mask[:, None, :], -torch.inf)
        hidden = self.dropout(scores.softmax(dim=-1) @ value)
        return SimpleNamespace(logits=self.head(self.pool(hidden, attention_mask)))


class IgnoresMask(Attending):
    def mask(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return torch.ones_like(attention_mask).bool()


class FirstRowsMask(Attending):
    def mask(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        # The row's own first token stays visible, or a softmax over nothing would give NaN.
        return attention_mask[:1].bool().expand_as(attention_mask)


class MaskFromTokens(Attending):
    """Right for padding tokens, and reads anything else that stands under the mask."""

    def mask(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return input_ids != 0


class BatchStatistics(Attending):
    def pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        first = hidden[:, 0]
        return first - 0.05 * first.mean(dim=0, keepdim=True)


class MeanOverPadding(Attending):
    def pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        return (hidden * mask[..., None]).mean(dim=1)


class LastPlace(Attending):
    def pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        return hidden[:, -1]


class NotFinite(Attending):
    def pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        return hidden[:, 0] / 0


def _audit(model: nn.Module, rows: Any = ROWS, **options: Any) -> dict[str, AuditResult]:
    return {result.name: result for result in audit_invariance(model, rows, **options)}


@pytest.mark.parametrize(
    ("kind", "padding", "neighbours"),
    [
        (Attending, "passed", "passed"),
        (IgnoresMask, "failed", "passed"),
        (FirstRowsMask, "passed", "failed"),
        (MaskFromTokens, "failed", "passed"),
        (BatchStatistics, "passed", "failed"),
        (MeanOverPadding, "failed", "passed"),
        (LastPlace, "failed", "passed"),
        (NotFinite, "failed", "failed"),
    ],
)
def test_right_models_pass_and_broken_ones_fail_where_they_are_broken(
    kind: type[Attending], padding: str, neighbours: str
) -> None:
    got = _audit(kind())
    assert {name: result.status for name, result in got.items()} == {
        "invariance.padding": padding,
        "invariance.neighbours": neighbours,
    }
    if kind is not NotFinite:
        assert got["invariance.padding"].summary.startswith("padding changes a logit by at most")
        assert got["invariance.neighbours"].summary.startswith("neighbours in the batch change a logit by at most")
    for result in got.values():
        assert result.threshold == 1e-4
        if kind is not NotFinite:
            largest, scale = result.details["largest_difference"], result.details["scale"]
            assert result.value == largest / scale and largest == max(result.details["by_case"].values())
            assert result.details["precision"] == "fp32"
            # A defect is told from rounding by orders of magnitude, not by luck.
            assert result.value < 1e-5 if result.status == "passed" else result.value > 1e-3


def test_model_is_left_as_it_was() -> None:
    model = Attending().train()
    model.head.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.set_float32_matmul_precision("high")
    try:
        _audit(model)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert model.training
    assert model.dropout.training
    assert not model.head.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_padding_respects_the_longest_input_of_the_model() -> None:
    class Limited(Attending):
        config = SimpleNamespace(max_position_embeddings=20)

        def mask(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            assert input_ids.shape[1] <= 20
            return attention_mask.bool()

    assert {result.status for result in _audit(Limited()).values()} == {"passed"}


@pytest.mark.parametrize("rows", [[], ROWS[:1], [{"input_ids": []}, {"input_ids": [1]}]])
def test_too_few_rows_are_skipped(rows: Any) -> None:
    got = _audit(Attending(), rows)
    assert {result.status for result in got.values()} == {"skipped"}


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
