"""TF-IDF of n-grams of words or of characters, as scikit-learn has it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from recurra.models.controls.weights import Floats, SparseRows, foreign_settings, in_parts

# Words of one letter count: "n't" is "n" and "t", and dropping them would drop the negation.
TOKEN_PATTERN = r"(?u)\b\w+\b"
_WORD = re.compile(TOKEN_PATTERN)
WORDS, CHARACTERS = "words", "characters"
UNITS = (WORDS, CHARACTERS)
_LONGEST = 8
_MOST_WORDS = 200_000


def units_of(unit: str, text: str) -> list[str]:
    """What the n-grams of a cleaned text are runs of, in their order.

    Args:
        unit: ``words``: runs of letters and digits. ``characters``: those of what blanks set apart, with a blank at
            either end, and behind each an empty one, which stands in no n-gram.
        text: The text.
    """
    if unit == WORDS:
        return _WORD.findall(text)
    return [character for word in text.split() for character in (*f" {word} ", "")]


@dataclass(frozen=True)
class Ngrams:
    """Which n-grams of a text are counted, and how.

    Attributes:
        unit: ``words`` (runs of letters and digits), or ``characters`` within what blanks set apart, with a blank at
            either end (scikit-learn's ``char_wb``).
        shortest: Units of the shortest n-gram.
        longest: Units of the longest.
        sublinear: Whether ``1 + ln(count)`` stands for the count.
        least_texts: N-grams of fewer training texts are left out.
    """

    unit: Literal["words", "characters"]
    shortest: int
    longest: int
    sublinear: bool = False
    least_texts: int = 1

    def __str__(self) -> str:
        return f"{self.unit} {self.shortest} to {self.longest}"

    @property
    def per_word(self) -> int:
        """How many begin at a word, or lie within one of five letters."""
        return self.longest - self.shortest + 1 if self.unit == "words" else len(list(self.of_word("12345")))

    def of(self, text: str) -> Iterator[str]:
        """The n-grams of a cleaned text, as often as they occur."""
        words = units_of(WORDS, text)
        for length in range(self.shortest, self.longest + 1):
            for start in range(len(words) - length + 1):
                yield " ".join(words[start : start + length])

    def of_word(self, word: str) -> Iterator[str]:
        """The character n-grams of one word; a word shorter than an n-gram counts once."""
        padded = f" {word} "
        for length in range(self.shortest, self.longest + 1):
            if len(padded) <= length:
                yield padded
                return
            for start in range(len(padded) - length + 1):
                yield padded[start : start + length]


class Vectorizer:
    """TF-IDF of one kind of n-grams: rows of length 1, smoothed inverse document frequency.

    The figures are those of scikit-learn's ``TfidfVectorizer``; the n-grams of characters are made once a distinct word
    instead of once an occurrence, which is several times faster.

    Args:
        ngrams: Which.
        terms: In the order of the columns.
        idf: Inverse document frequencies, ``(terms,)``.
    """

    def __init__(self, ngrams: Ngrams, terms: Sequence[str], idf: npt.ArrayLike) -> None:
        self.ngrams = ngrams
        self.terms = list(terms)
        self.idf = np.asarray(idf, dtype=np.float32)
        self._columns = {term: column for column, term in enumerate(self.terms)}
        self._of_words: dict[str, npt.NDArray[np.int64]] = {}

    @classmethod
    def fit(cls, ngrams: Ngrams, texts: Sequence[str]) -> Self:
        """Finds the n-grams of texts; there may be none."""
        found = _texts_with_words(ngrams, texts) if ngrams.unit == WORDS else _texts_with_characters(ngrams, texts)
        terms = sorted(term for term, count in found.items() if count >= ngrams.least_texts)
        counts = np.array([found[term] for term in terms], dtype=np.float64)
        return cls(ngrams, terms, np.log((1 + len(texts)) / (1 + counts)) + 1)

    def transform(self, texts: Sequence[str]) -> SparseRows:
        """TF-IDF of texts, ``(texts, terms)``."""
        offsets, columns, values = [0], [], []
        for text in texts:
            row = self._words(text) if self.ngrams.unit == "words" else self._characters(text)
            distinct, counts = np.unique(row, return_counts=True)
            columns.append(distinct)
            values.append(counts)
            offsets.append(offsets[-1] + len(distinct))
        counted: Floats = np.concatenate([np.zeros(0), *values])
        indices = np.concatenate([np.zeros(0, dtype=np.int32), *(part.astype(np.int32) for part in columns)])
        if self.ngrams.sublinear:
            counted = np.log(counted) + 1
        counted = counted * self.idf.astype(np.float64)[indices]
        return SparseRows(counted, indices, np.array(offsets), len(self.terms)).of_length_one()

    def _words(self, text: str) -> npt.NDArray[np.int64]:
        found = (self._columns.get(term, -1) for term in self.ngrams.of(text))
        return np.array([column for column in found if column >= 0], dtype=np.int64)

    def _characters(self, text: str) -> npt.NDArray[np.int64]:
        # Words are remembered within bounds: a server sees new ones for ever.
        if len(self._of_words) > _MOST_WORDS:
            self._of_words.clear()
        parts = [np.zeros(0, dtype=np.int64)]
        for word in text.split():
            if word not in self._of_words:
                found = (self._columns.get(term, -1) for term in self.ngrams.of_word(word))
                self._of_words[word] = np.array([column for column in found if column >= 0], dtype=np.int64)
            parts.append(self._of_words[word])
        return np.concatenate(parts)


def _texts_with_words(ngrams: Ngrams, texts: Sequence[str]) -> Mapping[str, int]:
    """In how many texts each n-gram of words stands."""
    found: Counter[str] = Counter()
    for text in texts:
        found.update(set(ngrams.of(text)))
    return found


def _texts_with_characters(ngrams: Ngrams, texts: Sequence[str]) -> Mapping[str, int]:
    """In how many texts each n-gram of characters stands; those of a word are looked up once, and kept as numbers."""
    numbers: dict[str, int] = {}
    of_words: dict[str, npt.NDArray[np.int64]] = {}
    found = np.zeros(0, dtype=np.int64)
    for part in in_parts(texts):
        rows = [set(text.split()) for text in part]
        for word in set().union(*rows) - of_words.keys():
            grams = dict.fromkeys(ngrams.of_word(word))
            of_words[word] = np.array([numbers.setdefault(gram, len(numbers)) for gram in grams])
        parts = [of_words[word] for row in rows for word in row]
        if not parts:
            continue
        words_a_row = [len(row) for row in rows]
        row_of_each = np.repeat(np.repeat(np.arange(len(rows)), words_a_row), [len(part) for part in parts])
        # An n-gram of several words of a text counts once.
        distinct = np.unique(row_of_each * len(numbers) + np.concatenate(parts))
        here = np.bincount(distinct % len(numbers), minlength=len(numbers))
        here[: len(found)] += found
        found = here
    return dict(zip(numbers, found.tolist(), strict=True))


def read_ngrams(entry: object, path: Path) -> tuple[Ngrams, list[str]]:
    """The n-grams that an entry of settings names, and their terms.

    Raises:
        CheckpointError: If we do not write such.
    """
    values = dict(entry) if isinstance(entry, dict) else {}
    terms = values.pop("terms", None)
    valid = (
        set(values) == set(Ngrams.__dataclass_fields__)
        and values["unit"] in ("words", "characters")
        and all(isinstance(values[key], int) for key in ("shortest", "longest", "least_texts"))
        and 1 <= values["shortest"] <= values["longest"] <= _LONGEST
        and isinstance(values["sublinear"], bool)
        and isinstance(terms, list)
        and all(isinstance(term, str) for term in terms)
        and len(set(terms)) == len(terms)
        and (terms or values["unit"] == "characters")
    )
    if not valid:
        raise foreign_settings(path)
    return Ngrams(**values), terms
