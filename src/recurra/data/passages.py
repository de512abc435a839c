"""Passages of running text, tokenised once, from which an encoder's states are learned without labels."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from recurra.core.configuration import content_hash
from recurra.core.errors import ConfigurationError, DataError
from recurra.core.progress import Reporter
from recurra.core.sealed import describe_file
from recurra.data.batching import padded_length
from recurra.data.cleaning import clean_text
from recurra.data.configuration import DataConfig
from recurra.data.corpora import CORPORA, SENTENCE_END, load_dataset
from recurra.data.dataset import TextDataset
from recurra.data.encoding import cache_path, cached_arrays, encode_texts
from recurra.data.formats import check_text, split_names
from recurra.data.tables import STREAM_FORMATS, TableFile, check_path
from recurra.data.tokenization import tokenizer_hash
from recurra.data.words import rows_that_give_away, text_identity

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MAX_TOKENS = 128
# Most words of passages, in turn, so that an encoder sees sentences as often as paragraphs; about 120 tokens at most.
PASSAGE_WORDS = (90, 12, 90, 24, 90, 45)
# Passages of all sources together that only measure what was learned.
HELD_OUT = 256
# Passages whose batches are drawn together: enough to make batches of similar length.
ROUND_PASSAGES = 4096
# A source with a larger share of reported texts is refused as a test part.
_MOST_REPORTED = 0.5
_VERSION = 1
_TEST_NAME = re.compile(r"(?:^|[^a-z])(?:test|valid|validation|dev|eval)(?:[^a-z]|$)", re.IGNORECASE)

Ids = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PassageSource:
    """Passages of a file or a corpus.

    ``name`` is not a whole path, because it is published with an encoder. ``left_out`` counts texts and passages that
    equal or hold a reported text. Passage ``i`` is ``input_ids[offsets[i]:offsets[i + 1]]``, with its special tokens.
    """

    name: str
    sha256: str
    texts: int
    left_out: int
    input_ids: Ids
    offsets: Indices

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def plain(self) -> dict[str, Any]:
        """Plain JSON values, without the passages."""
        return {
            "name": self.name,
            "sha256": self.sha256,
            "texts": self.texts,
            "left_out": self.left_out,
            "passages": len(self),
            "tokens": len(self.input_ids),
        }


class Passages:
    """A mix of sources, in batches of similar length.

    A source's share of a round of batches is proportional to the square root of its passages, so that a large source
    does not drown the others. Each is read to its end, in random order, before it is read again. Batches depend on the
    seed and the round alone; no batch has passages that are ``held_out`` (source, passage), or the same in another
    source.

    Raises:
        DataError: If no passage remains to learn from.
    """

    def __init__(self, sources: Sequence[PassageSource], seed: int) -> None:
        self.sources, self._seed = sources, seed
        every = max(2, sum(map(len, sources)) // HELD_OUT)
        self.held_out = [(number, row) for number, source in enumerate(sources) for row in range(0, len(source), every)]
        held_out = {self.row(*position).tobytes() for position in self.held_out}
        self._rows = [
            np.array([row for row in range(len(source)) if self.row(number, row).tobytes() not in held_out], np.int64)
            for number, source in enumerate(sources)
        ]
        if not any(map(len, self._rows)):
            names = ", ".join(f"'{source.name}'" for source in sources)
            raise DataError(
                f"{names}: every passage is held out, and none remains to learn from; give more running text"
            )
        weights = np.sqrt([len(rows) for rows in self._rows])
        self._counts = np.maximum(1, np.round(ROUND_PASSAGES * weights / weights.sum())).astype(int)
        self._counts[[len(rows) == 0 for rows in self._rows]] = 0

    def row(self, source: int, passage: int) -> Ids:
        """Tokens of a passage."""
        offsets = self.sources[source].offsets
        return self.sources[source].input_ids[offsets[passage] : offsets[passage + 1]]

    def batches(self, round_number: int, batch_tokens: int) -> list[list[tuple[int, int]]]:
        """Batches of a round, each a list of (source, passage) of at most ``batch_tokens`` tokens with padding."""
        chosen = [
            (source, int(passage))
            for source, count in enumerate(self._counts)
            for passage in self._drawn(source, round_number * count, (round_number + 1) * count)
        ]
        lengths = [int(np.diff(self.sources[source].offsets[passage : passage + 2])[0]) for source, passage in chosen]
        batches: list[list[tuple[int, int]]] = []
        width = 0
        for index in np.argsort(-np.array(lengths), kind="stable"):
            if not batches or (len(batches[-1]) + 1) * width > batch_tokens:
                batches.append([])
                width = padded_length(lengths[index])
            batches[-1].append(chosen[index])
        order = np.random.default_rng((self._seed, round_number)).permutation(len(batches))
        return [batches[index] for index in order]

    def _drawn(self, source: int, start: int, stop: int) -> Iterator[Any]:
        rows = self._rows[source]
        for reading, positions in itertools.groupby(range(start, stop), key=lambda position: position // len(rows)):
            order = np.random.default_rng((self._seed, source, reading, 1)).permutation(rows)
            yield from order[[position % len(rows) for position in positions]]


def read_passages(
    names: Sequence[str],
    apart: Sequence[str],
    tokenizer: PreTrainedTokenizerFast,
    *,
    text_column: str,
    encoding: str | None = None,
    data_root: Path | None,
    cache_dir: Path | None,
    reporter: Reporter,
) -> list[PassageSource]:
    """Reads texts, cuts them at ends of sentences into passages of at most `MAX_TOKENS` tokens, and tokenises them.

    Texts and passages that equal or hold a text that models are reported on are left out. Reported are the texts of
    ``apart`` (every row where splits are drawn), and the test and validation rows of the corpora in ``names``.
    """
    for name in names:
        _check_training_text(name)

    def texts_of_file(name: str) -> Iterator[str]:
        """Yields the texts of a file; a row may be a whole book."""
        table = TableFile(Path(name), text_column.split(","), encoding=encoding, allowed=STREAM_FORMATS)
        for number, cells in table.rows(split_names(text_column, table.header), ()):
            texts = (cell for cell in cells if isinstance(cell, str))
            yield " ".join(check_text(text, table.source, table.unit, number, longest=None) for text in texts)

    corpora = {name: load_dataset(DataConfig(name=name), data_root) for name in {*names, *apart} if name in CORPORA}
    judged = [
        text
        for name in dict.fromkeys([*apart, *(name for name in names if name in corpora)])
        for text in _reported(name, corpora, texts_of_file, every_row=name not in names)
    ]
    reported = sorted(set(map(text_identity, judged)))
    key = {
        "version": _VERSION,
        "words": PASSAGE_WORDS,
        "column": text_column,
        **({"encoding": encoding} if encoding else {}),
        "tokenizer": tokenizer_hash(tokenizer),
        "reported": hashlib.sha256("\n".join(reported).encode()).hexdigest(),
    }
    sources = []
    for name in names:
        train = corpora[name].splits["train"] if name in corpora else None
        sha256 = describe_file(Path(name)).sha256 if train is None else train.fingerprint
        texts: Iterable[str] = texts_of_file(name) if train is None else train.texts
        path_key = content_hash({**key, "source": sha256})
        path = cache_path(f"passages-{path_key}", cache_dir)
        cut = partial(_cut, name, texts, set(reported), judged, tokenizer, reporter=reporter)
        arrays = cached_arrays(path, ("input_ids", "offsets", "counts"), cut)
        read, left_out = arrays["counts"].tolist()
        source = PassageSource(short_name(name), sha256, read, left_out, arrays["input_ids"], arrays["offsets"])
        reporter.say(
            f"'{name}': {read:,} texts, {len(source):,} passages, {len(source.input_ids):,} tokens; "
            f"{left_out:,} left out that equal or hold a reported text"
        )
        sources.append(source)
    return sources


def short_name(name: str) -> str:
    """A corpus's name, or the last two parts of a path."""
    return "/".join(Path(name).parts[-2:])


