"""Layouts of rows in a batch: padded side by side, packed end to end, or after the tokens in a cache."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional
from transformers.cache_utils import Cache

from recurra.models.cache import RecurraCache, SkippedEntries, check_length


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, *, dropout: float = 0.0
) -> Tensor:
    """Softmax attention, ``(batch, heads, queries, head_dim)`` in the type of ``value``.

    On a CPU half precision is computed in FP32: the fused kernel's backward pass in bf16 takes 3 to 6 times as long,
    and plain products in bf16 have oneDNN compile kernels for every length, which fill hundreds of MiB
    (`docs/decisions/0003-attention-in-fp32-on-a-cpu.md`).
    """
    on_cpu = query.device.type == "cpu"
    width = torch.promote_types(value.dtype, torch.float32) if on_cpu else value.dtype
    # Entering the context takes half as long as the attention of one token.
    autocasts = on_cpu and torch.is_autocast_enabled("cpu")
    with torch.autocast("cpu", enabled=False) if autocasts else nullcontext():
        attended = functional.scaled_dot_product_attention(
            query.to(width), key.to(width), value.to(width), attn_mask=mask, dropout_p=dropout, is_causal=causal
        )
    return attended.to(value.dtype)


def padding_mask(keep: Tensor | None) -> Tensor | None:
    """A padding mask ``(batch, tokens)`` as booleans; None for a batch without padding, if it is on a CPU.

    On an accelerator, looking at the mask would cost a synchronisation.
    """
    if keep is None or (keep.device.type == "cpu" and bool(keep.all())):
        return None
    return keep.bool()


def attention_mask(
    keep: Tensor | None, tokens: int, causal: bool, device: torch.device, *, past: int = 0
) -> tuple[Tensor | None, bool]:
    """A boolean mask broadcastable to ``(batch, heads, tokens, past + tokens)`` or None; whether the kernel hides keys.

    Without padding there is no mask, which is the kernels' fastest path, unless several tokens follow cached ones.
    """
    if keep is None and (not past or tokens == 1):
        return None, causal and not past
    mask = None if keep is None else keep[:, None, None, :]
    if causal:
        visible = torch.ones(tokens, past + tokens, dtype=torch.bool, device=device).tril(past)
        # The diagonal stays open so that a padded query has a key: a row without one would be NaN.
        mask = visible if mask is None else (mask & visible) | visible.triu(past)
    return mask, False


def positions_in_rows(
    table: Tensor | None, keep: Tensor | None, tokens: int, device: torch.device, *, past: int = 0
) -> Tensor | None:
    """Each token's position in its row, broadcastable to ``(batch, tokens)``; padding on the left is not counted.

    None with a rotary table: its positions are relative.
    """
    if table is not None:
        return None
    if keep is None:
        return torch.arange(past, past + tokens, device=device)
    return (keep.cumsum(1) - 1).clamp(min=0)[:, past:]


@dataclass(frozen=True)
class PaddedRows:
    """Rows side by side, padded to one length: everything that layers need besides the states.

    Attributes:
        rotary: Rotary table of the batch's positions, ``(tokens, head_dim / 2, 2)``; None if the model has none.
        mask: Boolean mask of keys or None, see `attention_mask`.
        real: ``(batch, tokens)``, true at real tokens; None if all are real.
        positions: See `positions_in_rows`; embeddings alone read them, so that `select` drops them.
    """

    rotary: Tensor | None
    causal: bool
    mask: Tensor | None
    real: Tensor | None
    positions: Tensor | None

    @classmethod
    def of(
        cls, table: Tensor | None, keep: Tensor | None, tokens: int, *, causal: bool, device: torch.device
    ) -> PaddedRows:
        """Makes the layout from the model's rotary table, if any, and a padding mask ``(batch, tokens)``."""
        real = padding_mask(keep)
        mask, causal = attention_mask(real, tokens, causal, device)
        positions = positions_in_rows(table, real, tokens, device)
        return cls(None if table is None else table[:tokens], causal, mask, real, positions)

    def convolve(self, states: Tensor, convolution: Any) -> Tensor:
        """Convolves ``(batch, tokens, channels)`` within each row; padding is read as zeros."""
        return convolution(states if self.real is None else states.masked_fill(~self.real[:, :, None], 0))

    def leading(self, states: Tensor, queries: int) -> Tensor:
        """The first ``queries`` positions of every row of ``(batch, tokens, hidden)``."""
        return states[:, :queries]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, queries: int | None, dropout: float) -> Tensor:
        """Attends within each row of ``(batch, tokens, heads, head_dim)``; queries may be `leading` tokens alone."""
        mask = self.mask if self.mask is None or self.mask.shape[-2] == 1 else self.mask[:, :, :queries]
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        return attend(query, key, value, mask, self.causal, dropout=dropout).transpose(1, 2).flatten(2)

    def select(self, rows: Tensor) -> Self:
        """The layout of some rows, given by their indices ``(rows kept,)``, in that order."""
        mask, real = (None if part is None else part[rows] for part in (self.mask, self.real))
        return replace(self, mask=mask, real=real, positions=None)

    def take(self, states: Tensor, rows: Tensor) -> Tensor:
        """The states of those rows, in the layout of `select`."""
        return states[rows]


