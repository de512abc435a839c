"""Controls: cheap linear models that a Transformer must beat before it is worth its price. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LINEAR_NAME = "linear.safetensors"
# What versions before 0.3 wrote in its stead.
OLD_NAMES = ("linear.json", "static.json")
TOKENIZER_NAME = "tokenizer.json"
# Weights of an encoder beside a linear model, whose scores add up (`recurra.models.controls.joined`).
ENCODER_NAME = "model.safetensors"
# What stands behind is cut: a label seldom hangs on it, and twice the tokens are twice the time.
STATES_TOKENS = 256


def holds_linear_model(folder: Path) -> bool:
    """Whether a folder holds a linear model, of an older version too, and nothing else; nothing is read."""
    found = any((folder / name).is_file() for name in (LINEAR_NAME, *OLD_NAMES))
    return found and not holds_joined_model(folder)


def holds_joined_model(folder: Path) -> bool:
    """Whether a model folder, or an export, holds a linear model and an encoder, whose scores add up."""
    return (folder / LINEAR_NAME).is_file() and (folder / ENCODER_NAME).is_file()


def piece_ids(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Word pieces of cleaned texts, nothing cut and no special tokens."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    # What looks like a special token is taken letter by letter: texts hold no such tokens.
    tokenizer.encode_special_tokens = True
    if len(texts) == 1:
        return [tokenizer.encode(texts[0], add_special_tokens=False).ids]
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
