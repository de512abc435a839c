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
from recurra.data.windows import MOST_WINDOWS, most_tokens

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
    """What a limit cuts of a split."""

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
    """Tokens of texts with those that a tokenizer adds to each, nothing cut, shape ``(texts,)``."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    _, offsets = encode_texts([text[:_MOST_CHARACTERS] for text in texts], backend, None)
    stretch = np.asarray([max(1.0, len(text) / _MOST_CHARACTERS) for text in texts], dtype=np.float64)
    return np.ceil(np.diff(offsets) * stretch).astype(np.int64) + added_tokens(backend)


def added_tokens(tokenizer: Tokenizer | Any) -> int:
    """Tokens that a tokenizer, any fast one or one of the tokenizers library itself, adds to each text."""
    return int(getattr(tokenizer, "backend_tokenizer", tokenizer).num_special_tokens_to_add(False))


def cut_texts(lengths: Lengths, max_length: int) -> CutTexts:
    """What is cut of texts of these lengths at ``max_length`` tokens."""
    if not len(lengths):
        return CutTexts(0, 0.0, 0.0)
    beyond = np.maximum(lengths - max_length, 0)
    return CutTexts(len(lengths), float((beyond > 0).mean()), float(beyond.sum() / max(int(lengths.sum()), 1)))


def choose_max_length(lengths: Lengths, longest: int) -> int:
    """The smallest of 64, 128, 256 and 512 tokens that holds 95 % of the texts, and at most what a model can read."""
    needed = [limit for limit in LIMITS if (lengths <= limit).mean() >= HELD_SHARE] if len(lengths) else []
    return min(min(needed, default=LIMITS[-1]), longest)


def windows_needed(lengths: Lengths, max_length: int, added: int) -> int:
    """The fewest windows, of 64 at most, that hold all but less than 1 % of the texts."""
    counts = -(-(lengths - added) // (max_length - added))
    enough = (windows for windows in range(1, MOST_WINDOWS) if (counts > windows).mean() < NOTE_SHARE)
    return next(enough, MOST_WINDOWS)


def read_more(lengths: Lengths, max_length: int, longest: int, *, windows: int = 1, added: int = 0) -> str:
    """What to do about texts of these lengths that are cut."""
    ways = []
    if max_length < longest and windows == 1:
        enough = (limit for limit in LIMITS if limit > max_length and (lengths > limit).mean() < NOTE_SHARE)
        cure = min(next(enough, longest), longest)
        ways.append(f"--max-length {cure} (max_length: {cure} in a study file; at most {longest})")
    needed = windows_needed(lengths, max_length, added)
    if needed > windows:
        ways.append(f"--windows {needed} (windows: {needed}; at most {MOST_WINDOWS})")
    limit = "" if max_length < longest else f"the model reads no more than {longest} tokens at once: "
    return limit + (f"read more with {' or '.join(ways)}" if ways else "shorten the texts, or put first what matters")


def describe_limit(max_length: int, windows: int) -> str:
    """The limit in words, as it begins a line on what it cuts."""
    return f"max_length {max_length}" + (f" in at most {windows} windows" if windows > 1 else "")


# Of the pieces that BERT's English vocabulary makes of English 10 to 18 % are letters or parts of words; of other
# European languages 45 to 70 %, of Russian and Chinese all.
MOST_BROKEN = 0.3
# Rows that tell a language.
_ROWS_OF_LANGUAGE = 200


def broken_share(texts: Sequence[str], tokenizer: Tokenizer | Any) -> float:
    """Share of pieces that are unknown, single letters or parts of words: high in a language that it was not made for.

    Vocabularies of other kinds than WordPiece are judged by unknown pieces alone: they have letters among their words.
    """
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    parts = type(backend.model).__name__ == "WordPiece"
    unknown = getattr(backend.model, "unk_token", None) or "<unk>"
    rows = np.linspace(0, len(texts) - 1, min(len(texts), _ROWS_OF_LANGUAGE)).astype(int).tolist()
    encodings = backend.encode_batch([texts[row][:1_000] for row in rows], add_special_tokens=False)
    pieces = [piece for encoding in encodings for piece in encoding.tokens]
    # Digits and punctuation say nothing of a language.
    pieces = [piece for piece in pieces if piece == unknown or any(map(str.isalpha, piece))]
    broken = sum(piece == unknown or (parts and (piece.startswith("##") or len(piece) == 1)) for piece in pieces)
    return broken / max(len(pieces), 1)


def say_cut(lengths: Mapping[str, Lengths], max_length: int, longest: int, *, windows: int = 1, added: int = 0) -> str:
    """One line on what a limit cuts of each split, and what to do from 1 % of the rows on."""
    limit = describe_limit(max_length, windows)
    cut = {name: cut_texts(of_split, most_tokens(max_length, windows, added)) for name, of_split in lengths.items()}
    worst = max(cut, key=lambda name: cut[name].rows, default="")
    if not worst or not cut[worst].rows:
        return f"{limit}: no text is cut"
    line = f"{limit} cuts {'; '.join(f'{name}: {of_split}' for name, of_split in cut.items())}"
    if cut[worst].rows < NOTE_SHARE:
        return line
    rows = lengths.get("train", lengths[worst])
    return f"{line}; {read_more(rows, max_length, longest, windows=windows, added=added)}"
