"""Predictions for every example of a split, on disk; paired tests and reports are computed from them.

A run folder has one file for each split. A packed study has one file with a row group for each run and split, and the
columns ``run`` and ``split`` in front (`recurra.core.packed`). The same functions read both.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from recurra.core.errors import CheckpointError
from recurra.core.files import atomic_path
from recurra.core.packed import PREDICTIONS_NAME, RUNS_NAME

FOLDER_NAME = "predictions"
# STUDY/runs/RUN/predictions/SPLIT.parquet
_DEPTH = 4
SCHEMA = pa.schema([("id", pa.string()), ("label", pa.int64()), ("logits", pa.list_(pa.float32()))])
# For rows with any number of labels.
SEVERAL_LABELS = pa.schema([("id", pa.string()), ("labels", pa.list_(pa.int8())), ("logits", pa.list_(pa.float32()))])
_LABELS = ["label", "labels.list.element"]


@dataclass(frozen=True, eq=False)
class Predictions:
    """One split's predictions, in the split's order.

    Labels are indices ``(rows,)``, or 0 and 1 ``(rows, labels)``; logits are ``(rows, labels)``.
    """

    ids: list[str]
    labels: npt.NDArray[np.int64]
    logits: npt.NDArray[np.floating[Any]]
    known_key: bytes = b""

    @property
    def predicted(self) -> npt.NDArray[np.int64]:
        """Predicted labels, shape ``(rows,)``."""
        return self.logits.argmax(axis=1).astype(np.int64)

    @property
    def correct(self) -> npt.NDArray[np.bool_]:
        """Whether each row is right, shape ``(rows,)``."""
        return self.predicted == self.labels

    @property
    def key(self) -> bytes:
        """Hash of identifiers and true labels, in order: equal for equal rows."""
        return self.known_key or row_key(self.ids, self.labels)

    def __len__(self) -> int:
        return len(self.ids)


def row_key(ids: Sequence[str], labels: npt.NDArray[np.int64]) -> bytes:
    """Hash of identifiers and true labels, in order: equal for equal rows."""
    digest = hashlib.sha256("\0".join(ids).encode("utf-8", "surrogatepass"))
    digest.update(labels.astype(np.int64, copy=False).tobytes())
    return digest.digest()


def predictions_path(folder: Path | str, split_name: str) -> Path:
    """The file with the predictions of a split in a run folder."""
    return Path(folder, FOLDER_NAME, f"{split_name}.parquet")


def write_predictions(
    folder: Path | str, split_name: str, ids: Sequence[str], labels: npt.ArrayLike, logits: npt.ArrayLike
) -> None:
    """Writes ``predictions/<split>.parquet`` into a run folder, atomically; labels as `Predictions` has them."""
    truth = np.asarray(labels, dtype=np.int64)
    several = truth.ndim == 2
    columns = [
        pa.array(list(ids), pa.string()),
        _lists(truth.astype(np.int8)) if several else pa.array(truth),
        _lists(np.ascontiguousarray(logits, dtype=np.float32)),
    ]
    table = pa.Table.from_arrays(columns, schema=SEVERAL_LABELS if several else SCHEMA)
    with atomic_path(predictions_path(folder, split_name)) as temporary:
        # Logits, most of a file, neither repeat nor shrink, and are read twice as fast as they are.
        pq.write_table(table, temporary, use_dictionary=_LABELS, compression=dict.fromkeys(["id", *_LABELS], "zstd"))


def _lists(values: npt.NDArray[Any]) -> pa.ListArray:
    """A column with a list for each row of ``(rows, numbers)``."""
    rows, width = values.shape
    offsets = np.arange(0, rows * width + 1, width, dtype=np.int32) if rows else np.zeros(1, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values.ravel()))


def read_predictions(folder: Path | str, split_name: str) -> Predictions:
    """Reads the predictions of a split from a run folder; runs with equal rows share their identifiers and labels."""
    stored = _find(predictions_path(folder, split_name))
    ids, labels, key = _read_rows(stored)
    return Predictions(ids, labels, _matrix(stored.read(["logits"]), stored.path), key)


@dataclass(frozen=True, eq=False)
class _File:
    """An open file of predictions: of one split of one run, or of a packed study with a row group for each."""

    path: Path
    content: pa.Buffer
    parquet: pq.ParquetFile
    columns: Sequence[str]
    groups: Mapping[tuple[str, str], int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Stored:
    """The predictions of one split of one run. Equal ``rows``, stored bytes, are equal identifiers and labels."""

    rows: bytes
    columns: Sequence[str]
    path: Path = field(compare=False)
    file: _File = field(compare=False)
    groups: Sequence[int] = field(compare=False)

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Reads columns, which have no empty cells."""
        with _explained(self.file.path):
            table = self.file.parquet.read_row_groups(self.groups, columns=columns, use_threads=False)
        if any(column.null_count for column in table.columns):
            raise CheckpointError(f"'{self.path}' has empty cells; evaluate the run again")
        return table


