"""How the rows of a batch lie in memory: padded side by side, or packed end to end.

Everything but attention and the choice of leading positions works on tokens one by one, so these two are all that a
layer asks of a layout.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from recurra.models.attention import attend, attention_mask


@dataclass(frozen=True)
class Layout(ABC):
    """What every layer needs besides the states.

    Attributes:
        rotary: Rotary table of the batch's positions, ``(tokens, head_dim / 2, 2)``.
        causal: Whether later keys are hidden and no mask says so already.
    """

    rotary: Tensor
    causal: bool

    @abstractmethod
    def leading(self, states: Tensor, queries: int) -> Tensor:
        """Returns the first ``queries`` positions of every row of ``(batch, tokens, hidden)``."""

    @abstractmethod
    def leading_rotary(self, queries: int) -> Tensor:
        """Returns the part of `rotary` that belongs to `leading`."""

    @abstractmethod
    def attend(self, query: Tensor, key: Tensor, value: Tensor, queries: int | None, dropout: float) -> Tensor:
        """Attends within each row.

        Args:
            query: ``(batch, tokens, heads, head_dim)``, or as many tokens as `leading` returned.
            key: ``(batch, tokens, heads, head_dim)``.
            value: ``(batch, tokens, heads, head_dim)``.
            queries: What `leading` was asked for, if it was.
            dropout: Probability with which an attention weight is dropped.

        Returns:
            ``(batch, tokens of the query, heads * head_dim)``.
        """


@dataclass(frozen=True)
class Padded(Layout):
    """Rows side by side, padded to one length.

    Attributes:
        mask: Boolean mask of keys or none, see `recurra.models.attention.attention_mask`.
    """

    mask: Tensor | None

    @classmethod
    def of(cls, table: Tensor, keep: Tensor | None, tokens: int, *, causal: bool) -> Padded:
        """Makes the layout from the model's rotary table and a padding mask ``(batch, tokens)``."""
        mask, causal = attention_mask(keep, tokens, causal, table.device)
        return cls(table[:tokens], causal, mask)

    def leading(self, states: Tensor, queries: int) -> Tensor:
        """Returns the first positions."""
        return states[:, :queries]

    def leading_rotary(self, queries: int) -> Tensor:
        """Returns the table's first positions."""
        return self.rotary[:queries]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, queries: int | None, dropout: float) -> Tensor:
        """Attends under the mask."""
        mask = self.mask if self.mask is None or self.mask.shape[-2] == 1 else self.mask[:, :, :queries]
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        return attend(query, key, value, mask, self.causal, dropout=dropout).transpose(1, 2).flatten(2)


@dataclass(frozen=True)
class Packed(Layout):
    """Rows end to end in a batch of one: no padding, no mask. Attention takes rows of equal length together.

    Attributes:
        starts: First token of every row, ``(rows,)``.
        groups: Number and length of neighbouring rows of equal length.
    """

    starts: Tensor
    groups: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, table: Tensor, lengths: Tensor, *, causal: bool) -> Packed:
        """Makes the layout from the model's rotary table and the rows' lengths ``(rows,)``."""
        starts = lengths.cumsum(0) - lengths
        positions = torch.arange(int(lengths.sum()), device=table.device) - starts.repeat_interleave(lengths)
        groups = tuple((len(list(same)), length) for length, same in itertools.groupby(lengths.tolist()))
        # A row without tokens at the end has no first one; any will do.
        return cls(table[positions], causal, starts.clamp(max=max(len(positions) - 1, 0)), groups)

    def leading(self, states: Tensor, queries: int) -> Tensor:
        """Returns the first position of every row, ``(1, rows, hidden)``."""
        if queries != 1:
            raise ValueError(f"packed rows give their first position only, not {queries}")
        return states[:, self.starts]

    def leading_rotary(self, queries: int) -> Tensor:  # noqa: ARG002 - a layout's
        """Returns the table at the first position of every row."""
        return self.rotary[self.starts]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, queries: int | None, dropout: float) -> Tensor:
        """Attends group by group."""
        attended = []
        first_query = first_key = 0
        for rows, length in self.groups:
            asked = length if queries is None else queries
            own = query[0, first_query : (first_query := first_query + rows * asked)]
            seen = slice(first_key, first_key := first_key + rows * length)
            # Rows without tokens have no key to see, and nobody reads what they get.
            if length:
                side_by_side = (part.unflatten(0, (rows, -1)) for part in (own, key[0, seen], value[0, seen]))
                asking, keys, values = (part.transpose(1, 2) for part in side_by_side)
                found = attend(asking, keys, values, None, self.causal, dropout=dropout)
                own = found.transpose(1, 2).flatten(0, 1)
            attended.append(own.to(value.dtype))
        return (attended[0] if len(attended) == 1 else torch.cat(attended)).flatten(1)[None]
