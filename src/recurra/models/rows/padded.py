"""Padded rows: the layout of training, audits and accelerators."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from recurra.models.rows.attend import attend, attention_mask
from recurra.models.rows.layout import Convolution, RowLayout


@dataclass(frozen=True)
class PaddedRows(RowLayout):
    """Rows side by side, padded to one length.

    Attributes:
        mask: Boolean mask of keys or none, see `recurra.models.rows.attend.attention_mask`.
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
