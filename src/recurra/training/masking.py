"""Tokens that read as ``[MASK]`` while training: token dropout, and what masked-token prediction has to guess.

Token dropout hides words from the classifier, so that it cannot rest on a few of them (Iyyer et al. 2015, "Deep
Unordered Composition Rivals Syntactic Methods", section 2.2, drop them from an average; a Transformer keeps their
place). What it learns about ``[MASK]`` is what to make of a word that says nothing. So a word that the training split
lacks, whose embedding no step has touched, is better read as ``[MASK]`` than as the noise it was initialised with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recurra.core.errors import ConfigurationError
from recurra.data.encoding import EncodedSplit

# Of the tokens to guess, BERT leaves a tenth as they are and makes a tenth random (Devlin et al. 2019, section 3.1).
_GUESSED_UNCHANGED = 0.1
_GUESSED_RANDOM = 0.1
NOT_GUESSED = -100


@dataclass(frozen=True)
class MaskTokens:
    """Which token hides others, and which are never hidden.

    Attributes:
        mask: Id of ``[MASK]``.
        kept: Ids of special tokens and padding.
    """

    mask: int
    kept: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Any) -> MaskTokens:
        """Those of a tokenizer; without a ``[MASK]``, its token for unknown words hides.

        Raises:
            ConfigurationError: If it has neither.
        """
        mask = tokenizer.mask_token_id if tokenizer.mask_token_id is not None else tokenizer.unk_token_id
        if mask is None:
            raise ConfigurationError(
                "the tokenizer has neither [MASK] nor [UNK], and token_dropout and pretraining_epochs hide tokens "
                "behind one of them; take another tokenizer, or set both to 0"
            )
        return cls(int(mask), tuple(sorted({int(mask), *map(int, tokenizer.all_special_ids)})))

    def may_be_hidden(self, input_ids: Tensor) -> Tensor:
        """Where ``(batch, tokens)`` ids are words."""
        return torch.isin(input_ids, torch.tensor(self.kept, device=input_ids.device), invert=True)


def drop_tokens(input_ids: Tensor, share: float, tokens: MaskTokens) -> Tensor:
    """Hides each word with probability ``share``, with torch's default generator.

    Args:
        input_ids: ``(batch, tokens)``.
        share: Probability.
        tokens: What hides, and what is never hidden.
    """
    hidden = torch.rand(input_ids.shape, device=input_ids.device) < share
    return input_ids.masked_fill(hidden & tokens.may_be_hidden(input_ids), tokens.mask)


def tokens_to_guess(input_ids: Tensor, share: float, tokens: MaskTokens, vocab_size: int) -> tuple[Tensor, Tensor]:
    """Chooses words to guess, with torch's default generator.

    Args:
        input_ids: ``(batch, tokens)``.
        share: Probability with which a word is chosen.
        tokens: What hides, and what is never hidden.
        vocab_size: Random tokens are below it.

    Returns:
        What the model sees, and what it has to say: the token where one was chosen, `NOT_GUESSED` elsewhere.
    """
    shape, device = input_ids.shape, input_ids.device
    chosen = (torch.rand(shape, device=device) < share) & tokens.may_be_hidden(input_ids)
    fate = torch.rand(shape, device=device)
    anything = torch.randint(vocab_size, shape, device=device)
    seen = input_ids.masked_fill(chosen & (fate >= _GUESSED_UNCHANGED + _GUESSED_RANDOM), tokens.mask)
    seen = torch.where(chosen & (fate < _GUESSED_RANDOM), anything, seen)
    return seen, input_ids.masked_fill(~chosen, NOT_GUESSED)


def unseen_tokens(trained: Sequence[EncodedSplit], vocab_size: int, kept: Sequence[int]) -> np.ndarray[Any, Any]:
    """Ids below ``vocab_size`` that no row of ``trained`` has, but for ``kept``, in rising order."""
    known = np.unique(np.concatenate([*(split.input_ids for split in trained), np.asarray(kept, dtype=np.int64)]))
    return np.setdiff1d(np.arange(vocab_size), known)


def hide_unseen(split: EncodedSplit, unseen: np.ndarray[Any, Any], mask: int) -> EncodedSplit:
    """The split with every id of ``unseen`` read as ``mask``."""
    hidden = np.isin(split.input_ids, unseen)
    return replace(split, input_ids=np.where(hidden, mask, split.input_ids).astype(np.int32))


def read_unseen_as_mask(embedding: nn.Embedding, unseen: np.ndarray[Any, Any], mask: int) -> None:
    """Gives every token of ``unseen`` the embedding of ``[MASK]``."""
    with torch.no_grad():
        embedding.weight[torch.from_numpy(unseen)] = embedding.weight[mask].clone()
