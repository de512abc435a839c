"""Whole rows read as an inexact cache would have them: to measure what it costs without decoding token by token."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from recurra.models.cache import check_serving
from recurra.models.configuration import RecurraConfig
from recurra.models.rows.layout import Convolution
from recurra.models.rows.padded import PaddedRows


@dataclass(frozen=True)
class SimulatedRows(PaddedRows):
    """Padded rows in which some keys, values and states are another recurrence's.

    What the cache would hold for tokens that have stopped (`recurra.models.cache.RecurraCache`), and what a shared one
    would read, is put in place of what was computed. A token's decision rests on earlier tokens and on recurrences that
    were computed for it, so one pass over all tokens gives what decoding them one by one gives. Here a token is what
    the loop over the recurrences calls a row: it is dropped in its place, and its state stays. One layout serves one
    pass, with the layouts that `drop` makes of it.

    Attributes:
        config: The model.
        remaining: Places of the tokens that have not stopped in ``batch * tokens``, padding left out.
        stopped: ``(batch, tokens)``, true at tokens that have stopped.
        serving: Recurrence whose keys and values serve the later ones; none means each its own.
        exact_states: Whether tokens that have stopped go on all the same, so that nothing has to be put in.
        pairs: Keys and values of each attention so far.
        inputs: What each convolution has read so far.
        attentions: Numbers of the attentions still to come.
        convolutions: Numbers of the convolutions still to come.
    """

    config: RecurraConfig
    remaining: Tensor
    stopped: Tensor
    serving: int | None = None
    exact_states: bool = False
    pairs: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    attentions: Iterator[int] = field(default_factory=itertools.count)
    convolutions: Iterator[int] = field(default_factory=itertools.count)

    @classmethod
    def over(
        cls,
        config: RecurraConfig,
        table: Tensor | None,
        ids: Tensor,
        keep: Tensor | None,
        *,
        serving: int | None = None,
        exact_states: bool = False,
    ) -> SimulatedRows:
        """Makes the layout.

        Args:
            config: The model, causal.
            table: Its rotary table, if any.
            ids: ``(batch, tokens)``.
            keep: ``(batch, tokens)``, non-zero at real tokens; none means no padding.
            serving: See the class.
            exact_states: See the class.
        """
        check_serving(config, serving)
        plain = PaddedRows.of(table, keep, ids.shape[1], causal=True, device=ids.device)
        real = torch.ones_like(ids) if keep is None else keep
        return cls(
            **vars(plain),
            config=config,
            remaining=real.flatten().nonzero()[:, 0],
            stopped=torch.zeros_like(ids, dtype=torch.bool),
            serving=serving,
            exact_states=exact_states,
        )

    def attend(self, query: Tensor, key: Tensor, value: Tensor, queries: int | None, dropout: float) -> Tensor:
        """Attends to what would be in the cache."""
        number, config = next(self.attentions), self.config
        recurrence, layer = divmod(number - config.num_prelude_layers, config.num_core_layers)
        if self.serving is not None and self.serving <= recurrence < config.num_recurrences:
            key, value = self.pairs[number - config.num_core_layers]
        elif layer > 0 and self.stopped.any():
            computed = ~self.stopped[:, :, None, None]
            previous = self.pairs[number - config.num_core_layers]
            key, value = key.where(computed, previous[0]), value.where(computed, previous[1])
        self.pairs.append((key, value))
        return super().attend(query, key, value, queries, dropout)

    def convolve(self, states: Tensor, convolution: Convolution) -> Tensor:
        """Convolves what would have been kept."""
        number = next(self.convolutions)
        own = states
        if self.stopped.any():
            previous = self.inputs[number - self.config.num_core_layers * self.config.num_cycles]
            own = states.where(~self.stopped[:, :, None], previous)
        self.inputs.append(own)
        return super().convolve(own, convolution)

    def merge(self, updated: Tensor, before: Tensor) -> Tensor:
        """Leaves tokens that have stopped as they are."""
        return updated.where(~self.stopped[:, :, None], before)

    def drop(self, states: Tensor, first: Tensor, dropped: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Self]:
        """Marks tokens, by their numbers among those in `remaining`; none is moved."""
        stopped = self.stopped
        if not self.exact_states:
            stopped = stopped.flatten().index_fill(0, self.remaining[dropped], value=True).view_as(stopped)
        return states, first, replace(self, stopped=stopped, remaining=self.remaining[kept])
