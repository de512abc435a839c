"""Padded rows: the layout of training, audits and accelerators; and the attention that every layout ends in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from recurra.models.rows.layout import Convolution, RowLayout


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


@dataclass(frozen=True)
class PaddedRows(RowLayout):
    """Rows side by side, padded to one length.

    Attributes:
        mask: Boolean mask of keys or none, see `recurra.models.rows.padded.attention_mask`.
        real: ``(batch, tokens)``, true at real tokens; none if all are.
        tokens: Length of the batch.
    """

    mask: Tensor | None
    real: Tensor | None
    tokens: int

    @classmethod
    def of(
        cls, table: Tensor | None, keep: Tensor | None, tokens: int, *, causal: bool, device: torch.device
    ) -> PaddedRows:
        """Makes the layout from the model's rotary table, if any, and a padding mask ``(batch, tokens)``."""
        mask, causal = attention_mask(keep, tokens, causal, device)
        real = None if keep is None or mask is None else keep.bool()
        return cls(None if table is None else table[:tokens], causal, mask, real, tokens)

    def positions(self, device: torch.device) -> Tensor:
        """Counts real tokens, so that padding on the left moves nothing."""
        if self.real is None:
            return torch.arange(self.tokens, device=device)
        return (self.real.cumsum(1) - 1).clamp(min=0)

    def convolve(self, states: Tensor, convolution: Convolution) -> Tensor:
        """Convolves rows side by side."""
        return convolution(states if self.real is None else states.masked_fill(~self.real[:, :, None], 0))

    def leading(self, states: Tensor, queries: int) -> Tensor:
        """Returns the first positions."""
        return states[:, :queries]

    def leading_rotary(self, queries: int) -> Tensor | None:
        """Returns the table's first positions."""
        return None if self.rotary is None else self.rotary[:queries]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, queries: int | None, dropout: float) -> Tensor:
        """Attends under the mask."""
        mask = self.mask if self.mask is None or self.mask.shape[-2] == 1 else self.mask[:, :, :queries]
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        return attend(query, key, value, mask, self.causal, dropout=dropout).transpose(1, 2).flatten(2)

    def select(self, rows: Tensor) -> Self:
        """Returns the layout of some rows, still padded to the same length."""
        mask, real = (None if part is None else part[rows] for part in (self.mask, self.real))
        return replace(self, mask=mask, real=real)

    def take(self, states: Tensor, rows: Tensor) -> Tensor:
        """Returns some rows."""
        return states[rows]
