"""Files whose label cell holds any number of labels: with a separator between them, or as a JSON list."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from pydantic import model_validator

from recurra.core.errors import DataError, did_you_mean
from recurra.data.configuration import DataConfig
from recurra.data.corpora import CORPORA
from recurra.data.files import FileTable
from recurra.data.labels import LabelColumn, order_labels

AS_JSON = "json"


class SeveralLabels(LabelColumn):
    """Reads cells with any number of labels; an empty cell or list is a text without any.

    Args:
        separator: What stands between two labels, or ``json``: a cell is a JSON list, or in JSONL a list.
    """

    def __init__(self, separator: str) -> None:
        self.separator = separator

    def read(self, cell: Any, word: Callable[[Any], str]) -> tuple[str, ...]:
        """The labels of a cell, each once, in their order."""
        parts = self._list(cell) if self.separator == AS_JSON else self._parts(cell)
        return tuple(dict.fromkeys(filter(None, map(word, parts))))

    def _parts(self, cell: Any) -> Sequence[Any]:
        if isinstance(cell, list):
            raise ValueError("holds a list; read it with data.label_separator=json")
        return cell.split(self.separator) if isinstance(cell, str) else [cell]

    def _list(self, cell: Any) -> Sequence[Any]:
        if cell is None or (isinstance(cell, str) and not cell.strip()):
            return []
        try:
            found = json.loads(cell) if isinstance(cell, str) else cell
        except ValueError:
            found = None
        if not isinstance(found, list):
            raise ValueError(f'holds {str(cell)[:60]!r}, which is no JSON list; write ["first", "second"] or []')
        return found

    def names(self, table: FileTable, label_column: str) -> list[str]:
        """The label names of a table.

        Raises:
            DataError: If there is one only, or so many that the column can hardly hold labels.
        """
        counts = Counter(label for labels in table.labels for label in labels)
        if len(counts) < 2:
            raise DataError(
                f"'{table.source}' has {len(counts)} different labels in column '{label_column}' with the separator "
                f"'{self.separator}'; at least two are needed"
            )
        if len(counts) > 2 and len(counts) * 2 > len(table):
            raise DataError(
                f"'{table.source}' has {len(counts)} different labels in {len(table)} rows of column '{label_column}'; "
                f"name the right column with --label-column, and the separator, which is '{self.separator}'"
            )
        return order_labels(counts)

    def values(self, table: FileTable, names: Sequence[str]) -> npt.NDArray[np.int64]:
        """0 and 1 a label, ``(rows, labels)``.

        Raises:
            DataError: If a label is not among the names.
        """
        index = {name: position for position, name in enumerate(names)}
        found = np.zeros((len(table), len(names)), dtype=np.int64)
        for row, (labels, place) in enumerate(zip(table.labels, table.places, strict=True)):
            for label in labels:
                if label not in index:
                    raise DataError(
                        f"'{table.source}' {table.unit} {place} has the label '{label[:60]}'"
                        f"{did_you_mean(label, names)}, which the training data lacks; its labels are "
                        f"{', '.join(names[:20])}; correct the label or add training rows that have it"
                    )
                found[row, index[label]] = 1
        return found


class MultiLabelData(DataConfig):
    """A user's file in which a text may have any number of labels.

    Attributes:
        label_separator: What stands between two labels of a cell, such as ``;``, or ``json`` for JSON lists.
    """

    problem_type: ClassVar[str | None] = "multi_label_classification"

    label_separator: str

    @model_validator(mode="after")
    def _own_file(self) -> Self:
        if not self.label_separator.strip():
            raise ValueError("label_separator must not be empty; give ';' or what your file has, or json")
        if self.name in CORPORA:
            raise ValueError(
                f"label_separator is for your own files; the corpus '{self.name}' has one label a text: leave it out"
            )
        return self

    @property
    def labels(self) -> LabelColumn:
        """How the label column is read."""
        return SeveralLabels(self.label_separator)
