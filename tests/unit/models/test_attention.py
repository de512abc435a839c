"""Rotary positions, and attention in half precision."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from recurra import RecurraModel
from recurra.models.layers import apply_rotary, rotary_table
from recurra.models.rows import attend, attention_mask
from tiny import tiny_model

CPU = torch.device("cpu")


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 400), st.sampled_from([2, 4, 16, 64]))
@settings(max_examples=50)
def test_scores_depend_on_the_relative_position_alone(first: int, second: int, shift: int, width: int) -> None:
    dice = torch.Generator().manual_seed(first * 41 + second)
    query, key = torch.randn(2, 1, 1, width, generator=dice, dtype=torch.float64)
    table = rotary_table(512, width, 10_000.0, CPU)

    def score(at_query: int, at_key: int) -> float:
        turned = apply_rotary(query, table[at_query : at_query + 1])
        return float((turned * apply_rotary(key, table[at_key : at_key + 1])).sum())

    assert score(first + shift, second + shift) == pytest.approx(score(first, second), abs=2e-4 * math.sqrt(width))


@pytest.mark.parametrize("move", ["to", "half", "copy", "saved", "saved in bf16"])
def test_the_rotary_table_survives(move: str, tmp_path: Path) -> None:
    """A buffer outside the checkpoint: loading leaves it at zero, half precision would round its angles."""
    model = tiny_model().model
    wanted = rotary_table(64, 8, 10_000.0, CPU)
    moved = {
        "to": lambda: copy.deepcopy(model).to(torch.bfloat16),
        "half": lambda: copy.deepcopy(model).half().float(),
        "copy": lambda: copy.deepcopy(model),
        "saved": lambda: _reload(model, tmp_path),
        "saved in bf16": lambda: _reload(copy.deepcopy(model).to(torch.bfloat16), tmp_path),
    }[move]()
    assert moved.rotary.dtype == torch.float32
    assert torch.equal(moved.rotary, wanted)
    assert torch.equal(moved.rotary, model.rotary)
    assert not any("rotary" in name for name in moved.state_dict())


def _reload(model: RecurraModel, folder: Path) -> RecurraModel:
    model.save_pretrained(folder)
    return RecurraModel.from_pretrained(folder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_a_row_of_padding_gives_no_nan_and_leaves_the_others_alone(causal: bool, dtype: torch.dtype) -> None:
    model = tiny_model(causal=causal).to(dtype).train()
    model.config.hidden_dropout = 0.0
    model.eval()
    ids = torch.randint(1, 40, (3, 6), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(3, 6, dtype=torch.long)
    mask[1] = 0
    mask[2, 4:] = 0
    output = model(ids, mask, labels=torch.tensor([0, 1, 0]))
    assert torch.isfinite(output.logits).all()
    output.loss.backward()
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters() if weight.grad is not None)
    alone = model(ids[:1]).logits
    torch.testing.assert_close(output.logits[:1], alone, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("queries", [9, 1])
@pytest.mark.parametrize("gradients", [True, False])
def test_half_precision_attention_equals_the_fused_kernel_in_fp32(
    causal: bool, masked: bool, queries: int, gradients: bool
) -> None:
    dice = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(3, 2, 9, 8, generator=dice).bfloat16() for _ in range(3))
    query = query[:, :, :queries]
    keep = torch.arange(9) < torch.tensor([[9], [4], [6]]) if masked else None
    mask, kernel_causal = attention_mask(keep, 9, causal, CPU)
    if mask is not None and mask.shape[-2] > 1:
        mask = mask[:, :, :queries]
    assert (mask is None) == (not masked)
    with torch.set_grad_enabled(gradients):
        ours = attend(query, key, value, mask, kernel_causal)
    wanted = functional.scaled_dot_product_attention(
        query.float(), key.float(), value.float(), attn_mask=mask, is_causal=kernel_causal
    )
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours.float(), wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("causal", [False, True])
def test_no_padding_needs_no_mask(causal: bool) -> None:
    assert attention_mask(torch.ones(2, 4), 4, causal, CPU) == (None, causal)
    assert attention_mask(None, 4, causal, CPU) == (None, causal)
