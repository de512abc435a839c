"""Which rows of the token table are trained, and which tokens training hides."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from recurra.core.errors import ConfigurationError
from recurra.data.encoding import EncodedSplit


@dataclass(frozen=True)
class MaskTokens:
    """Which token hides others, and which are never hidden."""

    mask: int
    exempt: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Any) -> MaskTokens:
        """The mask and special tokens of a tokenizer; without ``[MASK]``, the token for unknown words replaces it."""
        mask = tokenizer.mask_token_id if tokenizer.mask_token_id is not None else tokenizer.unk_token_id
        if mask is None:
            raise ConfigurationError(
                "the tokenizer has neither [MASK] nor [UNK], and token_dropout hides tokens behind one of them; take "
                "another tokenizer, or set it to 0"
            )
        return cls(int(mask), tuple(sorted({int(mask), *map(int, tokenizer.all_special_ids)})))


def drop_tokens(input_ids: Tensor, share: float, tokens: MaskTokens) -> Tensor:
    """Hides each word with probability ``share``, with torch's default generator."""
    hidden = torch.rand(input_ids.shape, device=input_ids.device) < share
    is_word = torch.isin(input_ids, torch.tensor(tokens.exempt, device=input_ids.device), invert=True)
    return input_ids.masked_fill(hidden & is_word, tokens.mask)


# Above this share of reachable rows a smaller table saves too little.
_MOST_REACHED = 0.8


@contextlib.contextmanager
def known_vocabulary(
    model: PreTrainedModel, selection: EncodedSplit, trained: Sequence[EncodedSplit], tokens: MaskTokens | None
) -> Iterator[tuple[list[EncodedSplit], MaskTokens | None]]:
    """Narrows the token table as `reachable_vocabulary` does; yields all splits, selection first, and the tokens.

    With ``tokens``, tokens that the ``trained`` splits lack are replaced by ``[MASK]`` in the selection rows. At the
    end their rows of the whole table get the weights of ``[MASK]``, so that the saved model answers as the chosen one.
    """
    if tokens is None:
        with reachable_vocabulary(model, [selection, *trained]) as splits:
            yield splits, None
        return
    table, pad = model.get_input_embeddings(), model.config.pad_token_id
    always_seen = [*tokens.exempt, *([] if pad is None else [pad])]
    seen = np.unique(np.concatenate([*(split.input_ids for split in trained), np.asarray(always_seen, dtype=np.int64)]))
    unseen = np.setdiff1d(np.arange(table.num_embeddings), seen)
    masked_ids = np.where(np.isin(selection.input_ids, unseen), tokens.mask, selection.input_ids).astype(np.int32)
    # The special tokens form one more split, so that they stay in the table and get new ids with the others.
    ids = np.array([tokens.mask, *tokens.exempt], dtype=np.int32)
    special = EncodedSplit(ids, np.array([0, len(ids)]), np.zeros(1, dtype=np.int64))
    with reachable_vocabulary(model, [special, replace(selection, input_ids=masked_ids), *trained]) as splits:
        mask, *others = splits[0].input_ids.tolist()
        yield splits[1:], MaskTokens(mask, tuple(others))
    with torch.no_grad():
        table.weight[torch.from_numpy(unseen)] = table.weight[tokens.mask].clone()


@contextlib.contextmanager
def reachable_vocabulary(model: PreTrainedModel, splits: Sequence[EncodedSplit]) -> Iterator[list[EncodedSplit]]:
    """Narrows the model's token table to the rows that ``splits`` reach; puts the whole table back at the end.

    Inside the context ids are renumbered in the old order. Updates equal those of the whole table, except that AdamW's
    weight decay would also have shrunk the rows that are not reached.
    """
    whole = model.get_input_embeddings()
    pad = model.config.pad_token_id
    reached = np.unique(np.concatenate([*(split.input_ids for split in splits), [] if pad is None else [pad]]))
    if not getattr(model, "narrows_vocabulary", True) or len(reached) > _MOST_REACHED * whole.num_embeddings:
        yield list(splits)
        return
    rows = torch.from_numpy(reached.astype(np.int64)).to(whole.weight.device)
    new_pad = None if pad is None else int(np.searchsorted(reached, pad))
    narrow = nn.Embedding(len(rows), whole.embedding_dim, padding_idx=new_pad, device=whole.weight.device)
    with torch.no_grad():
        narrow.weight.copy_(whole.weight[rows])
    model.set_input_embeddings(narrow)
    pad_before, model.config.pad_token_id = pad, new_pad
    try:
        yield [replace(split, input_ids=np.searchsorted(reached, split.input_ids).astype(np.int32)) for split in splits]
    finally:
        model.config.pad_token_id = pad_before
        with torch.no_grad():
            whole.weight[rows] = narrow.weight
        model.set_input_embeddings(whole)
