"""Audits of padding, neighbours and caches: right models pass, and each that is broken in one way fails there."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from recurra import RecurraForCausalLM
from recurra.core.record import AuditResult
from recurra.evaluation.audits.models import audit_cache, audit_invariance
from recurra.models.rows import CachedRows
from tiny import language_model, stir

VOCABULARY = 50
ROWS = [
    {"input_ids": np.random.default_rng(row).integers(1, VOCABULARY, size=3 + row % 17), "labels": row % 2}
    for row in range(60)
]


MASKS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "ignores the mask": lambda ids, mask: torch.ones_like(mask),
    # The row's own first token stays visible, or a softmax over nothing would give NaN.
    "mask of the first row": lambda ids, mask: mask[:1].expand_as(mask),
    # Right for padding tokens, and reads anything else that stands under the mask.
    "mask from tokens": lambda ids, mask: ids != 0,
}
POOLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "statistics of the batch": lambda hidden, mask: hidden[:, 0] - 0.05 * hidden[:, 0].mean(dim=0, keepdim=True),
    "mean over padding": lambda hidden, mask: (hidden * mask[..., None]).mean(dim=1),
    "last place": lambda hidden, mask: hidden[:, -1],
    "not finite": lambda hidden, mask: hidden[:, 0] / 0,
}


class Attending(nn.Module):
    """One attention layer and a head, right in itself, or wrong in one way."""

    def __init__(self, way: str = "right", longest: int = 1000) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.way, self.config = way, SimpleNamespace(max_position_embeddings=longest)
        self.table = nn.Embedding(VOCABULARY, 16)
        self.mix = nn.Linear(16, 48)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(16, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        assert input_ids.shape[1] <= self.config.max_position_embeddings
        mask = MASKS.get(self.way, lambda _, mask: mask)(input_ids, attention_mask).bool()
        query, key, value = self.mix(self.table(input_ids)).chunk(3, dim=-1)
        scores = (query @ key.transpose(1, 2)).masked_fill(~mask[:, None, :], -torch.inf)
        hidden = self.dropout(scores.softmax(dim=-1) @ value)
        pooled = POOLS.get(self.way, lambda hidden, _: hidden[:, 0])(hidden, attention_mask)
        return SimpleNamespace(logits=self.head(pooled))


def _audit(model: nn.Module, rows: Any = ROWS, **options: Any) -> dict[str, AuditResult]:
    return {result.name: result for result in audit_invariance(model, rows, **options)}


@pytest.mark.parametrize("way", ["right", *MASKS, *POOLS])
def test_right_models_pass_and_broken_ones_fail_where_they_are_broken(way: str) -> None:
    got = _audit(Attending(way))
    beside = way in ("mask of the first row", "statistics of the batch", "not finite")
    alone = way != "right" and (not beside or way == "not finite")
    padding, neighbours = got["invariance.padding"], got["invariance.neighbours"]
    assert (padding.status, neighbours.status) == tuple("failed" if bad else "passed" for bad in (alone, beside))
    assert padding.threshold == neighbours.threshold == 1e-4
    if way == "not finite":
        return
    assert padding.summary.startswith("padding changes a logit by at most")
    assert neighbours.summary.startswith("neighbours in the batch change a logit by at most")
    for result in got.values():
        largest, scale = result.details["largest_difference"], result.details["scale"]
        assert result.value == largest / scale and largest == max(result.details["by_case"].values())
        assert result.details["precision"] == "fp32"
        # A defect is told from rounding by orders of magnitude, not by luck.
        assert result.value < 1e-5 if result.status == "passed" else result.value > 1e-3


def test_model_is_left_as_it_was_and_its_longest_input_and_few_rows_are_respected() -> None:
    model = Attending(longest=20).train()
    model.head.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.set_float32_matmul_precision("high")
    try:
        assert {result.status for result in _audit(model).values()} == {"passed"}
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert model.training and model.dropout.training and not model.head.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    for rows in ([], ROWS[:1], [{"input_ids": []}, {"input_ids": [1]}]):
        assert {result.status for result in _audit(model, rows).values()} == {"skipped"}


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
    # Logits that are no numbers fail without a figure.
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    audit = audit_cache(model, tokens=4)
    assert (audit.status, audit.value) == ("failed", None)
    assert "not finite" in audit.summary and audit.details == {"tokens": 4}


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


def test_convolutions_that_forget_or_read_padding_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    right = CachedRows.convolve

    def unmasked(self: CachedRows, states: torch.Tensor, convolution: Any) -> torch.Tensor:
        object.__setattr__(self, "real", None)
        return right(self, states, convolution)

    assert audit_cache(stirred(causal_convolution=False)).status == "skipped"
    monkeypatch.setattr(CachedRows, "convolve", unmasked)
    assert audit_cache(stirred()).status == "failed"
    monkeypatch.setattr(CachedRows, "convolve", lambda self, states, convolution: convolution(states))
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
