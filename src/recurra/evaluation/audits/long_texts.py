"""Long texts: lengths in tokens before anything is cut, how much a limit cuts, and which limit holds most texts.

Lengths are counted on at most 2,000 evenly spaced rows of a split, so that counting is quick whatever the data's size.
The audit measures how much of each split no model reads, because it comes after ``max_length`` tokens or the last
window. From 1 % of the rows its result is a note, never a failure: the figures are right for what was read, and may be
better if more is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from recurra.core.record import AuditResult
from recurra.data.dataset import TextDataset, TextSplit
from recurra.data.encoding import added_tokens, encode_texts
from recurra.data.windows import MOST_WINDOWS, most_tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SAMPLE_ROWS = 2_000
# Limits to choose from, and the share of the training rows that the chosen one holds whole.
LIMITS = (64, 128, 256, 512)
HELD_SHARE = 0.95
# Cuts in this share of a split's rows, or in more, are worth a note.
NOTE_SHARE = 0.01
# The length of a longer text is estimated from its beginning, in proportion.
_MOST_CHARACTERS = 20_000

Lengths = npt.NDArray[np.int64]


@dataclass(frozen=True)
class CutTexts:
    """How much a limit cuts of a split, as shares of its rows and tokens."""

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
    """The sample (`sample_of`) of every split that has rows."""
    return {name: sample_of(split) for name, split in dataset.splits.items() if len(split)}


def token_lengths(texts: Sequence[str], tokenizer: Tokenizer | Any) -> Lengths:
    """Uncut lengths of texts in tokens, with those that a tokenizer adds to each, shape ``(texts,)``."""
    _, offsets = encode_texts([text[:_MOST_CHARACTERS] for text in texts], tokenizer, None)
    factors = np.asarray([max(1.0, len(text) / _MOST_CHARACTERS) for text in texts], dtype=np.float64)
    return np.ceil(np.diff(offsets) * factors).astype(np.int64) + added_tokens(tokenizer)


def cut_texts(lengths: Lengths, max_length: int) -> CutTexts:
    """How much a limit of ``max_length`` tokens cuts of texts of these lengths."""
    if not len(lengths):
        return CutTexts(0, 0.0, 0.0)
    beyond = np.maximum(lengths - max_length, 0)
    return CutTexts(len(lengths), float((beyond > 0).mean()), float(beyond.sum() / max(int(lengths.sum()), 1)))


def choose_max_length(lengths: Lengths, longest: int) -> int:
    """The smallest of 64, 128, 256 and 512 tokens that holds 95 % of the texts, but at most ``longest``."""
    enough = [limit for limit in LIMITS if (lengths <= limit).mean() >= HELD_SHARE] if len(lengths) else []
    return min(min(enough, default=LIMITS[-1]), longest)


def windows_needed(lengths: Lengths, max_length: int, added: int) -> int:
    """The fewest windows, of 64 at most, that hold all but less than 1 % of the texts."""
    counts = -(-(lengths - added) // (max_length - added))
    fitting = (windows for windows in range(1, MOST_WINDOWS) if (counts > windows).mean() < NOTE_SHARE)
    return next(fitting, MOST_WINDOWS)


def read_more(lengths: Lengths, max_length: int, longest: int, *, windows: int = 1, added: int = 0) -> str:
    """Advice on what to do if texts of these lengths are cut."""
    ways = []
    if max_length < longest and windows == 1:
        fitting_limits = (limit for limit in LIMITS if limit > max_length and (lengths > limit).mean() < NOTE_SHARE)
        new_limit = min(next(fitting_limits, longest), longest)
        ways.append(f"--max-length {new_limit} (max_length: {new_limit} in a study file; at most {longest})")
    needed = windows_needed(lengths, max_length, added)
    if needed > windows:
        ways.append(f"--windows {needed} (windows: {needed}; at most {MOST_WINDOWS})")
    limit = "" if max_length < longest else f"the model reads no more than {longest} tokens at once: "
    return limit + (f"read more with {' or '.join(ways)}" if ways else "shorten the texts, or put first what matters")


def describe_limit(max_length: int, windows: int) -> str:
    """The limit in words, to begin a line on what it cuts."""
    return f"max_length {max_length}" + (f" in at most {windows} windows" if windows > 1 else "")


# If BERT's English vocabulary cuts English, 10 to 18 % of the pieces are letters or parts of words; for other European
# languages 45 to 70 %, for Russian and Chinese all.
MOST_BROKEN = 0.3
# Rows that are enough to tell a language.
_ROWS_OF_LANGUAGE = 200


def broken_share(texts: Sequence[str], tokenizer: Tokenizer | Any) -> float:
    """Share of pieces that are unknown, single letters or parts of words; high for a language new to the tokenizer.

    Vocabularies other than WordPiece are judged by unknown pieces alone, because they have letters among their words.
    """
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    parts = type(backend.model).__name__ == "WordPiece"
    unknown = getattr(backend.model, "unk_token", None) or "<unk>"
    rows = np.linspace(0, len(texts) - 1, min(len(texts), _ROWS_OF_LANGUAGE)).astype(int).tolist()
    encodings = backend.encode_batch([texts[row][:1_000] for row in rows], add_special_tokens=False)
    pieces = [piece for encoding in encodings for piece in encoding.tokens]
    # Digits and punctuation say nothing about a language.
    pieces = [piece for piece in pieces if piece == unknown or any(map(str.isalpha, piece))]
    broken = sum(piece == unknown or (parts and (piece.startswith("##") or len(piece) == 1)) for piece in pieces)
    return broken / max(len(pieces), 1)


def cut_note(lengths: Mapping[str, Lengths], max_length: int, longest: int, *, windows: int = 1, added: int = 0) -> str:
    """One line on what a limit cuts of each split; with advice if a split has at least 1 % of its rows cut."""
    limit = describe_limit(max_length, windows)
    cut = {name: cut_texts(counts, most_tokens(max_length, windows, added)) for name, counts in lengths.items()}
    worst = max(cut, key=lambda name: cut[name].rows, default="")
    if not worst or not cut[worst].rows:
        return f"{limit}: no text is cut"
    line = f"{limit} cuts {'; '.join(f'{name}: {texts}' for name, texts in cut.items())}"
    if cut[worst].rows < NOTE_SHARE:
        return line
    return f"{line}; {read_more(lengths[worst], max_length, longest, windows=windows, added=added)}"


def audit_long_texts(
    dataset: TextDataset, tokenizer: Any, max_length: int, longest: int, windows: int = 1
) -> list[AuditResult]:
    """Measures the share of cut texts and tokens of every split."""
    audits, added = [], added_tokens(tokenizer)
    for name, texts in samples_of(dataset).items():
        lengths = token_lengths(texts, tokenizer)
        cut = cut_texts(lengths, most_tokens(max_length, windows, added))
        summary = f"{describe_limit(max_length, windows)} cuts {cut}"
        if len(dataset.splits[name]) > cut.counted:
            summary += f" (of {cut.counted:,} rows of {len(dataset.splits[name]):,})"
        noted = cut.rows >= NOTE_SHARE
        if noted:
            summary += f"; {read_more(lengths, max_length, longest, windows=windows, added=added)}"
        audits.append(
            AuditResult(
                name=f"long-texts.{name}",
                status="note" if noted else "passed",
                summary=summary,
                value=cut.rows,
                threshold=NOTE_SHARE,
                details={
                    "tokens_cut": cut.tokens,
                    "rows_counted": cut.counted,
                    "max_length": max_length,
                    "windows": windows,
                    "longest": longest,
                    "holds_95_percent": choose_max_length(lengths, longest),
                    "windows_needed": windows_needed(lengths, max_length, added),
                },
            )
        )
    return audits
