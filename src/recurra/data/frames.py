"""Labelled rows that a program has in memory: reads them and writes them as files.

They may be a frame of pandas, polars or pyarrow, ``(texts, labels)``, a list of mappings, or a data set of the library
``datasets``. This module imports none of these libraries: a value of theirs means that the program has done so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recurra.core.configuration import content_hash
from recurra.core.errors import DataError, did_you_mean
from recurra.core.files import atomic_path
from recurra.data.columns import check_lengths, is_missing, is_of, kind_of, one_dimension, plain_value, with_article
from recurra.data.formats import check_text, check_unique, missing_column, naming_options, split_names
from recurra.data.labels import AS_JSON, DEFAULT_ID_COLUMN, LABEL_OPTIONS, as_identity, as_word
from recurra.data.tables import MADE_FROM

SPLITS = ("train", "validation", "test")
UNLABELLED = "unlabelled"
KINDS = "a file, a DataFrame, (texts, labels), a list of mappings or a Dataset"

Columns = dict[str, list[Any]]


@dataclass(frozen=True)
class RowsInMemory:
    """Rows from memory in the form that a user's files have.

    ``parts`` holds the columns of each split. Labels are words, or JSON lists of them; missing cells are None.
    """

    parts: dict[str, Columns]
    several: bool
    described: str
    sources: dict[str, str]

    @cached_property
    def names(self) -> dict[str, str]:
        """The name of the file of each split, with a hash of all rows."""
        stem = f"rows-{content_hash(self.parts)}"
        return {split: f"{stem}{'' if split == SPLITS[0] else f'-{split}'}.parquet" for split in self.parts}

    def write(self, folder: Path) -> None:
        """Writes each split as Parquet, unless its file already holds the same rows."""
        for split, columns in self.parts.items():
            path = folder / self.names[split]
            table = pa.table({name: pa.array(cells, pa.string()) for name, cells in columns.items()})
            table = table.replace_schema_metadata({MADE_FROM: self.sources[split].encode("utf-8")})
            if not _holds(path, table):
                with atomic_path(path) as temporary:
                    pq.write_table(table, temporary, compression="zstd")

    def options(self, folder: Path) -> dict[str, Any]:
        """Keys for the configuration of the data: the files, and the label separator if labels are lists."""
        files = {split if split != SPLITS[0] else "name": str(folder / name) for split, name in self.names.items()}
        return {**files, **({"label_separator": AS_JSON} if self.several else {})}


def rows_in_memory(data: Any, options: Mapping[str, Any]) -> RowsInMemory | None:
    """Reads ``data`` and the options ``validation``, ``test``, ``unlabelled``; None if all name files or corpora."""
    inputs = {"train": data, **{split: options.get(split) for split in SPLITS[1:]}}
    inputs = {split: value for split, value in inputs.items() if not isinstance(value, str | Path | None)}
    frames: dict[str, Any] = {}
    for split, value in inputs.items():
        for part, rows in _splits(value, split).items():
            if part in frames or (part != split and options.get(part) is not None):
                raise DataError(f"{part} was given both in the DatasetDict and as {part}=; give one of the two")
            frames[part] = rows
    unlabelled = options.get(UNLABELLED)
    texts = None if isinstance(unlabelled, str | Path | None) else one_dimension(unlabelled, UNLABELLED)
    if not frames and texts is None:
        return None
    text, label = (str(options.get(f"{key}_column") or key) for key in ("text", "label"))
    names = options.get("label_columns") or ()
    label_columns = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    keys = [str(options[key]) for key in ("group_column", "id_column") if options.get(key)]
    texts_named = dict.fromkeys([text, *(name.strip() for name in text.split(","))], "--text-column")
    sources = {split: _source(rows, split) for split, rows in frames.items()}
    with naming_options({**texts_named, label: LABEL_OPTIONS, **dict.fromkeys(label_columns, "--label-columns")}):
        parts = {
            split: _read(rows, sources[split], text, label, label_columns=label_columns, keys=keys)
            for split, rows in frames.items()
        }
    several = any(isinstance(cell, list) for part in parts.values() for cell in part.get(label, ()))
    for split, columns in parts.items() if several else ():
        columns[label] = _as_lists(columns[label], sources[split])
    count = sum(len(next(iter(part.values()))) for part in parts.values())
    described = f"{count:,} rows of a {kind_of(next(iter(inputs.values())))}" if frames else ""
    if texts is not None:
        numbered = enumerate(texts, start=1)
        parts[UNLABELLED] = {
            text: [check_text(cell, UNLABELLED, "text", number) for number, cell in numbered if not is_missing(cell)]
        }
        sources[UNLABELLED] = UNLABELLED
    return RowsInMemory(parts, several, described, sources)


def _splits(value: Any, split: str) -> Mapping[str, Any]:
    if not any(is_of(value, "datasets", name) for name in ("DatasetDict", "IterableDatasetDict")):
        return {split: value}
    names = list(value)
    if split != "train" or "train" not in names:
        raise DataError(f"{'data' if split == 'train' else split} is a DatasetDict of {', '.join(names)}; give a split")
    for name in names:
        if name not in SPLITS:
            hint = did_you_mean(name, [part for part in SPLITS if part not in names])
            raise DataError(
                f"the DatasetDict has a split '{name}'{hint}; allowed: {', '.join(SPLITS)}: rename it, or take it out"
            )
    return dict(value)


def _source(rows: Any, split: str) -> str:
    kind = "(texts, labels)" if isinstance(rows, tuple) else f"the {kind_of(rows)}"
    return kind if split == "train" else f"{kind} of {split}"


def _read(rows: Any, source: str, text: str, label: str, *, label_columns: list[str], keys: list[str]) -> Columns:
    present, column = opened_rows(rows, source, [text, label, *keys])
    texts = split_names(text, present)
    wanted = list(dict.fromkeys([*texts, *(label_columns or [label]), *keys]))
    for name in wanted:
        if name not in present:
            raise missing_column(source, name, present)
    ids = [DEFAULT_ID_COLUMN] if DEFAULT_ID_COLUMN in present and DEFAULT_ID_COLUMN not in wanted else []
    check_unique(source, [*wanted, *ids], present)

    def read(name: str, cell: Any, number: int) -> Any:
        if name in texts:
            return check_text(cell, source, "row", number)
        if name == label and not label_columns:
            return _as_labels(cell, source, number, label)
        as_text = as_identity if name in (*keys, *ids) else as_word
        return as_text(plain_value(cell), source, "row", number, name)

    columns = {
        name: [
            None if is_missing(cell) else read(name, cell, number) for number, cell in enumerate(column(name), start=1)
        ]
        for name in [*wanted, *ids]
    }
    check_lengths(columns, source)
    return columns


def opened_rows(rows: Any, source: str, names: list[str]) -> tuple[list[str], Callable[[str], list[Any]]]:
    """Names of all columns, and a function that returns the cells of one."""
    if isinstance(rows, tuple):
        pair = _pair(rows, source, names)
        return list(pair), pair.__getitem__
    features: Mapping[str, Any] = {}
    if is_of(rows, "datasets", "IterableDataset"):
        features, rows = rows.features or {}, list(rows)
    if isinstance(rows, list) and rows and all(isinstance(row, Mapping) for row in rows):
        listed = rows
        present = list(dict.fromkeys(name for row in listed for name in row))
        return present, lambda name: [*map(_named(features.get(name)), (row.get(name) for row in listed))]
    if isinstance(rows, Mapping) or is_of(rows, "pandas", "DataFrame"):
        frame: Any = rows
        return list(frame.keys()), lambda name: one_dimension(frame[name], name)
    if is_of(rows, "datasets", "Dataset"):
        plain: Any = rows.with_format(None)
        return list(rows.column_names), lambda name: [*map(_named(plain.features[name]), plain[name])]
    if is_of(rows, "polars", "LazyFrame"):
        rows = rows.collect()
    if not hasattr(rows, "__arrow_c_stream__") or not hasattr(rows, "columns"):
        raise DataError(f"{_split_of(source)} is {with_article(kind_of(rows))}; give {KINDS}")
    # Polars, Arrow and every other library with Arrow's interface.
    table = pa.table(rows)
    return list(table.column_names), lambda name: list(table.column(name).to_pylist())


def _split_of(source: str) -> str:
    return source.partition(" of ")[2] or "data"


def _pair(rows: tuple[Any, ...], source: str, names: list[str]) -> dict[str, list[Any]]:
    subject = _split_of(source)
    if len(rows) != 2:
        raise DataError(f"{subject} is a tuple of {len(rows)}; give {KINDS}")
    if len(names) > 2:
        raise DataError(f"the column '{names[2]}' was named, but (texts, labels) have no columns; give a DataFrame")
    texts, labels = one_dimension(rows[0], "texts"), one_dimension(rows[1], "labels")
    if len(texts) != len(labels):
        raise DataError(f"{subject} has {len(texts):,} texts and {len(labels):,} labels; give one label a text")
    return {names[0]: texts, names[1]: labels}


def _named(feature: Any) -> Callable[[Any], Any]:
    """A function that turns numbers of a ``ClassLabel``, or lists of them, into names and leaves other values alone."""
    names = getattr(getattr(feature, "feature", feature), "names", None)
    if not names:
        return lambda cell: cell

    def name(cell: Any) -> Any:
        if isinstance(cell, list):
            return [name(number) for number in cell]
        # Data sets of Hugging Face write -1 for a missing label.
        return None if cell is None or cell < 0 else names[cell]

    return name


def _as_labels(cell: Any, source: str, number: int, column: str) -> str | list[str]:
    if not isinstance(cell, list | tuple | np.ndarray | AbstractSet):
        return as_word(plain_value(cell), source, "row", number, column)
    words = [as_word(value, source, "row", number, column) for value in map(plain_value, cell)]
    # A set has no order, and a hash needs one.
    return sorted(words) if isinstance(cell, AbstractSet) else words


def _as_lists(cells: list[Any], source: str) -> list[Any]:
    for row, cell in enumerate(cells, start=1):
        if isinstance(cell, str):
            raise DataError(
                f"row {row} of {source} has one label, '{cell[:60]}', where others have lists; give each row a list"
            )
    return [json.dumps(cell or [], ensure_ascii=False) for cell in cells]


def _holds(path: Path, table: Any) -> bool:
    # The file's hash is part of a run's name, and must not depend on the object that the same rows came in.
    try:
        return bool(pq.read_table(path).equals(table))
    except (OSError, pa.ArrowException):
        return False
