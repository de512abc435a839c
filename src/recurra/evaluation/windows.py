"""Where a text is cut so that each of its tokens is scored exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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


def cut_windows(lengths: Sequence[int], context: int, stride: int | None = None) -> Iterator[Window]:
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


def cut_full_windows(lengths: Sequence[int], context: int) -> Iterator[Window]:
    """Yields blocks over texts whose last one reaches back to a whole context, as lm-evaluation-harness cuts them.

    Args:
        lengths: Tokens of each text.
        context: Tokens of a window.

    Raises:
        ConfigurationError: For a context that cannot be.
    """
    for window in cut_windows(lengths, context):
        yield Window(window.text, max(0, window.end - context), window.scored, window.end)
