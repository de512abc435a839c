"""A vocabulary cut down to what the training rows use: most of a small encoder is its token table.

A WordPiece takes the longest piece that fits. So texts whose pieces are all kept are cut into the same pieces, and any
other text still has its single characters, which are kept too: nothing becomes unknown that was not.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedTokenizerFast

from recurra.core.errors import ConfigurationError
from recurra.data.encoding import encode_windows
from recurra.deployment.engines.trained import TransformerEngine

_CONTINUES = "##"
_SPECIAL = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")


def trim(engine: TransformerEngine, texts: Sequence[str], most: int | None) -> TransformerEngine:
    """Returns the engine with a smaller vocabulary and table; the one that was given stays as it is.

    Args:
        engine: Model and tokenizer.
        texts: The training rows: pieces that they use are kept, the most frequent first.
        most: Pieces at most; none keeps all that are used and no more.

    Raises:
        ConfigurationError: If the tokenizer is no WordPiece, or ``most`` leaves no room for words.
    """
    state: dict[str, Any] = json.loads(engine.tokenizer.backend_tokenizer.to_str())
    if state["model"]["type"] != "WordPiece":
        raise ConfigurationError(
            f"the tokenizer is a {state['model']['type']}, whose pieces depend on each other; "
            "only a WordPiece can lose some: leave the vocabulary as it is"
        )
    vocabulary: dict[str, int] = state["model"]["vocab"]
    ids, _, _ = encode_windows(texts, engine.tokenizer, engine.max_length, engine.windows)
    kept = _kept(vocabulary, {token["content"] for token in state["added_tokens"]}, ids, most)
    numbers = {piece: number for number, piece in enumerate(kept)}
    state["model"]["vocab"] = numbers
    _renumber(state, numbers)
    state["truncation"] = state["padding"] = None
    special = {name: value for name in _SPECIAL if (value := getattr(engine.tokenizer, name, None)) is not None}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)),
        model_max_length=engine.tokenizer.model_max_length,
        model_input_names=["input_ids", "attention_mask"],
        **special,
    )
    return TransformerEngine(
        _with_rows(engine.model, [vocabulary[piece] for piece in kept], numbers[tokenizer.pad_token]),
        tokenizer,
        precision="fp32",
        max_length=engine.max_length,
        windows=engine.windows,
    )


def _kept(vocabulary: dict[str, int], added: set[str], ids: npt.NDArray[np.int32], most: int | None) -> list[str]:
    """Pieces that stay, in the order of their numbers."""
    counts = np.bincount(ids, minlength=max(vocabulary.values()) + 1)
    always = {piece for piece in vocabulary if piece in added or len(piece.removeprefix(_CONTINUES)) == 1}
    ordered = sorted(vocabulary, key=vocabulary.__getitem__)
    used = [piece for piece in ordered if counts[vocabulary[piece]] and piece not in always]
    used.sort(key=lambda piece: (-counts[vocabulary[piece]], vocabulary[piece]))
    if most is not None and most <= len(always):
        raise ConfigurationError(
            f"{most:,} pieces are to be kept, and single characters and special tokens alone are {len(always):,}; "
            f"allowed: more than that; the training rows use {len(always) + len(used):,} with them"
        )
    room = len(used) if most is None else most - len(always)
    # Where there is room for more, the pieces of the lowest numbers: the commonest of what the tokenizer was made from.
    others = dict.fromkeys([*used, *(piece for piece in ordered if piece not in always)])
    return sorted([*always, *itertools.islice(others, room)], key=vocabulary.__getitem__)


def _renumber(state: dict[str, Any], numbers: dict[str, int]) -> None:
    """Gives special tokens their new numbers wherever the tokenizer repeats them."""
    for token in state["added_tokens"]:
        token["id"] = numbers[token["content"]]
    after = state["post_processor"] or {}
    for each in after.get("special_tokens", {}).values():
        each["ids"] = [numbers[piece] for piece in each["tokens"]]
    for end in ("cls", "sep"):
        if isinstance(after.get(end), list):
            after[end] = [after[end][0], numbers[after[end][0]]]


@torch.no_grad()
def _with_rows(model: Any, rows: list[int], pad: int) -> Any:
    """A copy of a classifier with some rows of its token table."""
    trimmed = copy.deepcopy(model)
    whole = trimmed.get_input_embeddings()
    table = nn.Embedding(len(rows), whole.embedding_dim, padding_idx=pad)
    table.weight.copy_(whole.weight[rows])
    trimmed.set_input_embeddings(table)
    trimmed.config.vocab_size, trimmed.config.pad_token_id = len(rows), pad
    # Of the whole vocabulary; classifiers have no use for them.
    trimmed.config.bos_token_id = trimmed.config.eos_token_id = None
    return trimmed.eval()
