"""Packed rows give what the formulas give for each row, in outputs and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from recurra import RecurraForSequenceClassification
from recurra.core.errors import ConfigurationError
from references import recurrent_transformer as reference
from relaxed import RELAXED
from tiny import stir, tiny_config, tiny_model

# Ours turns queries and keys in FP32 whatever the states' type.
TOLERANCE = {"rtol": 2e-5, "atol": 2e-6}
LENGTHS = [3, 3, 2, 1]
VARIANTS: dict[str, dict[str, Any]] = {
    "recurrent": {"num_core_layers": 1},
    "relaxed": {**RELAXED, "num_core_layers": 1},
    "stacked": {"num_core_layers": 2, "num_recurrences": 1, "residual_scale": 0.0},
    "causal, last": {"causal": True, "pooling": "last"},
    "last": {"pooling": "last"},
    "max": {"pooling": "max"},
    "prelude": {"num_prelude_layers": 1, "num_core_layers": 1},
    "coda, injection, final norm": {
        "num_coda_layers": 1,
        "num_core_layers": 1,
        "input_injection": "concat",
        "final_norm": True,
    },
}


def pack(rows: list[list[int]], fillers: tuple[int, ...] = ()) -> dict[str, torch.Tensor]:
    """Rows end to end, behind them filler rows of zeros."""
    flat = [token for row in rows for token in row] + [0] * sum(fillers)
    return {"input_ids": torch.tensor([flat]), "row_lengths": torch.tensor([*map(len, rows), *fillers])}


def some_rows(lengths: list[int], vocab_size: int = 12) -> list[list[int]]:
    dice = torch.Generator().manual_seed(0)
    return [torch.randint(1, vocab_size, (length,), generator=dice).tolist() for length in lengths]


@pytest.mark.parametrize("fillers", [(), (3, 1, 0, 0)], ids=["bare", "filled"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_packed_rows_equal_the_formulas(variant: str, fillers: tuple[int, ...]) -> None:
    shape = {"vocab_size": 12, "hidden_size": 8, "intermediate_size": 6, **VARIANTS[variant]}
    config = tiny_config(**shape)
    model = RecurraForSequenceClassification(config).double().eval()
    stir(model)
    rows = some_rows(LENGTHS)
    logits = model(**pack(rows, fillers)).logits[: len(rows)]
    assert torch.isfinite(logits).all()
    logits.double().square().sum().backward()
    weights = {name: weight.detach().clone().requires_grad_() for name, weight in model.named_parameters()}
    wanted = torch.stack([reference.classify(row, None, weights, config) for row in rows])
    wanted.square().sum().backward()
    torch.testing.assert_close(logits.double(), wanted, **TOLERANCE)
    for name, weight in model.named_parameters():
        theirs = weights[name].grad
        ours = torch.zeros_like(weight) if weight.grad is None else weight.grad
        torch.testing.assert_close(ours, torch.zeros_like(weight) if theirs is None else theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_without_gradients_packed_and_padded_and_with_gradients_agree(dtype: torch.dtype, causal: bool) -> None:
    model = tiny_model(causal=causal).to(dtype).eval()
    # Long and short rows side by side, and rows of equal length that attention takes together.
    rows = some_rows([64, 33, 33, 16, 7, 1], vocab_size=40)
    ids = torch.zeros(len(rows), 64, dtype=torch.long)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
    wanted = model(ids, (ids > 0).long()).logits.detach()
    with torch.inference_mode():
        packed = model(**pack(rows, (2, 0))).logits[: len(rows)]
        padded = model(ids, (ids > 0).long()).logits
    near = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-3}
    torch.testing.assert_close(packed, wanted, **near)
    torch.testing.assert_close(padded, wanted, **near)


def test_a_row_that_is_too_long_is_refused_and_the_whole_may_be_longer() -> None:
    model = tiny_model(max_position_embeddings=8)
    model(**pack([[1] * 8, [1] * 8]))
    with pytest.raises(ConfigurationError, match="an input has 9 tokens; this model takes at most 8"):
        model(**pack([[1] * 9]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_ids": torch.ones(1, 5, dtype=torch.long)}, r"rows of 6 tokens came with input_ids of shape \(1, 5\)"),
        ({"input_ids": torch.ones(2, 3, dtype=torch.long)}, r"input_ids of shape \(2, 3\)"),
        ({"attention_mask": torch.ones(1, 6)}, "and an attention_mask; give the rows end to end"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(change: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        tiny_model()(**{**pack([[1, 2, 3], [1, 2, 3]]), **change})
