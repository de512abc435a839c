"""Whole rows read as an inexact cache would have them: to measure what it costs without decoding token by token."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from recurra.models.cache import check_serving
from recurra.models.configuration import RecurraConfig
from recurra.models.layout import Convolution, Padded


@dataclass(frozen=True)
class Borrowed(Padded):
    """Padded rows in which some keys, values and states are another recurrence's.

    What tokens that have left would be given in a cache (`recurra.models.cache.RecurraCache`), and what a shared one
    would read, is put in place of what was computed. A token's decision rests on earlier tokens and on recurrences that
    it has taken, so one pass over all tokens gives what decoding them one by one gives. One layout serves one pass.

    Attributes:
        config: The model.
        left: ``(batch, tokens)``, true at tokens that have left; whoever runs the core changes it in place.
        serving: Recurrence whose keys and values serve the later ones; none means each its own.
        pairs: Keys and values of each attention so far.
        inputs: What each convolution has read so far.
        attentions: Numbers of the attentions still to come.
        convolutions: Numbers of the convolutions still to come.
    """

    config: RecurraConfig
    left: Tensor
    serving: int | None = None
    pairs: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    attentions: Iterator[int] = field(default_factory=itertools.count)
    convolutions: Iterator[int] = field(default_factory=itertools.count)

    @classmethod
    def over(
        cls, config: RecurraConfig, table: Tensor | None, ids: Tensor, keep: Tensor | None, serving: int | None = None
    ) -> Borrowed:
        """Makes the layout.

        Args:
            config: The model, causal.
            table: Its rotary table, if any.
            ids: ``(batch, tokens)``.
            keep: ``(batch, tokens)``, non-zero at real tokens; none means no padding.
            serving: See the class.
        """
        check_serving(config, serving)
        plain = Padded.of(table, keep, ids.shape[1], causal=True, device=ids.device)
        return cls(**vars(plain), config=config, left=torch.zeros_like(ids, dtype=torch.bool), serving=serving)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, queries: int | None, dropout: float) -> Tensor:
        """Attends to what would be in the cache."""
        number, config = next(self.attentions), self.config
        recurrence, layer = divmod(number - config.num_prelude_layers, config.num_core_layers)
        if self.serving is not None and self.serving <= recurrence < config.num_recurrences:
            key, value = self.pairs[number - config.num_core_layers]
        elif layer > 0 and self.left.any():
            given = self.left[:, :, None, None]
            lent = self.pairs[number - config.num_core_layers]
            key, value = key.where(~given, lent[0]), value.where(~given, lent[1])
        self.pairs.append((key, value))
        return super().attend(query, key, value, queries, dropout)

    def convolve(self, states: Tensor, convolution: Convolution) -> Tensor:
        """Convolves what would have been kept."""
        number = next(self.convolutions)
        own = states
        if self.left.any():
            lent = self.inputs[number - self.config.num_core_layers * self.config.num_cycles]
            own = states.where(~self.left[:, :, None], lent)
        self.inputs.append(own)
        return super().convolve(own, convolution)
