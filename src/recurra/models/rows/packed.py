"""Packed rows: the layout of inference on a CPU (`docs/decisions/0009-packed-rows.md`)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from recurra.models.rows.layout import Convolution, RowLayout
from recurra.models.rows.padded import attend


@dataclass(frozen=True)
class PackedRows(RowLayout):
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
    def of(cls, table: Tensor | None, lengths: Tensor, *, causal: bool, device: torch.device) -> PackedRows:
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
                queries_of_rows, keys, values = (part.transpose(1, 2) for part in side_by_side)
                found = attend(queries_of_rows, keys, values, None, self.causal, dropout=dropout)
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
