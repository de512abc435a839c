"""Loss by position in windows of a text: what a token costs, depending on how many of its window are read before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recurra.core.errors import ConfigurationError


@dataclass(frozen=True)
class Window:
    """A piece of a text, with the tokens that are scored in it.

    Attributes:
        text: Index of the text.
        start: First token of the piece. What is read is one token before it up to the last but one: each token of the
            piece is predicted.
        scored: First token that no window before has scored.
        end: One past the last token.
    """

    text: int
    start: int
    scored: int
    end: int

    @property
    def tokens(self) -> int:
        """Tokens that are read."""
        return self.end - self.start


def scoring_windows(lengths: Sequence[int], context: int, stride: int | None = None) -> Iterator[Window]:
    """Yields windows over texts; a token is scored in the first window that holds it, where most is before it.

    Args:
        lengths: Tokens of each text.
        context: Tokens of a window.
        stride: Tokens from one window to the next; ``context`` (the default) gives blocks that do not overlap.

    Raises:
        ConfigurationError: For a context or stride that cannot be.
    """
    if context < 1:
        raise ConfigurationError(f"context {context} is impossible; allowed: from 1 token")
    step = context if stride is None else stride
    if not 1 <= step <= context:
        raise ConfigurationError(f"stride {step} is impossible; allowed: 1 to the context, {context}")
    for text, length in enumerate(lengths):
        start = scored = 0
        while scored < length:
            end = min(start + context, length)
            yield Window(text, start, scored, end)
            start, scored = start + step, end


@dataclass(frozen=True)
class PositionLoss:
    """Mean loss at each position of a window.

    An honest model's falls with the position, because it has more to read. A model that reads ahead is lost where
    nothing is ahead: at the last one, whose token lies behind the window.

    Attributes:
        loss: Nats a token; none at a position where no token is scored, as with a stride.
        tokens: Tokens that were scored there.
    """

    loss: tuple[float | None, ...]
    tokens: tuple[int, ...]

    def mean(self, positions: slice) -> float | None:
        """Nats a token over some positions, each token counted once."""
        counted = [
            (nats, count) for nats, count in zip(self.loss[positions], self.tokens[positions], strict=True) if count
        ]
        total = sum(count for _, count in counted)
        return sum((nats or 0.0) * count for nats, count in counted) / total if total else None

    def plain(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return {"loss": list(self.loss), "tokens": list(self.tokens)}


def token_positions(lengths: Sequence[int], context: int, stride: int | None = None) -> npt.NDArray[np.int64]:
    """Returns the position at which each token is predicted, shape ``(tokens of all texts,)``.

    Position p is that of a token before which p + 1 tokens are read: the first of a window reads the one before it.

    Args:
        lengths: Tokens of each text.
        context: As in `recurra.evaluation.positions.scoring_windows`, like ``stride``.
        stride: Tokens from one window to the next; none gives blocks.

    Raises:
        ConfigurationError: For a context or stride that cannot be.
    """
    pieces = [
        np.arange(window.scored - window.start, window.end - window.start)
        for window in scoring_windows(lengths, context, stride)
    ]
    return np.concatenate([np.zeros(0, dtype=np.int64), *pieces])


def loss_by_position(nats: npt.NDArray[np.float64], positions: npt.NDArray[np.int64], context: int) -> PositionLoss:
    """Averages the nats of tokens by the position that each was predicted at.

    Args:
        nats: From `recurra.evaluation.scoring.score_texts`, ``(tokens,)``.
        positions: From `token_positions`, ``(tokens,)``.
        context: Positions of a window.
    """
    tokens = np.bincount(positions, minlength=context)
    sums = np.bincount(positions, weights=nats, minlength=context)
    return PositionLoss(
        tuple(float(total / count) if count else None for total, count in zip(sums, tokens, strict=True)),
        tuple(map(int, tokens)),
    )
