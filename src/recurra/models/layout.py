"""How the rows of a batch lie in memory: padded side by side, or packed end to end.

Everything but attention, convolutions, positions and the choice of leading ones works on tokens one by one, so these
are all that a layer asks of a layout.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Tensor

from recurra.models.attention import attend, attention_mask


class Convolution(Protocol):
    """What a layout must know of a convolution over tokens (`recurra.models.convolution.DepthwiseConvolution`)."""

    @property
    def span(self) -> int:
        """Earlier positions that it reads."""

    def __call__(self, states: Tensor, /) -> Tensor:
        """Maps ``(rows, tokens, channels)`` to the same."""

    def last(self, window: Tensor, /) -> Tensor:
        """Maps ``(rows, span + 1, channels)`` to the last position's ``(rows, 1, channels)``."""


@dataclass(frozen=True)
class Layout(ABC):
    """What every layer needs besides the states.

    Attributes:
        rotary: Rotary table of the batch's positions, ``(tokens, head_dim / 2, 2)``; none if positions are learned.
        causal: Whether later keys are hidden and no mask says so already.
    """

    rotary: Tensor | None
    causal: bool

    @property
    def keeps(self) -> bool:
        """Whether later tokens will read what these leave behind."""
        return False

    @abstractmethod
    def positions(self, device: torch.device) -> Tensor:
        """Returns each token's number in its row, broadcastable to ``(batch, tokens)``."""

    @abstractmethod
    def convolve(self, states: Tensor, convolution: Convolution) -> Tensor:
        """Convolves ``(batch, tokens, channels)`` within each row; zeros are read in place of padding."""

    @abstractmethod
    def leading(self, states: Tensor, queries: int) -> Tensor:
        """Returns the first ``queries`` positions of every row of ``(batch, tokens, hidden)``."""

    @abstractmethod
    def leading_rotary(self, queries: int) -> Tensor | None:
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

    @abstractmethod
    def select(self, rows: Tensor) -> Self:
        """Returns the layout of some of the rows, by their numbers ``(rows kept,)``, in that order."""

    @abstractmethod
    def take(self, states: Tensor, rows: Tensor) -> Tensor:
        """Returns the states of those rows, as `select`'s layout has them."""

    def owe(self, rows: Tensor, done: int, keys: Tensor, values: Tensor) -> None:  # noqa: B027 - most layouts keep nothing
        """Is told what rows that leave are given in the recurrences that they skip; asked for if `keeps` is true.

        Args:
            rows: Their numbers in this layout.
            done: Recurrences that they took.
            keys: ``(rows, recurrences skipped, heads, head_dim)``, for the core's first layer.
            values: The same.
        """

    def skip(self, recurrences: int) -> None:  # noqa: B027
        """Is told that no row computes the next ``recurrences`` recurrences."""


@dataclass(frozen=True)
class Padded(Layout):
    """Rows side by side, padded to one length.

    Attributes:
        mask: Boolean mask of keys or none, see `recurra.models.attention.attention_mask`.
        real: ``(batch, tokens)``, true at real tokens; none if all are.
        tokens: Length of the batch.
    """

    mask: Tensor | None
    real: Tensor | None
    tokens: int

    @classmethod
    def of(
        cls, table: Tensor | None, keep: Tensor | None, tokens: int, *, causal: bool, device: torch.device
    ) -> Padded:
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


@dataclass(frozen=True)
class Packed(Layout):
    """Rows end to end in a batch of one: no padding, no mask. Attention takes rows of equal length together.

    Attributes:
        starts: First token of every row, ``(rows,)``.
        groups: Number and length of neighbouring rows of equal length.
        numbers: Each token's number in its row, ``(tokens,)``.
    """

    starts: Tensor
    groups: tuple[tuple[int, int], ...]
    numbers: Tensor

    @classmethod
    def of(cls, table: Tensor | None, lengths: Tensor, *, causal: bool, device: torch.device) -> Packed:
        """Makes the layout from the model's rotary table, if any, and the rows' lengths ``(rows,)``."""
        starts = lengths.cumsum(0) - lengths
        numbers = torch.arange(int(lengths.sum()), device=device) - starts.repeat_interleave(lengths)
        # A row without tokens at the end has no first one; any will do.
        starts = starts.clamp(max=max(len(numbers) - 1, 0))
        return cls(None if table is None else table[numbers], causal, starts, _groups(lengths), numbers)

    def positions(self, device: torch.device) -> Tensor:  # noqa: ARG002 - a layout's
        """Returns the numbers."""
        return self.numbers

    def convolve(self, states: Tensor, convolution: Convolution) -> Tensor:
        """Convolves group by group."""
        parts = states[0].split([rows * length for rows, length in self.groups])
        convolved = [
            convolution(part.unflatten(0, (rows, length))).flatten(0, 1) if length else part
            for part, (rows, length) in zip(parts, self.groups, strict=True)
        ]
        return torch.cat(convolved)[None]

    def leading(self, states: Tensor, queries: int) -> Tensor:
        """Returns the first position of every row, ``(1, rows, hidden)``."""
        if queries != 1:
            raise ValueError(f"packed rows give their first position only, not {queries}")
        return states[:, self.starts]

    def leading_rotary(self, queries: int) -> Tensor | None:  # noqa: ARG002 - a layout's
        """Returns the table at the first position of every row."""
        return None if self.rotary is None else self.rotary[self.starts]

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

    def select(self, rows: Tensor) -> Self:
        """Returns the layout of some rows, again end to end."""
        tokens, lengths = self._tokens_of(rows)
        rotary = None if self.rotary is None else self.rotary[tokens]
        numbers = self.numbers[tokens]
        starts = (lengths.cumsum(0) - lengths).clamp(max=max(len(numbers) - 1, 0))
        return replace(self, rotary=rotary, starts=starts, groups=_groups(lengths), numbers=numbers)

    def take(self, states: Tensor, rows: Tensor) -> Tensor:
        """Returns the tokens of some rows."""
        return states[:, self._tokens_of(rows)[0]]

    def _tokens_of(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Places of the tokens of some rows, and those rows' lengths."""
        every = [length for count, length in self.groups for _ in range(count)]
        lengths = torch.tensor(every, device=rows.device)
        kept, before = lengths[rows], (lengths.cumsum(0) - lengths)[rows]
        within = torch.arange(int(kept.sum()), device=rows.device)
        within = within - (kept.cumsum(0) - kept).repeat_interleave(kept)
        return before.repeat_interleave(kept) + within, kept


def _groups(lengths: Tensor) -> tuple[tuple[int, int], ...]:
    """Number and length of neighbouring rows of equal length."""
    return tuple((len(list(same)), length) for length, same in itertools.groupby(lengths.tolist()))