# Folds of some seeds: each seed deals its own.
@lru_cache(maxsize=20)
def _read_rows(stored: _Stored) -> tuple[list[str], npt.NDArray[np.int64], bytes]:
    """Identifiers, labels and key of the rows."""
    _, name, _ = stored.columns
    table = stored.read(["id", name])
    if name == "labels":
        labels = _matrix(table, stored.path, name, np.int8).astype(np.int64)
    else:
        labels = _numbers(table.column(name).combine_chunks(), np.int64)
    ids = table.column("id").to_pylist()
    return ids, labels, row_key(ids, labels)


def _find(path: Path) -> _Stored:
    """Finds the predictions of a split: a file of their own, or a row group of a packed file."""
    with contextlib.suppress(FileNotFoundError):
        file = _open(path)
        return _stored(path, file, range(file.parquet.num_row_groups))
    run, packed = path.parents[1].name, _packed(path)
    if packed is not None and (run, path.stem) in packed.groups:
        return _stored(path, packed, [packed.groups[run, path.stem]])
    there = {item.stem for item in path.parent.glob("*.parquet")}
    there |= {split for name, split in packed.groups if name == run} if packed else set()
    raise CheckpointError(
        f"'{path}' is missing: no predictions for split '{path.stem}'; there: "
        f"{', '.join(sorted(there)) or 'none'}; evaluate the run again"
    )


def _stored(path: Path, file: _File, groups: Sequence[int]) -> _Stored:
    chunks, first = [], len(file.columns) - len(SCHEMA)
    for group in map(file.parquet.metadata.row_group, groups):
        for column in (group.column(first), group.column(first + 1)):
            start = column.dictionary_page_offset or column.data_page_offset
            chunks.append(file.content[start : start + column.total_compressed_size])
    return _Stored(b"".join(chunks), tuple(file.columns[first:]), path, file, groups)


def _open(path: Path, *, packed: bool = False) -> _File:
    """Opens one of our two kinds of tables."""
    with _explained(path):
        content = pa.memory_map(str(path)).read_buffer() if packed else pa.py_buffer(path.read_bytes())
        parquet = pq.ParquetFile(pa.BufferReader(content))
    present = parquet.schema_arrow.remove_metadata()
    for schema in (SCHEMA, SEVERAL_LABELS):
        if present.equals(_packed_schema(schema) if packed else schema):
            return _File(path, content, parquet, present.names)
    needed = (_packed_schema(SCHEMA) if packed else SCHEMA).names
    raise CheckpointError(f"'{path}' has the columns {present.names}; predictions need {needed}; {_cure(path)}")


def _cure(path: Path) -> str:
    return "restore it, or pack the study again" if path.name == PREDICTIONS_NAME else "evaluate the run again"


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException) as error:
        # Arrow's own message repeats the path.
        number = getattr(error, "errno", None)
        cure = _cure(path)
        why = f" as Parquet (damaged?); {cure}" if number is None else f" ({os.strerror(number)}); fix that, or {cure}"
        raise CheckpointError(f"'{path}' cannot be read{why}") from error


def _packed_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([("run", pa.string()), ("split", pa.string()), *schema])


