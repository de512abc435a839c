"""Perplexity by token and by word, and bits per byte: one sum of nats, three things to divide it by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from recurra.data.language.encoding import EncodedText
from recurra.evaluation.positions import PositionLoss, loss_by_position, token_positions
from recurra.evaluation.scoring import BATCH_POSITIONS, score_texts


@dataclass(frozen=True)
class Perplexity:
    """How well one head of a model predicts a split.

    Attributes:
        nats: Cross-entropy of all tokens together.
        tokens: Tokens, each scored once.
        words: Words, one end-of-line a line included: the unit of published WikiText figures.
        num_bytes: Bytes in UTF-8, line ends included.
        positions: Loss by position in a window, if it was asked for.
    """

    nats: float
    tokens: int
    words: int
    num_bytes: int
    positions: PositionLoss | None = None

    @property
    def loss(self) -> float:
        """Nats a token."""
        return self.nats / self.tokens

    @property
    def token_perplexity(self) -> float:
        """``exp(nats / tokens)``; comparable for one tokenizer only."""
        return _exp(self.nats / self.tokens)

    @property
    def word_perplexity(self) -> float:
        """``exp(nats / words)``; comparable between tokenizers that lose nothing."""
        return _exp(self.nats / self.words)

    @property
    def bits_per_byte(self) -> float:
        """``nats / ln 2 / bytes``; comparable on the same text."""
        return self.nats / math.log(2) / self.num_bytes


def evaluate_perplexity(
    model: Any,
    encoded: EncodedText,
    *,
    context: int,
    stride: int | None = None,
    packed: bool = True,
    batch_positions: int = BATCH_POSITIONS,
    precision: str = "fp32",
    exits: bool = False,
    by_position: bool = False,
) -> dict[str, Perplexity]:
    """Evaluates any causal language model on a split, every token once, from end-of-text on.

    Args:
        model: Called like a causal language model of transformers.
        encoded: The split, from `recurra.data.language.encoding.encode_running_text`.
        context: Tokens that are read at once.
        stride: Tokens from one window to the next; None gives blocks that do not overlap.
        packed: Whether a text may read the texts before it; if not, every text begins anew (mode ``lines``).
        batch_positions: Positions whose logits are held at once for each head.
        precision: Precision of the matrix products.
        exits: Also evaluate the heads on the way, if the model's output has ``exit_logits``.
        by_position: Also average the loss by position in a window.

    Returns:
        The figures by head, ``final`` among them.

    Raises:
        ConfigurationError: See `recurra.evaluation.scoring.score_texts`.
        RunError: If the model gives what is not a number.
    """
    texts = [encoded.joined] if packed else [encoded.text(index) for index in range(len(encoded))]
    scores = score_texts(
        model,
        texts,
        first_read=encoded.end_of_text,
        context=context,
        stride=stride,
        batch_positions=batch_positions,
        precision=precision,
        exits=exits,
    )
    places = token_positions([len(text) for text in texts], context, stride) if by_position else None
    return {
        head: Perplexity(
            math.fsum(nats.tolist()),
            len(nats),
            encoded.words,
            encoded.num_bytes,
            None if places is None else loss_by_position(nats, places, context),
        )
        for head, nats in scores.items()
    }


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
