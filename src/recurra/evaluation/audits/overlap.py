"""Which word sequences of one list of texts stand verbatim in another: the search under the leakage audit.

A training list of any size is read once, in pieces, so the memory is that of one piece (about 150 MiB) plus that of the
list that is looked up. Words are compared by 64-bit fingerprints: two different sequences of words are taken for equal
with a probability of about 1e-19 for each pair that is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]

# Words of training text that are searched at once.
PIECE_WORDS = 1_000_000
# Candidate places that are compared at once.
_PIECE_CANDIDATES = 500_000

# Odd, so that it has an inverse modulo 2**64 (Knuth's MMIX multiplier).
_BASE = 6364136223846793005
_MODULUS = 2**64
_INVERSE = pow(_BASE, -1, _MODULUS)


class Vocabulary:
    """Gives each distinct word a 64-bit number that looks random and is the same in every process."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}

    def encode(self, texts: Sequence[str]) -> tuple[Words, Indices]:
        """Encodes texts, split at white space.

        Returns:
            The words' numbers of all texts one after the other, and the offsets of the texts, shape ``(texts + 1,)``.
        """
        index = self._index
        numbers: list[int] = []
        offsets = np.zeros(len(texts) + 1, dtype=np.int64)
        for position, text in enumerate(texts, start=1):
            numbers.extend([index.setdefault(word, len(index)) for word in text.split()])
            offsets[position] = len(numbers)
        return _mix(np.asarray(numbers, dtype=np.uint64)), offsets


def _mix(numbers: Words) -> Words:
    """The splitmix64 finaliser (Steele et al. 2014): a bijection, so that distinct words stay distinct."""
    mixed = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@dataclass(frozen=True, eq=False)
class RollingHash:
    """Hash of any window of a word list in constant time: a polynomial modulo 2**64, made from prefix sums."""

    prefix: Words
    inverse_powers: Words

    @classmethod
    def of(cls, words: Words) -> RollingHash:
        """Prepares the windows of ``words``."""
        prefix = np.zeros(len(words) + 1, dtype=np.uint64)
        np.cumsum(words * _powers(_BASE, len(words)), out=prefix[1:])
        return cls(prefix, _powers(_INVERSE, len(words) + 1))

    def windows(self, starts: Indices, lengths: Indices | int) -> Words:
        """Hashes of the windows ``[start, start + length)``."""
        return (self.prefix[starts + lengths] - self.prefix[starts]) * self.inverse_powers[starts]


def _powers(base: int, count: int) -> Words:
    powers = np.full(count, base, dtype=np.uint64)
    powers[:1] = 1
    return np.cumprod(powers)


@dataclass(frozen=True, eq=False)
class Overlap:
    """What of each looked-up text stands in the training texts.

    Attributes:
        container: Row of a training text that holds the whole word sequence; -1 if there is none or the sequence is
            shorter than asked for. Shape ``(texts,)``.
        ngrams: Number of n-grams of each text, shape ``(texts,)``; 0 if it is shorter than one.
        ngrams_found: Number of those that stand in some training text, shape ``(texts,)``.
    """

    container: Indices
    ngrams: Indices
    ngrams_found: Indices


def find_overlap(train_texts: Sequence[str], texts: Sequence[str], *, ngram: int = 8, min_words: int = 3) -> Overlap:
    """Looks up texts, and their n-grams, in training texts.

    Every text has an anchor, its n-gram that is rarest in the piece of training text at hand (texts shorter than an
    n-gram are their own anchor). Only where the anchor stands is the whole sequence compared.

    Args:
        train_texts: Texts to search in.
        texts: Texts to look up.
        ngram: Words of an n-gram.
        min_words: Shorter texts are not looked up as a whole: they recur by chance.
    """
    vocabulary = Vocabulary()
    words, offsets = vocabulary.encode(texts)
    queries = _Queries(words, offsets, ngram, min_words)
    for first_row, piece in _pieces(train_texts):
        queries.search(vocabulary.encode(piece), first_row)
    total = np.maximum(np.diff(offsets) - ngram + 1, 0)
    found = np.bincount(queries.gram_row, weights=queries.gram_found, minlength=len(texts)).astype(np.int64)
    return Overlap(queries.container, total, found)


