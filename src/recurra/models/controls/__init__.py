"""Controls: cheap linear models that a Transformer must beat before it is worth its price. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LINEAR_NAME = "linear.safetensors"
# The files that versions before 0.3 wrote instead.
OLD_NAMES = ("linear.json", "static.json")
TOKENIZER_NAME = "tokenizer.json"
# Weights of an encoder beside a linear model; the scores of both are added (`controls.fitting.fit_joined`).
ENCODER_NAME = "model.safetensors"
# Further tokens are cut: a label seldom depends on them, and twice the tokens take twice the time.
STATES_TOKENS = 256


def holds_linear_model(folder: Path) -> bool:
    """Whether a folder holds only a linear model, perhaps of an older version; nothing is read."""
    has_weights = any((folder / name).is_file() for name in (LINEAR_NAME, *OLD_NAMES))
    return has_weights and not holds_joined_model(folder)


def holds_joined_model(folder: Path) -> bool:
    """Whether a model folder, or an export, holds a linear model and an encoder whose scores are added."""
    return (folder / LINEAR_NAME).is_file() and (folder / ENCODER_NAME).is_file()


def piece_ids(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Word pieces of cleaned texts, nothing cut and no special tokens."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    # Text that looks like a special token is read as plain text, because texts hold no special tokens.
    tokenizer.encode_special_tokens = True
    if len(texts) == 1:
        return [tokenizer.encode(texts[0], add_special_tokens=False).ids]
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
