"""Lengths of texts in tokens before anything is cut: how much a limit cuts, and which limit holds most texts.

Counted on at most 2,000 rows of a split, evenly spaced, so that it takes a moment whatever the size of the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from recurra.data.dataset import TextDataset, TextSplit
from recurra.data.encoding import encode_texts

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SAMPLE_ROWS = 2_000
# Limits to choose from, and the share of the training rows that the chosen one holds whole.
LIMITS = (64, 128, 256, 512)
HELD_SHARE = 0.95
# From this share of a split's rows on, what is cut is worth a note.
NOTE_SHARE = 0.01
# Longer texts are counted by their beginning, in proportion.
_MOST_CHARACTERS = 20_000

Lengths = npt.NDArray[np.int64]


@dataclass(frozen=True)
class CutTexts:
    """What a limit cuts of a split.

    Attributes:
        counted: Rows that were counted.
        rows: Share of them that is cut.
        tokens: Share of their tokens that is cut off.
    """

    counted: int
    rows: float
    tokens: float

    def __str__(self) -> str:
        return f"{self.rows:.1%} of the rows and {self.tokens:.1%} of the tokens"


def sample_of(split: TextSplit) -> list[str]:
    """At most 2,000 texts of a split, evenly spaced."""
    if len(split) <= SAMPLE_ROWS:
        return split.texts
    return [split.texts[row] for row in np.linspace(0, len(split) - 1, SAMPLE_ROWS).astype(int).tolist()]


def samples_of(dataset: TextDataset) -> dict[str, list[str]]:
    """The same of every split that has rows."""
    return {name: sample_of(split) for name, split in dataset.splits.items() if len(split)}


def token_lengths(texts: Sequence[str], tokenizer: Tokenizer | Any) -> Lengths:
    """Tokens of texts with those that a tokenizer adds to each, nothing cut, shape ``(texts,)``.

    Args:
        texts: Cleaned texts. Of more than 20,000 characters the first are counted, and the rest in proportion.
        tokenizer: Any fast tokenizer, or one of the tokenizers library itself.
    """
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    _, offsets = encode_texts([text[:_MOST_CHARACTERS] for text in texts], backend, None)
    stretch = np.asarray([max(1.0, len(text) / _MOST_CHARACTERS) for text in texts], dtype=np.float64)
    added = int(backend.num_special_tokens_to_add(False))
    return np.ceil(np.diff(offsets) * stretch).astype(np.int64) + added


def cut_texts(lengths: Lengths, max_length: int) -> CutTexts:
    """What is cut of texts of these lengths at ``max_length`` tokens."""
    if not len(lengths):
        return CutTexts(0, 0.0, 0.0)
    beyond = np.maximum(lengths - max_length, 0)
    return CutTexts(len(lengths), float((beyond > 0).mean()), float(beyond.sum() / max(int(lengths.sum()), 1)))


def choose_max_length(lengths: Lengths, longest: int) -> int:
    """The smallest of 64, 128, 256 and 512 tokens that holds 95 % of the texts, and at most what a model can read.

    Args:
        lengths: Tokens of texts.
        longest: Longest input of the model, in tokens.
    """
    needed = [limit for limit in LIMITS if (lengths <= limit).mean() >= HELD_SHARE] if len(lengths) else []
    return min(min(needed, default=LIMITS[-1]), longest)


def read_more(lengths: Lengths, max_length: int, longest: int) -> str:
    """What to do about texts of these lengths that are cut at ``max_length`` by a model that reads ``longest``."""
    if max_length >= longest:
        return f"the model reads no more than {longest} tokens: shorten the texts, or put first what matters"
    enough = (limit for limit in LIMITS if limit > max_length and (lengths > limit).mean() < NOTE_SHARE)
    cure = min(next(enough, longest), longest)
    return f"read more with --max-length {cure} (max_length: {cure} in a study file; at most {longest})"


def say_cut(lengths: Mapping[str, Lengths], max_length: int, longest: int) -> str:
    """One line on what a limit cuts of each split, and what to do from 1 % of the rows on.

    Args:
        lengths: Tokens of texts, by split.
        max_length: The limit.
        longest: Longest input of the model, in tokens.
    """
    cut = {name: cut_texts(each, max_length) for name, each in lengths.items()}
    worst = max(cut, key=lambda name: cut[name].rows, default="")
    if not worst or not cut[worst].rows:
        return f"max_length {max_length}: no text is cut"
    line = f"max_length {max_length} cuts {'; '.join(f'{name}: {each}' for name, each in cut.items())}"
    if cut[worst].rows < NOTE_SHARE:
        return line
    return f"{line}; {read_more(lengths.get('train', lengths[worst]), max_length, longest)}"
