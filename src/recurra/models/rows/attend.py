"""Softmax attention over rows side by side, and the mask that it takes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, *, dropout: float = 0.0
) -> Tensor:
    """Softmax attention, ``(batch, heads, queries, head_dim)`` in the type of ``value``.

    On a CPU half precision is computed in FP32: the fused kernel's backward pass in bf16 takes 3 to 6 times as long,
    and plain products in bf16 have oneDNN compile kernels for every length, which fill hundreds of MiB
    (`docs/decisions/0003-attention-in-fp32-on-a-cpu.md`).
    """
    if query.device.type != "cpu":
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal
        )
    width = torch.promote_types(value.dtype, torch.float32)
    with torch.autocast("cpu", enabled=False):
        attended = functional.scaled_dot_product_attention(
            query.to(width), key.to(width), value.to(width), attn_mask=mask, dropout_p=dropout, is_causal=causal
        )
    return attended.to(value.dtype)


def attention_mask(keep: Tensor | None, tokens: int, causal: bool, device: torch.device) -> tuple[Tensor | None, bool]:
    """Turns a padding mask into what attention needs.

    Args:
        keep: ``(batch, tokens)``, non-zero at real tokens, or none when there is no padding.
        tokens: Length of the batch.
        causal: Whether later keys are hidden.
        device: Where the mask lives.

    Returns:
        A boolean mask broadcastable to ``(batch, heads, tokens, tokens)`` or none, and whether the kernel's own causal
        mode is to be used. A batch without padding on a CPU needs no mask, which is the kernels' fastest path; on an
        accelerator looking would cost a synchronisation.
    """
    if keep is not None:
        keep = keep.bool()
        if keep.device.type == "cpu" and bool(keep.all()):
            keep = None
    if keep is None:
        return None, causal
    mask = keep[:, None, None, :]
    if causal:
        # The diagonal stays open so that a padded query has a key: a row without one would be NaN.
        triangle = torch.ones(tokens, tokens, dtype=torch.bool, device=device).tril()
        mask = (mask & triangle) | torch.eye(tokens, dtype=torch.bool, device=device)
    return mask, False
