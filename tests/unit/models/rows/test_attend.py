"""Masks, and attention in half precision on a CPU."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from recurra.models.rows import attend, attention_mask

CPU = torch.device("cpu")


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
def test_masks_show_exactly_the_allowed_keys(causal: bool) -> None:
    keep = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1], [1, 1, 1, 1]])
    mask, kernel_causal = attention_mask(keep, 4, causal, CPU)
    assert mask is not None and not kernel_causal
    mask = mask.expand(3, 1, 4, 4)
    for row in range(3):
        for query in range(4):
            if not keep[row, query]:
                continue
            for key in range(4):
                assert bool(mask[row, 0, query, key]) == (bool(keep[row, key]) and (key <= query or not causal))


@pytest.mark.parametrize("causal", [False, True])
def test_no_padding_needs_no_mask(causal: bool) -> None:
    assert attention_mask(torch.ones(2, 4), 4, causal, CPU) == (None, causal)
    assert attention_mask(None, 4, causal, CPU) == (None, causal)
