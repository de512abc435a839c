"""What a layer asks of how the rows of a batch lie in memory.

Everything but attention, convolutions, positions and the choice of leading ones works on tokens one by one, so these
are all that a layer asks of a layout.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor


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
class RowLayout(ABC):
    """What every layer needs besides the states.

    Attributes:
        rotary: Rotary table of the batch's positions, ``(tokens, head_dim / 2, 2)``; none if positions are learned.
        causal: Whether later keys are hidden and no mask says so already.
    """

    rotary: Tensor | None
    causal: bool

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

    def drop(self, states: Tensor, first: Tensor, dropped: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Self]:  # noqa: ARG002
        """Takes rows out that are not computed any further.

        Args:
            states: ``(batch, tokens, hidden)``.
            first: Of the same rows.
            dropped: Rows that stop, by their numbers in this layout.
            kept: Rows that remain.

        Returns:
            Both of the rows that remain, and their layout.
        """
        return self.take(states, kept), self.take(first, kept), self.select(kept)

    @property
    def has_cache(self) -> bool:
        """Whether later tokens will read what is kept of these."""
        return False

    def note_skipped(self, rows: Tensor, done: int, keys: Tensor, values: Tensor) -> None:  # noqa: B027 - most have no cache
        """Notes what is put into the cache for rows that stop, in the recurrences that they skip.

        Args:
            rows: Their places in this layout.
            done: Recurrences that they took.
            keys: ``(rows, recurrences skipped, heads, head_dim)``, for the core's first layer.
            values: The same.
        """

    def skip_recurrences(self, count: int) -> None:  # noqa: B027
        """Fills the cache for the next ``count`` recurrences, which no row computes."""