def _packed(path: Path) -> _File | None:
    """The packed file of the study that the file of a run's split belongs to, if there is one."""
    if len(path.parents) < _DEPTH:
        return None
    file = path.parents[_DEPTH - 1] / PREDICTIONS_NAME
    try:
        state = file.stat()
    except OSError:
        return None
    with contextlib.suppress(FileNotFoundError):  # it was packed anew meanwhile
        return _open_packed(file, state.st_mtime_ns, state.st_size)
    return None


@lru_cache(maxsize=1)
def _open_packed(path: Path, _changed: int, _size: int) -> _File:
    file, groups = _open(path, packed=True), {}
    for number in range(file.parquet.num_row_groups):
        group = file.parquet.metadata.row_group(number)
        names = [group.column(column).statistics for column in range(2)]
        if not all(name is not None and name.has_min_max and name.min == name.max for name in names):
            raise CheckpointError(f"'{path}' has row groups of several runs or splits; pack the study again")
        groups[names[0].min, names[1].min] = number
    return replace(file, groups=groups)


def pack_predictions(study: Path, runs: Collection[Path]) -> None:
    """Writes the predictions of runs into a packed study and keeps its other runs; removes the file if none is left.

    The predictions of a run that is itself packed are read from the packed file of its study.
    """
    target = study / PREDICTIONS_NAME
    replaced, packed = {run.name for run in runs}, _packed(predictions_path(study / RUNS_NAME / "_", "_"))
    remaining = [key for key in (packed.groups if packed else ()) if key[0] not in replaced]
    paths = {(name, split): predictions_path(study / RUNS_NAME / name, split) for name, split in remaining}
    for run in runs:
        splits = {file.stem for file in (run / FOLDER_NAME).glob("*.parquet")}
        if (packed := _packed(predictions_path(run, "_"))) is not None:
            splits |= {split for name, split in packed.groups if name == run.name}
        paths |= {(run.name, split): predictions_path(run, split) for split in splits}
    if not paths:
        target.unlink(missing_ok=True)
        return
    several = "labels" in _find(next(iter(paths.values()))).columns
    schema = _packed_schema(SEVERAL_LABELS if several else SCHEMA)
    # The file that is replaced is mapped into memory and read while the new one is written.
    with (
        atomic_path(target) as temporary,
        pq.ParquetWriter(
            temporary,
            schema,
            compression="zstd",
            compression_level=9,
            use_dictionary=["run", "split", *_LABELS],
            column_encoding={"logits.list.element": "BYTE_STREAM_SPLIT", "id": "DELTA_BYTE_ARRAY"},
        ) as writer,
    ):
        for key, path in sorted(paths.items()):
            stored = _find(path)
            table = stored.read(stored.columns)
            _matrix(table, path)
            names = [pa.array([name] * len(table), pa.string()) for name in key]
            writer.write_table(pa.Table.from_arrays([*names, *table.columns], schema=schema), len(table))


def _matrix(table: pa.Table, path: Path, column: str = "logits", dtype: Any = np.float32) -> npt.NDArray[Any]:
    lists = table.column(column).combine_chunks()
    offsets = _numbers(lists.offsets, np.int32)
    widths = offsets[1:] - offsets[:-1]
    if not len(widths):
        return np.empty((0, 0), dtype=dtype)
    if (widths != widths[0]).any():
        raise CheckpointError(
            f"'{path}' has rows of {np.unique(widths).tolist()} {column}; one number is needed; evaluate again"
        )
    values = _numbers(lists.values, dtype)[offsets[0] : offsets[-1]]
    return values.reshape(len(table), int(widths[0]))


def _numbers(array: pa.Array, dtype: Any) -> npt.NDArray[Any]:
    """An array without empty cells as a numpy view; pyarrow's own conversion imports pandas, which takes 0.5 s."""
    if not len(array):
        return np.empty(0, dtype=dtype)
    size = np.dtype(dtype).itemsize
    return np.frombuffer(array.buffers()[1], dtype=dtype, count=len(array), offset=array.offset * size)
