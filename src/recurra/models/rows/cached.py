"""Rows that go on where a cache left off."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from recurra.models.cache import RecurraCache, SkippedEntries, check_length
from recurra.models.rows.layout import Convolution
from recurra.models.rows.padded import PaddedRows, attend, attention_mask


@dataclass(frozen=True)
class CachedRows(PaddedRows):
    """Padded rows whose earlier tokens are in a cache; padding may stand on the left.

    Attention and convolutions are numbered in the order in which a forward pass comes by, so that a shared layer finds
    what it kept in the same recurrence of the pass before. One layout serves one pass.

    Attributes:
        cache: Where keys, values and convolutions' histories are kept.
        past: Tokens in it, padding included.
        numbers: Each token's number in its row without padding, broadcastable to ``(batch, tokens)``.
        attentions: Numbers of the attentions still to come.
        convolutions: Numbers of the convolutions still to come.
        rows: Numbers in the cache of the rows that are still computed; none means all.
        skipped: What is put into the cache for rows that have stopped.
    """

    cache: Cache
    past: int
    numbers: Tensor
    attentions: Iterator[int] = field(default_factory=itertools.count)
    convolutions: Iterator[int] = field(default_factory=itertools.count)
    rows: Tensor | None = None
    skipped: list[SkippedEntries] = field(default_factory=list)

    @classmethod
    def after(
        cls, cache: Cache, table: Tensor | None, keep: Tensor | None, tokens: int, *, device: torch.device
    ) -> CachedRows:
        """Makes the layout of ``tokens`` tokens behind those in the cache.

        Args:
            cache: A `RecurraCache`; one of transformers' own does for a model without convolutions.
            table: The model's rotary table, if any.
            keep: ``(batch, cached tokens + tokens)``, non-zero at real tokens; none means no padding.
            tokens: Tokens a row in this pass.
            device: Where the mask lives.
        """
        past = cache.get_seq_length()
        rotary = None if table is None else table[past : past + tokens]
        # Also decides whether there is any padding.
        mask, causal = attention_mask(keep, past + tokens, causal=True, device=device)
        if keep is None or mask is None:
            real, numbers = None, torch.arange(past, past + tokens, device=device)
            if past:
                mask, causal = (None if tokens == 1 else _visible(past, tokens, device)), False
        else:
            real, mask = keep.bool()[:, past:], mask[:, :, past:]
            numbers = (keep.bool().cumsum(1) - 1).clamp(min=0)[:, past:]
        return cls(rotary, causal, mask, real, tokens, cache, past, numbers)

    def positions(self, device: torch.device) -> Tensor:  # noqa: ARG002 - a layout's
        """Returns the numbers."""
        return self.numbers

    def attend(self, query: Tensor, key: Tensor, value: Tensor, queries: int | None, dropout: float) -> Tensor:  # noqa: ARG002
        """Attends to what is in the cache and to the new tokens, and keeps the new keys and values."""
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

    def convolve(self, states: Tensor, convolution: Convolution) -> Tensor:
        """Convolves behind the states that the convolution read last, and keeps those that it reads next."""
        assert isinstance(self.cache, RecurraCache)
        own = states if self.real is None else states.masked_fill(~self.real[:, :, None], 0)
        window = self.cache.update_convolution(next(self.convolutions), own, convolution.span, self.rows)
        return convolution.last(window) if self.tokens == 1 else convolution(window)[:, convolution.span :]

    def select(self, rows: Tensor) -> Self:
        """Returns the layout of some rows; what the others would have kept is filled in."""
        assert isinstance(self.cache, RecurraCache) and self.tokens == 1
        chosen = super().select(rows)
        numbers = self.numbers[rows] if self.numbers.dim() > 1 else self.numbers
        return replace(chosen, numbers=numbers, rows=rows if self.rows is None else self.rows[rows])

    @property
    def has_cache(self) -> bool:
        """It has."""
        return True

    def note_skipped(self, rows: Tensor, done: int, keys: Tensor, values: Tensor) -> None:
        """Notes it until the recurrences come by."""
        numbers = rows if self.rows is None else self.rows[rows]
        self.skipped.append(SkippedEntries(numbers, done, keys.transpose(1, 2), values.transpose(1, 2)))

    def skip_recurrences(self, count: int) -> None:
        """Fills in what all rows leave out."""
        assert isinstance(self.cache, RecurraCache) and self.tokens == 1
        self.cache.fill_recurrences(count, next(self.attentions), next(self.convolutions), self.past, self.skipped)


def _visible(past: int, tokens: int, device: torch.device) -> Tensor:
    """Which of ``past + tokens`` keys each new token sees, ``(tokens, past + tokens)``."""
    return torch.ones(tokens, past + tokens, dtype=torch.bool, device=device).tril(past)