def _check_training_text(name: str) -> None:
    if name in CORPORA:
        return
    check_path(Path(name), STREAM_FORMATS)
    if _TEST_NAME.search(Path(name).name):
        raise DataError(
            f"'{name}' is named like a test or validation part, and an encoder that has seen one cannot be evaluated "
            "on it; give training texts, or rename the file if it is not one"
        )


def _reported(
    name: str, corpora: Mapping[str, TextDataset], texts_of_file: Callable[[str], Iterable[str]], *, every_row: bool
) -> Iterable[str]:
    """Texts that are reported on: of a drawn corpus every row, because another seed draws another test part."""
    if name in corpora:
        dataset = corpora[name]
        every_row = every_row and dataset.protocol != "official"
        return (text for part, split in dataset.splits.items() if every_row or part != "train" for text in split.texts)
    if not Path(name).suffix and not Path(name).exists():
        raise ConfigurationError(f"unknown corpus '{name}'; allowed: {', '.join(CORPORA)}, or the path of a file")
    return texts_of_file(name)


def _cut(
    name: str,
    texts: Iterable[str],
    reported: set[str],
    judged: Sequence[str],
    tokenizer: PreTrainedTokenizerFast,
    *,
    reporter: Reporter,
) -> dict[str, npt.NDArray[Any]]:
    reporter.say(f"cutting '{name}' into passages")
    passages: dict[str, None] = {}
    read = equal = 0
    sizes = itertools.cycle(PASSAGE_WORDS)
    for text in map(clean_text, texts):
        read += bool(text)
        if text and text_identity(text) in reported:
            equal += 1
        elif text:
            passages.update(dict.fromkeys(cut_passages(text, sizes)))
    if equal > _MOST_REPORTED * read:
        raise DataError(
            f"{equal:,} of the {read:,} texts of '{name}' are texts that models are evaluated on: it is a test part, "
            "or contains one; give training texts"
        )
    leaking = rows_that_give_away(judged, passages) if judged else set()
    unreported = [passage for row, passage in enumerate(passages) if row not in leaking]
    if not unreported:
        raise DataError(f"'{name}' has {read:,} texts and no passage to learn from; give running text")
    ids, offsets = encode_texts(unreported, tokenizer, MAX_TOKENS)
    return {"input_ids": ids, "offsets": offsets, "counts": np.array([read, equal + len(leaking)])}


def cut_passages(text: str, sizes: Iterator[int]) -> Iterator[str]:
    """Cuts a cleaned text at ends of sentences, and a sentence that is longer than any passage after so many words.

    ``sizes`` gives the maximum number of words of each passage, in turn.
    """
    words: list[str] = []
    size = next(sizes)
    for sentence in SENTENCE_END.split(text):
        new = sentence.split()
        if words and len(words) + len(new) > size:
            yield " ".join(words)
            words, size = [], next(sizes)
        words += new
        start = 0
        while len(words) - start > max(PASSAGE_WORDS):
            yield " ".join(words[start : start + max(PASSAGE_WORDS)])
            start += max(PASSAGE_WORDS)
        words = words[start:]
    if words:
        yield " ".join(words)