@dataclass(frozen=True)
class PackedRows:
    """Rows end to end in a batch of one: no padding, no mask. Attention takes rows of equal length together."""

    rotary: Tensor | None
    causal: bool
    starts: Tensor
    groups: tuple[tuple[int, int], ...]
    positions: Tensor | None

    @classmethod
    def of(cls, table: Tensor | None, lengths: Tensor, *, causal: bool) -> PackedRows:
        """Makes the layout from the model's rotary table, if any, and the rows' lengths ``(rows,)``."""
        starts = lengths.cumsum(0) - lengths
        positions = torch.arange(int(lengths.sum()), device=lengths.device) - starts.repeat_interleave(lengths)
        # An empty last row has no first token, so any index will do.
        starts = starts.clamp(max=max(len(positions) - 1, 0))
        return cls(None if table is None else table[positions], causal, starts, _groups(lengths), positions)

    def convolve(self, states: Tensor, convolution: Any) -> Tensor:
        parts = states[0].split([rows * length for rows, length in self.groups])
        convolved = [
            convolution(part.unflatten(0, (rows, length))).flatten(0, 1) if length else part
            for part, (rows, length) in zip(parts, self.groups, strict=True)
        ]
        return torch.cat(convolved)[None]

    def leading(self, states: Tensor, queries: int) -> Tensor:
        if queries != 1:
            raise ValueError(f"packed rows give their first position only, not {queries}")
        return states[:, self.starts]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, queries: int | None, dropout: float) -> Tensor:
        attended = []
        first_query = first_key = 0
        for rows, length in self.groups:
            query_count = length if queries is None else queries
            states = query[0, first_query : (first_query := first_query + rows * query_count)]
            seen = slice(first_key, first_key := first_key + rows * length)
            # Empty rows have no keys, and their output is never read.
            if length:
                side_by_side = (part.unflatten(0, (rows, -1)) for part in (states, key[0, seen], value[0, seen]))
                queries_of_rows, keys, values = (part.transpose(1, 2) for part in side_by_side)
                row_outputs = attend(queries_of_rows, keys, values, None, self.causal, dropout=dropout)
                states = row_outputs.transpose(1, 2).flatten(0, 1)
            attended.append(states.to(value.dtype))
        return (attended[0] if len(attended) == 1 else torch.cat(attended)).flatten(1)[None]

    def select(self, rows: Tensor) -> Self:
        tokens, lengths = self._tokens_of(rows)
        rotary = None if self.rotary is None else self.rotary[tokens]
        starts = (lengths.cumsum(0) - lengths).clamp(max=max(len(tokens) - 1, 0))
        return replace(self, rotary=rotary, starts=starts, groups=_groups(lengths), positions=None)

    def take(self, states: Tensor, rows: Tensor) -> Tensor:
        return states[:, self._tokens_of(rows)[0]]

    def _tokens_of(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Indices of the tokens of some rows, and the lengths of these rows."""
        lengths = torch.tensor([length for count, length in self.groups for _ in range(count)], device=rows.device)
        row_lengths, starts = lengths[rows], (lengths.cumsum(0) - lengths)[rows]
        within = torch.arange(int(row_lengths.sum()), device=rows.device)
        within = within - (row_lengths.cumsum(0) - row_lengths).repeat_interleave(row_lengths)
        return starts.repeat_interleave(row_lengths) + within, row_lengths


def _groups(lengths: Tensor) -> tuple[tuple[int, int], ...]:
    """Number and length of neighbouring rows of equal length."""
    return tuple((len(list(same)), length) for length, same in itertools.groupby(lengths.tolist()))


@dataclass(frozen=True)
class CachedRows(PaddedRows):
    """Padded rows whose earlier tokens are in a cache; padding may be on the left.

    Attention and convolutions are numbered in the order of a forward pass, so that a shared layer finds what it kept in
    the same recurrence of the previous pass. One layout serves one pass.
    """

    cache: Cache
    past: int
    tokens: int
    attentions: Iterator[int] = field(default_factory=itertools.count)
    convolutions: Iterator[int] = field(default_factory=itertools.count)
    rows: Tensor | None = None
    skipped: list[SkippedEntries] = field(default_factory=list)

    @classmethod
    def after(
        cls, cache: Cache, table: Tensor | None, keep: Tensor | None, tokens: int, *, device: torch.device
    ) -> CachedRows:
        """Makes the layout of ``tokens`` tokens after those in the cache; a mask ``(batch, all tokens)`` is of both."""
        past = cache.get_seq_length()
        rotary = None if table is None else table[past : past + tokens]
        keep = padding_mask(keep)
        mask, causal = attention_mask(keep, tokens, True, device, past=past)
        real = None if keep is None else keep[:, past:]
        positions = positions_in_rows(table, keep, tokens, device, past=past)
        return cls(rotary, causal, mask, real, positions, cache, past, tokens)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, queries: int | None, dropout: float) -> Tensor:  # noqa: ARG002
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        number = next(self.attentions)
        if isinstance(self.cache, RecurraCache):
            key, value = self.cache.update_attention(
                number, key, value, self.past, rows=self.rows, skipped=self.skipped
            )
        else:
            check_length(number, self.cache.get_seq_length(number), self.past)
            key, value = self.cache.update(key, value, number)
        return attend(query, key, value, self.mask, self.causal, dropout=dropout).transpose(1, 2).flatten(2)

    def convolve(self, states: Tensor, convolution: Any) -> Tensor:
        assert isinstance(self.cache, RecurraCache)
        inputs = states if self.real is None else states.masked_fill(~self.real[:, :, None], 0)
        window = self.cache.update_convolution(next(self.convolutions), inputs, convolution.span, self.rows)
        return convolution.last(window) if self.tokens == 1 else convolution(window)[:, convolution.span :]

    def select(self, rows: Tensor) -> Self:
        assert isinstance(self.cache, RecurraCache) and self.tokens == 1
        return replace(super().select(rows), rows=rows if self.rows is None else self.rows[rows])

    def note_skipped(self, rows: Tensor, done: int, keys: Tensor, values: Tensor) -> None:
        """Notes the first core layer's keys and values of rows that stop, for the recurrences that they skip."""
        batch_rows = rows if self.rows is None else self.rows[rows]
        self.skipped.append(SkippedEntries(batch_rows, done, keys.transpose(1, 2), values.transpose(1, 2)))

    def skip_recurrences(self, count: int) -> None:
        """Fills the cache for the next ``count`` recurrences, since no row computes them."""
        assert isinstance(self.cache, RecurraCache) and self.tokens == 1
        self.cache.fill_recurrences(count, next(self.attentions), next(self.convolutions), self.past, self.skipped)


RowLayout = PaddedRows | PackedRows
