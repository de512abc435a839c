"""Names of classes: their order, and what makes a label column unusable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from recurra.core.errors import DataError, did_you_mean
from recurra.data.files import FileTable
from recurra.data.spellings import looks_missing, spelling_key

NEGATIVE_WORDS = frozenset({"negative", "neg", "bad", "no", "false", "dislike", "unhappy", "fail", "-"})
POSITIVE_WORDS = frozenset({"positive", "pos", "good", "yes", "true", "like", "happy", "pass", "+"})


class LabelColumn:
    """How the cells of a label column are read: one label a row."""

    def read(self, cell: Any, word: Callable[[Any], str]) -> Any:
        """What a row's labels are; the empty text if there is none where one is needed.

        Args:
            cell: As it stands in the file.
            word: Makes a word of a part of it.

        Raises:
            DataError: If a part of it is no word.
            ValueError: If it is nothing that labels can be read from; the reader adds the place.
        """
        return word(cell)

    def names(self, table: FileTable, label_column: str) -> list[str]:
        """The label names of a table; see `label_names`."""
        return label_names(table, label_column)

    def values(self, table: FileTable, names: Sequence[str]) -> npt.NDArray[np.int64]:
        """The labels of its rows as numbers; see `label_indices`."""
        return label_indices(table, names)


def order_labels(labels: Collection[str]) -> list[str]:
    """Returns the class names in the order of their indices.

    Whole numbers are in numeric order. Of two words that are a known negative and a known positive one, the negative
    is first, so that precision and recall are those of the positive class. Everything else is in sorted order.
    """
    names = set(labels)
    if len(names) == 2:
        by_sense = sorted(names, key=lambda name: name.casefold() in POSITIVE_WORDS)
        if by_sense[0].casefold() in NEGATIVE_WORDS and by_sense[1].casefold() in POSITIVE_WORDS:
            return by_sense
    if all(name.removeprefix("-").isdecimal() for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def label_names(table: FileTable, label_column: str) -> list[str]:
    """Returns the class names of a table.

    Raises:
        DataError: If there is one class only, or so many that the column can hardly be a label.
    """
    counts = Counter(table.labels)
    if len(counts) < 2:
        only = next(iter(counts))
        raise DataError(
            f"'{table.source}' has one class only: all {len(table)} rows have the label '{only[:60]}' in column "
            f"'{label_column}'; a classifier needs at least two"
        )
    if len(counts) > 2 and len(counts) * 2 > len(table):
        raise DataError(
            f"'{table.source}' has {len(counts)} different labels in {len(table)} rows of column '{label_column}'; "
            "name the right column with --label-column"
        )
    return order_labels(counts)


def label_indices(table: FileTable, names: Sequence[str]) -> npt.NDArray[np.int64]:
    """Returns the index of each row's label, shape ``(rows,)``.

    Raises:
        DataError: If a label is not among the names.
    """
    index = {name: position for position, name in enumerate(names)}
    for label, place in zip(table.labels, table.places, strict=True):
        if label not in index:
            key = spelling_key(label)
            joins = any(spelling_key(name) == key for name in names) and not looks_missing(label)
            raise DataError(
                f"'{table.source}' {table.unit} {place} has the label '{label[:60]}'{did_you_mean(label, names)}, "
                f"which the training data lacks; its labels are {', '.join(names[:20])}; "
                f"correct the label{', train with data.join_labels=true' if joins else ''} or add training rows that "
                "have it"
            )
    return np.fromiter((index[label] for label in table.labels), dtype=np.int64, count=len(table))