def _pieces(texts: Sequence[str]) -> Iterator[tuple[int, Sequence[str]]]:
    """Cuts a list into pieces of about `PIECE_WORDS` words (counted as spaces, which is quick)."""
    first, words = 0, 0
    for row, text in enumerate(texts):
        words += text.count(" ") + 1
        if words >= PIECE_WORDS:
            yield first, texts[first : row + 1]
            first, words = row + 1, 0
    if first < len(texts):
        yield first, texts[first:]


class _Queries:
    """The looked-up texts, with what has been found so far."""

    def __init__(self, words: Words, offsets: Indices, ngram: int, min_words: int) -> None:
        self.ngram = ngram
        self.starts = offsets[:-1]
        self.lengths = np.diff(offsets)
        self.container = np.full(len(self.starts), -1, dtype=np.int64)
        self.wanted = self.lengths >= min_words
        self._hash = RollingHash.of(words)
        self.whole = self._hash.windows(self.starts, self.lengths)
        self.gram_starts, self.gram_row = _windows(offsets, ngram)
        self.gram_hash = self._hash.windows(self.gram_starts, ngram)
        self.gram_found = np.zeros(len(self.gram_starts), dtype=bool)

    def search(self, encoded: tuple[Words, Indices], first_row: int) -> None:
        words, offsets = encoded
        train = RollingHash.of(words)
        for length in np.unique(self.lengths[self.wanted & (self.lengths < self.ngram)]).tolist():
            starts, rows = _windows(offsets, length)
            pending = np.flatnonzero(self.wanted & (self.lengths == length) & (self.container < 0))
            hashes = train.windows(starts, length)
            order = np.argsort(hashes, kind="stable")
            low, high = _range_of(hashes[order], self.whole[pending])
            hit = high > low
            self.container[pending[hit]] = first_row + rows[order[low[hit]]]

        starts, rows = _windows(offsets, self.ngram)
        hashes = train.windows(starts, self.ngram)
        order = np.argsort(hashes, kind="stable")
        low, high = _range_of(hashes[order], self.gram_hash)
        self.gram_found |= high > low
        self._search_long(train, offsets, first_row, (starts[order], rows[order]), (low, high))

    def _search_long(
        self,
        train: RollingHash,
        offsets: Indices,
        first_row: int,
        places: tuple[Indices, Indices],
        ranges: tuple[Indices, Indices],
    ) -> None:
        low, high = ranges
        counts = high - low
        # One anchor a text, the rarest: sorted by text, then by count, the first of each text.
        order = np.lexsort((counts, self.gram_row))
        anchors = order[np.unique(self.gram_row[order], return_index=True)[1]]
        texts = self.gram_row[anchors]
        keep = (counts[anchors] > 0) & self.wanted[texts] & (self.container[texts] < 0)
        for block in _blocks(anchors[keep], counts):
            sizes = counts[block]
            within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            place = np.repeat(low[block], sizes) + within
            gram = np.repeat(block, sizes)
            text = self.gram_row[gram]
            rows = places[1][place]
            starts = places[0][place] - (self.gram_starts[gram] - self.starts[text])
            fits = (starts >= offsets[rows]) & (starts + self.lengths[text] <= offsets[rows + 1])
            starts, text, rows = starts[fits], text[fits], rows[fits]
            same = train.windows(starts, self.lengths[text]) == self.whole[text]
            # Reversed, so that the first training row wins.
            self.container[text[same][::-1]] = first_row + rows[same][::-1]


def _windows(offsets: Indices, length: int) -> tuple[Indices, Indices]:
    """Starts of all windows that lie within one text, and the text of each."""
    counts = np.maximum(np.diff(offsets) - length + 1, 0)
    rows = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return offsets[:-1][rows] + within, rows


def _range_of(sorted_hashes: Words, wanted: Words) -> tuple[Indices, Indices]:
    low: npt.NDArray[Any] = np.searchsorted(sorted_hashes, wanted, side="left")
    high: npt.NDArray[Any] = np.searchsorted(sorted_hashes, wanted, side="right")
    return low.astype(np.int64), high.astype(np.int64)


def _blocks(anchors: Indices, counts: Indices) -> Iterator[Indices]:
    """Cuts anchors so that one block has a bounded number of candidate places."""
    if len(anchors) == 0:
        return
    block = (np.cumsum(counts[anchors]) - 1) // _PIECE_CANDIDATES
    for number in np.unique(block).tolist():
        yield anchors[block == number]
