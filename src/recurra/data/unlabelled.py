"""Texts without labels, whose answers by a teacher its students learn; nothing that is reported is among them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from recurra.core.errors import DataError
from recurra.data.cleaning import FIRST, clean_text
from recurra.data.dataset import TextDataset, TextSplit
from recurra.data.reviews import rows_that_give_away, text_identity
from recurra.data.tables import STREAM_FORMATS, TableFile, stream_texts

# A text is asked about in every epoch: more of them are another project.
MOST_ROWS = 2_000_000
_REPEATED, _REPORTED = "unlabelled: repeated, or a training row", "unlabelled: equal to, or holding, a reported row"


# The sentences that are kept of a text: shorter ones say nothing, longer ones are mostly lists or not cut.
SENTENCE_WORDS = (3, 40)
# The end of a sentence: its mark, perhaps a closing quote or bracket, and a blank.
_SENTENCE_END = re.compile(r"""(?<=[.!?])\s+|(?<=[.!?]["')\]])\s+""")


@dataclass(frozen=True)
class UnlabelledSource:
    """Texts of a file or of a corpus.

    Attributes:
        texts: As they were written; read once.
        has_labels: Whether labels of the user stand beside them.
    """

    name: str
    texts: Iterable[str]
    has_labels: bool = False

    @classmethod
    def of_file(cls, path: Path, text_column: str, label_column: str, encoding: str | None = None) -> UnlabelledSource:
        """A file of any format that is read, or ``.txt`` with one text a line."""
        columns = TableFile(path, text_column.split(","), encoding=encoding, allowed=STREAM_FORMATS).columns()
        texts = (text for rows in stream_texts(path, text_column, encoding=encoding) for text in rows)
        return cls(path.name, texts, label_column.casefold() in map(str.casefold, columns))


def sentences_of(text: str) -> list[str]:
    """The sentences of a text that have 3 to 40 words, in their order."""
    low, high = SENTENCE_WORDS
    return [each for each in _SENTENCE_END.split(text) if low <= len(each.split()) <= high]


def with_unlabelled(
    dataset: TextDataset, sources: Sequence[UnlabelledSource], *, sentences: bool = False, clean: str = FIRST
) -> TextDataset:
    """Adds the texts that are new: no training row, no repeat, and nothing that chooses or is reported.

    Raises:
        DataError: If a file cannot be read, there is no new text or more than `MOST_ROWS`, or a file holds rows of a
            reported split beside a column of labels: then it is labelled data that the test part was cut from.
    """
    judged = [text for name, split in dataset.splits.items() if name != "train" for text in split.texts]
    reported = set(map(text_identity, judged))
    known = set(map(text_identity, dataset.splits["train"].texts))
    new: dict[str, str] = {}
    read = 0
    for source in sources:
        equal = 0
        for text in _cleaned(source.texts, clean, sentences=sentences):
            read += 1
            if read > MOST_ROWS:
                raise DataError(f"'{source.name}' takes the texts beyond {MOST_ROWS:,}; give a part of them")
            identity = text_identity(text)
            equal += identity in reported
            if identity not in known:
                new.setdefault(identity, text)
        if equal and source.has_labels:
            raise DataError(
                f"'{source.name}' has {equal:,} rows of the splits that models are judged on, and a column of labels: "
                "it is labelled data; give texts that the test part is no part of"
            )
    found = list(new.values())
    leaking = rows_that_give_away(judged, found)
    leaking |= {row for row, identity in enumerate(new) if identity in reported}
    kept = [text for row, text in enumerate(found) if row not in leaking]
    names = ", ".join(source.name for source in sources)
    if not kept:
        raise DataError(f"'{names}' has {read:,} texts, none of them new; give texts that are no training rows")
    labels = dataset.splits["train"].labels
    split = TextSplit(
        name="unlabelled",
        texts=kept,
        labels=np.zeros((len(kept), *labels.shape[1:]), dtype=np.int64),
        ids=[f"unlabelled-{row}" for row in range(len(kept))],
    )
    left_out = {_REPEATED: read - len(new), _REPORTED: len(leaking)}
    unit = "sentences" if sentences else "texts"
    note = f"{len(kept):,} {unit} without labels ({names}) are there for students of a teacher."
    return replace(
        dataset,
        unlabelled=split,
        dropped={**dataset.dropped, **{reason: rows for reason, rows in left_out.items() if rows}},
        notes=[*dataset.notes, note],
    )


def _cleaned(texts: Iterable[str], clean: str, *, sentences: bool) -> Iterator[str]:
    for text in texts:
        cleaned = clean_text(text, clean)
        yield from sentences_of(cleaned) if sentences else filter(None, [cleaned])
