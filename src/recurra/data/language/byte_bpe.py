"""Byte-level BPE tokenizers: GPT-2's from its files, or trained on a text. Every text comes back as it was."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from recurra.core.errors import ConfigurationError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"


def read_byte_bpe(vocabulary: Path, merges: Path) -> Tokenizer:
    """Reads a tokenizer in GPT-2's two files.

    Args:
        vocabulary: ``vocab.json``, from token to id.
        merges: ``merges.txt``, a version line and then two tokens a line, the first merge first.

    Raises:
        ConfigurationError: If a file cannot be read, or they do not fit each other.
    """
    try:
        ids = json.loads(vocabulary.read_text(encoding="utf-8"))
        lines = merges.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 JSON and text"
        raise ConfigurationError(f"cannot read '{vocabulary}' and '{merges}': {reason}; copy them again") from error
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    known = isinstance(ids, dict) and all(isinstance(value, int) for value in ids.values())
    if not known or any(len(pair) != 2 for pair in pairs) or END_OF_TEXT not in ids:
        raise ConfigurationError(
            f"'{vocabulary}' and '{merges}' are no byte-level BPE with {END_OF_TEXT}; give GPT-2's vocab.json "
            "and merges.txt"
        )
    for first, second in pairs:
        for piece in (first, second, first + second):
            if piece not in ids:
                raise ConfigurationError(f"'{merges}' makes {piece!r}, which '{vocabulary}' lacks; copy both again")
    return _byte_level(BPE(ids, [(first, second) for first, second in pairs]))


def train_byte_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Trains byte-level BPE; the same texts give the same tokenizer. `END_OF_TEXT` has id 0, then come the 256 bytes.

    Args:
        texts: Training texts.
        vocab_size: Tokens to aim at; fewer if the texts do not give as many.
    """
    tokenizer = _byte_level(BPE())
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        # All bytes, so that no text is unknown; sorted, because the alphabet comes out of a hash table.
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _byte_level(model: BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def as_language_tokenizer(backend: Tokenizer) -> PreTrainedTokenizerFast:
    """Wraps a byte-level tokenizer for Transformers; end-of-text also begins a text and fills up batches."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )
