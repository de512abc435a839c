"""Training only the rows of the token table that the data can reach.

A corpus rarely uses the whole vocabulary: SST-2 reaches 38 % of BERT's. The other rows have zero gradients in every
step, yet the optimiser reads and writes their moments, clipping reads their gradients, and the backward pass zeroes
them. On a CPU that is a tenth of a training step and most of the optimiser's memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from recurra.data.encoding import EncodedSplit
from recurra.training.masking import MaskTokens, hide_unseen, read_unseen_as_mask, unseen_tokens

# Above this share of reachable rows the exchange is not worth its trouble.
_MOST_REACHED = 0.8


@dataclass(frozen=True)
class KnownRows:
    """What a model is trained on, in the ids of its narrowed table.

    Attributes:
        train: Training rows.
        selection: Rows that choose the epoch.
        auxiliary: Rows with labels of another task, if there are some.
        tokens: What hides tokens, if training hides some.
    """

    train: EncodedSplit
    selection: EncodedSplit
    auxiliary: EncodedSplit | None
    tokens: MaskTokens | None


@contextlib.contextmanager
def known_vocabulary(
    model: PreTrainedModel,
    train: EncodedSplit,
    selection: EncodedSplit,
    tokens: MaskTokens | None,
    auxiliary: EncodedSplit | None = None,
) -> Iterator[KnownRows]:
    """Narrows the token table as `reachable_vocabulary` does.

    With ``tokens``, what the training split lacks reads as ``[MASK]``: in the selection rows meanwhile, and in the
    whole table at the end, so that the model that is saved answers as the one that was chosen.

    Args:
        model: Its token table changes.
        train: Training rows.
        selection: Rows that choose the epoch.
        tokens: What hides tokens and is never hidden; none if training hides nothing.
        auxiliary: Rows with labels of another task, whose words are known as well.
    """
    trained = [train] if auxiliary is None else [train, auxiliary]
    if tokens is None:
        with reachable_vocabulary(model, [selection, *trained]) as splits:
            yield KnownRows(splits[1], splits[0], splits[2] if len(splits) > 2 else None, None)
        return
    table, pad = model.get_input_embeddings(), model.config.pad_token_id
    unseen = unseen_tokens(trained, table.num_embeddings, [*tokens.kept, *([] if pad is None else [pad])])
    # The special tokens as one more split: so they stay in the table, and get their new ids with the others.
    ids = np.array([tokens.mask, *tokens.kept], dtype=np.int32)
    special = EncodedSplit(ids, np.array([0, len(ids)]), np.zeros(1, dtype=np.int64))
    with reachable_vocabulary(model, [special, hide_unseen(selection, unseen, tokens.mask), *trained]) as splits:
        mask, *others = splits[0].input_ids.tolist()
        known = MaskTokens(mask, tuple(others))
        yield KnownRows(splits[2], splits[1], splits[3] if len(splits) > 3 else None, known)
    read_unseen_as_mask(table, unseen, tokens.mask)


@contextlib.contextmanager
def reachable_vocabulary(model: PreTrainedModel, splits: Sequence[EncodedSplit]) -> Iterator[list[EncodedSplit]]:
    """Narrows the model's token table to the rows that ``splits`` reach; puts the whole table back at the end.

    Inside, ids are numbered anew, in the old order. The gradients and updates of reached rows are those of the whole
    table. Rows that are not reached keep their initial values; AdamW on the whole table would have shrunk them a little
    by weight decay, which is the only difference.

    Args:
        model: Its input embedding is exchanged for the time.
        splits: Everything that will be fed to the model meanwhile.

    Yields:
        The splits with ids to match.
    """
    whole = model.get_input_embeddings()
    pad = model.config.pad_token_id
    reached = np.unique(np.concatenate([*(split.input_ids for split in splits), [] if pad is None else [pad]]))
    if len(reached) > _MOST_REACHED * whole.num_embeddings:
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
