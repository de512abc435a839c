"""Labelled rows that a program has in memory: read from what people have them in, and kept as files.

A DataFrame, ``(texts, labels)``, or a ``Dataset`` or ``DatasetDict`` of the library ``datasets``. Neither pandas nor
datasets is imported: what is one of theirs comes with its library.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recurra.core.configuration import content_hash
from recurra.core.errors import DataError, did_you_mean
from recurra.core.files import atomic_path
from recurra.data.columns import check_unique, missing_column
from recurra.data.files import DEFAULT_ID_COLUMN, as_word, check_text
from recurra.data.multilabel import AS_JSON

SPLITS = ("train", "validation", "test")
UNLABELLED = "unlabelled"
KINDS = "a file, a DataFrame, (texts, labels) or a Dataset"

Columns = dict[str, list[Any]]


@dataclass(frozen=True)
class RowsInMemory:
    """Rows in memory as files of a user would have them.

    Attributes:
        parts: Columns by split, and of texts without labels. Labels are words (JSON lists of them where rows have any
            number of labels); groups and ids are there where they came. Missing cells are none.
        several: Whether rows have any number of labels.
        described: What they came in, for the heading of a report.
    """

    parts: dict[str, Columns]
    several: bool
    described: str

    def files(self, folder: Path) -> dict[str, Path]:
        """Where `write` puts each split in a folder: the names hold a hash of all rows."""
        stem = f"rows-{content_hash(self.parts)}"
        names = {split: stem if split == SPLITS[0] else f"{stem}-{split}" for split in self.parts}
        return {split: folder / f"{name}.parquet" for split, name in names.items()}

    def write(self, folder: Path) -> None:
        """Writes each split as Parquet, unless it lies there already.

        Raises:
            StorageError: If a file cannot be written.
        """
        for split, path in self.files(folder).items():
            table = pa.table({name: pa.array(cells, pa.string()) for name, cells in self.parts[split].items()})
            if not _holds(path, table):
                with atomic_path(path) as temporary:
                    pq.write_table(table, temporary, compression="zstd")

    def options(self, folder: Path) -> dict[str, Any]:
        """What the configuration of the data says of them: the files, and that labels are lists if they are."""
        names = {split if split != SPLITS[0] else "name": str(path) for split, path in self.files(folder).items()}
        return {**names, **({"label_separator": AS_JSON} if self.several else {})}


def rows_in_memory(data: Any, options: Mapping[str, Any]) -> RowsInMemory | None:
    """Reads what came as data, and as ``validation``, ``test`` and ``unlabelled`` among the options.

    Args:
        data: Of any kind. The splits of a ``DatasetDict`` are taken as they are.
        options: Keys of the configuration of data; ``text_column``, ``label_column`` and ``group_column`` say what is
            read.

    Returns:
        None if all are files, or a corpus by its name.

    Raises:
        DataError: If something is of another kind, a column is missing, or a cell is none that a file could have.
    """
    given = {"train": data, **{split: options.get(split) for split in SPLITS[1:]}}
    given = {split: value for split, value in given.items() if not isinstance(value, str | Path | None)}
    text, label = (str(options.get(f"{key}_column") or key) for key in ("text", "label"))
    found: dict[str, Any] = {}
    for split, value in given.items():
        for part, rows in _splits(value, split).items():
            if part in found or (part != split and options.get(part) is not None):
                raise DataError(f"{part} came both in the DatasetDict and as {part}=; give one of the two")
            found[part] = rows
    more = options.get(UNLABELLED)
    texts = None if isinstance(more, str | Path | None) else one_dimension(more, UNLABELLED)
    if not found and texts is None:
        return None
    parts = {split: _read(rows, split, text, label, options.get("group_column")) for split, rows in found.items()}
    several = any(isinstance(cell, list) for part in parts.values() for cell in part[label])
    for name, columns in parts.items() if several else ():
        columns[label] = _as_lists(columns[label], name)
    count = sum(len(part[text]) for part in parts.values())
    described = f"{count:,} rows of a {_kind(next(iter(given.values())))}" if found else ""
    if texts is not None:
        present = enumerate(texts, start=1)
        parts[UNLABELLED] = {
            text: [_as_text(cell, UNLABELLED, "text", place, text) for place, cell in present if not is_missing(cell)]
        }
    return RowsInMemory(parts, several, described)


def one_dimension(values: Any, what: str) -> list[Any]:
    """Plain values of a list, an array, a Series or another column.

    Args:
        values: Of any kind.
        what: Their name, for messages.

    Raises:
        DataError: If it is no column of values.
    """
    listed = isinstance(values, list | tuple) or hasattr(values, "__array__") or _is_of(values, "datasets", "Column")
    if not listed:
        raise DataError(f"{what} is {_a(_kind(values))}; give a list, an array or a Series")
    if not hasattr(values, "__iter__"):
        values = np.asarray(values)
    if getattr(values, "ndim", 1) != 1:
        raise DataError(f"{what} has the shape {tuple(values.shape)}; give one column of values")
    return [*map(_plain, values)]


def is_missing(cell: Any) -> bool:
    """Whether a cell holds nothing: None, NaN, or what pandas writes for it."""
    return (
        cell is None or (isinstance(cell, float) and math.isnan(cell)) or type(cell).__name__ in ("NAType", "NaTType")
    )


def _kind(value: Any) -> str:
    return "pair (texts, labels)" if isinstance(value, tuple) else type(value).__name__


def _a(noun: str) -> str:
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"


def _is_of(value: Any, library: str, name: str) -> bool:
    """Whether a value is of a class of a library, which is not imported for the question."""
    found = getattr(sys.modules.get(library), name, None)
    return isinstance(found, type) and isinstance(value, found)


def _splits(value: Any, split: str) -> Mapping[str, Any]:
    if not _is_of(value, "datasets", "DatasetDict"):
        return {split: value}
    names = list(value)
    if split != "train" or "train" not in names:
        raise DataError(f"{'data' if split == 'train' else split} is a DatasetDict of {', '.join(names)}; give a split")
    for name in names:
        if name not in SPLITS:
            close = did_you_mean(name, [part for part in SPLITS if part not in names])
            raise DataError(
                f"the DatasetDict has a split '{name}'{close}; allowed: {', '.join(SPLITS)}: rename it, or take it out"
            )
    return dict(value)


def _read(rows: Any, split: str, text: str, label: str, group: str | None) -> Columns:
    """The columns of a split that are read, as words and texts."""
    columns, source = _columns(rows, split, [text, label, *([group] if group else [])])
    readers = {text: _as_text, label: _as_labels}
    return {
        name: [
            None if is_missing(cell) else readers.get(name, as_word)(cell, source, "row", place, name)
            for place, cell in enumerate(cells, start=1)
        ]
        for name, cells in columns.items()
    }


def _columns(rows: Any, split: str, names: list[str]) -> tuple[dict[str, list[Any]], str]:
    """The cells of the named columns, and of ``id`` if there is one; and what messages call the rows."""
    shown = "data" if split == "train" else split
    if isinstance(rows, tuple):
        return _pair(rows, shown, names), shown
    is_frame = _is_of(rows, "pandas", "DataFrame")
    if not is_frame and not _is_of(rows, "datasets", "Dataset"):
        raise DataError(f"{shown} is {_a(_kind(rows))}; give {KINDS}")
    present = list(rows.columns if is_frame else rows.column_names)
    source = f"{_kind(rows)} {shown}"
    for name in names:
        if name not in present:
            raise missing_column(source, name, present)
    wanted = list(dict.fromkeys([*names, *([DEFAULT_ID_COLUMN] if DEFAULT_ID_COLUMN in present else [])]))
    check_unique(source, wanted, present)
    if is_frame:
        return {name: one_dimension(rows[name], name) for name in wanted}, source
    cells = rows.select_columns(wanted).with_format(None)[:]
    return {name: [*map(_named(rows.features[name]), cells[name])] for name in wanted}, source


def _pair(rows: tuple[Any, ...], shown: str, names: list[str]) -> dict[str, list[Any]]:
    if len(rows) != 2:
        raise DataError(f"{shown} is a tuple of {len(rows)}; give {KINDS}")
    if len(names) > 2:
        raise DataError(f"group_column is '{names[2]}', and (texts, labels) have no columns; give a DataFrame")
    texts, labels = one_dimension(rows[0], "texts"), one_dimension(rows[1], "labels")
    if len(texts) != len(labels):
        raise DataError(f"{shown} has {len(texts):,} texts and {len(labels):,} labels; give one label a text")
    return {names[0]: texts, names[1]: labels}


def _named(feature: Any) -> Callable[[Any], Any]:
    """Makes names of the numbers of a ``ClassLabel``, or of a list of them; leaves all else as it is."""
    names = getattr(getattr(feature, "feature", feature), "names", None)
    if not names:
        return lambda cell: cell

    def name(cell: Any) -> Any:
        if isinstance(cell, list):
            return [name(each) for each in cell]
        # Hugging Face's data sets write -1 for a label that is not given.
        return None if cell is None or cell < 0 else names[cell]

    return name


def _as_text(cell: Any, source: str, unit: str, place: int, _column: str | None) -> str:
    return check_text(cell, source, unit, place)


def _as_labels(cell: Any, source: str, unit: str, place: int, column: str | None) -> str | list[str]:
    if not isinstance(cell, list | tuple | np.ndarray | AbstractSet):
        return as_word(cell, source, unit, place, column)
    words = [as_word(each, source, unit, place, column) for each in map(_plain, cell)]
    # A set has no order, and a hash needs one.
    return sorted(words) if isinstance(cell, AbstractSet) else words


def _plain(cell: Any) -> Any:
    return cell.item() if isinstance(cell, np.generic) else cell


def _as_lists(cells: list[Any], split: str) -> list[Any]:
    for place, cell in enumerate(cells, start=1):
        if isinstance(cell, str):
            raise DataError(
                f"row {place} of {split} has the one label '{cell[:60]}' where others have lists; give each row a list"
            )
    return [json.dumps(cell or [], ensure_ascii=False) for cell in cells]


def _holds(path: Path, table: Any) -> bool:
    """Whether a file holds just this table; one that cannot be read does not."""
    try:
        return bool(pq.read_table(path).equals(table))
    except (OSError, pa.ArrowException):
        return False
