"""Words of texts: equal texts, texts that stand in others, and words of scripts that write without spaces."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

# A row of fewer words occurs in other rows by chance and gives nothing away.
CONTAINED_WORDS = 3
_ANCHOR_WORDS = 8

_NOT_WORD = re.compile(r"[\W_]+")
# The same for ASCII texts, ten times as fast.
_ASCII_NOT_WORD = {code: " " for code in range(128) if not chr(code).isalnum()}

# Scripts that write without spaces: Thai, Lao, Burmese, Khmer, kana, Han. Runs of four characters stand for words: with
# single ones, 6.5 % of Thai posts were in others by chance (docs/log.md).
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED_CHARACTER = re.compile(f"[{UNSPACED}]")
_UNSPACED_OR_WORD = re.compile(rf"[{UNSPACED}]+|[^\s{UNSPACED}]+")
_LETTERS = re.compile(rf"[\w{UNSPACED}]+")
_CHARACTERS_OF_A_WORD = 4

Words = tuple[str, ...]


def text_identity(text: str) -> str:
    """A key that equal texts share: the words without case, punctuation and spacing; or punctuation, if it is all."""
    if text.isascii():
        return " ".join(text.lower().translate(_ASCII_NOT_WORD).split()) or text.strip()
    return _NOT_WORD.sub(" ", text.casefold()).strip() or text.strip()


def words_of(text: str) -> Words:
    """What spaces separate; of scripts that write without spaces, every four characters in a row."""
    if text.isascii() or not _UNSPACED_CHARACTER.search(text):
        return tuple(text.split())
    words: list[str] = []
    for part in _UNSPACED_OR_WORD.findall(text):
        others = len(part) - _CHARACTERS_OF_A_WORD
        if others <= 0 or not _UNSPACED_CHARACTER.match(part):
            words.append(part)
        else:
            words += [part[start : start + _CHARACTERS_OF_A_WORD] for start in range(others + 1)]
    return tuple(words)


def runs(words: Words, length: int) -> Iterator[Words]:
    """Every run of ``length`` words."""
    return (words[start : start + length] for start in range(len(words) - length + 1))


def texts_inside(queries: Collection[Words], rows: Iterable[Words], least: int) -> Iterator[tuple[int, Words]]:
    """Yields the row's number and the query wherever a row holds a query of at least ``least`` words as a run.

    A query is looked for where its first `_ANCHOR_WORDS` words occur, or the first ``least`` if it has fewer words.
    """
    lengths: dict[Words, set[int]] = defaultdict(set)
    for query in queries:
        if len(query) >= least:
            lengths[query[: _ANCHOR_WORDS if len(query) >= _ANCHOR_WORDS else least]].add(len(query))
    anchors = set(map(len, lengths))
    for number, words in enumerate(rows):
        for anchor in anchors:
            for start, first in enumerate(runs(words, anchor)):
                for length in lengths.get(first, ()):
                    if (run := words[start : start + length]) in queries:
                        yield number, run


def rows_that_give_away(queries: Iterable[str], rows: Iterable[str]) -> set[int]:
    """Finds the rows that equal a query or hold it as a run of three words or more, case and punctuation aside."""
    query_words = set(map(_words, queries))
    equal: set[int] = set()

    def read() -> Iterator[Words]:
        """Yields the words of one row at a time: those of millions of rows would fill the memory."""
        for row, text in enumerate(rows):
            words = _words(text)
            if words in query_words:
                equal.add(row)
            yield words

    return {row for row, _ in texts_inside(query_words, read(), CONTAINED_WORDS)} | equal


def _words(text: str) -> Words:
    return words_of(" ".join(_LETTERS.findall(text.lower())))
