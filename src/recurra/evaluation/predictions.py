"""Predictions for every example of a split, on disk: what the paired tests and the report are computed from.

A run folder has a file a split; a packed study one file with a row group for each run and split, with the columns
``run`` and ``split`` in front (`recurra.core.packed`). Either is read by the same functions.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
# Where a row may have any number of labels.
SEVERAL_LABELS = pa.schema([("id", pa.string()), ("labels", pa.list_(pa.int8())), ("logits", pa.list_(pa.float32()))])


@dataclass(frozen=True, eq=False)
class Predictions:
    """One split's predictions, in the split's order."""

    ids: list[str]
    labels: npt.NDArray[np.int64]
    logits: npt.NDArray[np.float32]

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
        found = hashlib.sha256("\0".join(self.ids).encode("utf-8", "surrogatepass"))
        found.update(self.labels.tobytes())
        return found.digest()

    def __len__(self) -> int:
        return len(self.ids)


def predictions_path(folder: Path | str, split_name: str) -> Path:
    """Where the predictions of a split lie in a run folder."""
    return Path(folder, FOLDER_NAME, f"{split_name}.parquet")


def write_predictions(
    folder: Path | str,
    split_name: str,
    ids: Sequence[str],
    labels: npt.ArrayLike,
    logits: npt.ArrayLike,
) -> Path:
    """Writes ``predictions/<split>.parquet`` into a run folder, atomically."""
    scores = np.ascontiguousarray(logits, dtype=np.float32)
    truth = np.asarray(labels, dtype=np.int64)
    if scores.ndim != 2 or not len(ids) == len(truth) == len(scores):
        raise ValueError(f"predictions differ in rows: {len(ids)} ids, {truth.shape} labels, {scores.shape} logits")
    rows, classes = scores.shape
    offsets = np.arange(0, rows * classes + 1, classes, dtype=np.int32) if rows else np.zeros(1, dtype=np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(scores.ravel()))
    table = pa.Table.from_arrays([pa.array(list(ids), pa.string()), pa.array(truth), lists], schema=SCHEMA)
    path = predictions_path(folder, split_name)
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")
    return path


def read_predictions(folder: Path | str, split_name: str) -> Predictions:
    """Reads the predictions of a split from a run folder."""
    path = predictions_path(folder, split_name)
    with _opened(path) as stored:
        table = stored.read(stored.schema.names)
    several = stored.schema is SEVERAL_LABELS
    labels = _matrix(table, path, "labels", np.int8).astype(np.int64) if several else _labels(table)
    return Predictions(table.column("id").to_pylist(), labels, _matrix(table, path))


def read_correctness(
    folder: Path | str, split_name: str, known: dict[bytes, tuple[bytes, npt.NDArray[np.int64]]] | None = None
) -> tuple[bytes, npt.NDArray[np.bool_]]:
    """Reads which rows of a split are right, for a comparison of many runs.

    Args:
        known: Identifiers and labels that were read before, filled by this function. Most runs of a study were judged
            on the same rows and hold the same bytes for them, which are then not decoded again.
    """
    path = predictions_path(folder, split_name)
    with _opened(path) as stored:
        rows = stored.bytes_of_rows()
        if known is None or rows not in known:
            table = stored.read(SCHEMA.names)
            labels = _labels(table)
            key = hashlib.sha256(len(table).to_bytes(8, "little"))
            for buffer in table.column("id").combine_chunks().buffers()[1:]:
                key.update(buffer or b"")
            key.update(labels.tobytes())
            found = key.digest(), labels
            if known is not None:
                known[rows] = found
        else:
            found = known[rows]
            table = stored.read(["logits"])
        logits = _matrix(table, path)
    # Of two labels a comparison takes a fifth of the time.
    said = logits[:, 1] > logits[:, 0] if logits.shape[1] == 2 else logits.argmax(axis=1)
    return found[0], said == found[1]


@dataclass(frozen=True)
class _Stored:
    """One split of one run: a file of its own, or some row groups of a packed file; ``first`` is the column ``id``."""

    path: Path
    content: mmap.mmap | bytes
    file: pq.ParquetFile
    groups: Sequence[int]
    first: int
    schema: pa.Schema

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Some columns, without empty cells."""
        table = self.file.read_row_groups(self.groups, columns=list(columns), use_threads=False)
        if any(column.null_count for column in table.columns):
            raise CheckpointError(f"'{self.path}' has empty cells; evaluate the run again")
        return table

    def bytes_of_rows(self) -> bytes:
        """The stored bytes of identifiers and labels: equal ones decode to equal rows."""
        metadata, parts = self.file.metadata, []
        for group in map(metadata.row_group, self.groups):
            for column in (group.column(self.first), group.column(self.first + 1)):
                start = column.dictionary_page_offset or column.data_page_offset
                parts.append(self.content[start : start + column.total_compressed_size])
        return b"".join(parts)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[_Stored]:
    """Opens the predictions of a split, in less time than `pyarrow.parquet.read_table` takes to begin."""
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        packed = _packed(path)
        group = packed.groups.get((path.parents[1].name, path.stem)) if packed else None
        if packed is None or group is None:
            there = {item.stem for item in path.parent.glob("*.parquet")}
            there |= {split for run, split in packed.groups if run == path.parents[1].name} if packed else set()
            raise CheckpointError(
                f"'{path}' is missing: no predictions for split '{path.stem}'; there: "
                f"{', '.join(sorted(there)) or 'none'}; evaluate the run again"
            ) from error
        with _explained(packed.path):
            schema = _known_schema(packed.path, packed.file.schema_arrow, 2)
            yield _Stored(path, packed.content, packed.file, [group], 2, schema)
        return
    except OSError as error:
        raise CheckpointError(f"'{path}' cannot be read ({error.strerror or error}); evaluate the run again") from error
    with _explained(path), pq.ParquetFile(pa.BufferReader(content)) as file:
        schema = _known_schema(path, file.schema_arrow, 0)
        yield _Stored(path, content, file, range(file.num_row_groups), 0, schema)


def _known_schema(path: Path, found: pa.Schema, first: int) -> pa.Schema:
    """Which of our two kinds of tables a file holds, ``first`` columns aside."""
    for schema in (SCHEMA, SEVERAL_LABELS):
        if found.remove_metadata().equals(_packed_schema(schema) if first else schema):
            return schema
    raise CheckpointError(
        f"'{path}' has the columns {found.names}; predictions of ours have {SCHEMA.names}; evaluate the run again"
    )


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise CheckpointError(f"'{path}' cannot be read as Parquet (damaged?); evaluate the run again") from error


@dataclass(frozen=True)
class _Packed:
    """The predictions of a packed study, with the row group of each run and split."""

    path: Path
    content: mmap.mmap
    file: pq.ParquetFile
    groups: Mapping[tuple[str, str], int]


def _packed_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([("run", pa.string()), ("split", pa.string()), *schema])


def _packed(path: Path) -> _Packed | None:
    """The packed file that stands in for the file of a run's split."""
    if len(path.parents) < _DEPTH:
        return None
    file = path.parents[_DEPTH - 1] / PREDICTIONS_NAME
    try:
        state = file.stat()
    except OSError:
        return None
    return _open_packed(file, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=1)
def _open_packed(path: Path, _changed: int, size: int) -> _Packed:
    if not size:
        raise CheckpointError(f"'{path}' is empty; restore it, or pack the study again")
    with path.open("rb") as stream:
        content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    with _explained(path):
        file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(content)))
        groups = {}
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            found = [group.column(column).statistics for column in range(2)]
            if file.schema_arrow.names[:2] != ["run", "split"] or not all(
                item is not None and item.has_min_max and item.min == item.max for item in found
            ):
                raise CheckpointError(f"'{path}' has row groups of several runs or splits; pack the study again")
            groups[found[0].min, found[1].min] = number
    return _Packed(path, content, file, groups)


def pack_predictions(study: Path, runs: Collection[Path]) -> None:
    """Writes the predictions of run folders into a packed study, whose other runs stay; nothing if there are none."""
    target = study / PREDICTIONS_NAME
    new = [file for run in runs for file in (run / FOLDER_NAME).glob("*.parquet")]
    places = {(file.parents[1].name, file.stem): file for file in new}
    replaced = {run.name for run in runs}
    old = _packed(predictions_path(study / RUNS_NAME / "_", "_"))
    for run, split in old.groups if old else ():
        if run not in replaced:
            places[run, split] = predictions_path(study / RUNS_NAME / run, split)
    if not places:
        target.unlink(missing_ok=True)
        return
    with _opened(next(iter(places.values()))) as stored:
        schema = stored.schema
    # What is written is read until the end: the file that is replaced is mapped into memory.
    with (
        atomic_path(target) as temporary,
        pq.ParquetWriter(
            temporary,
            _packed_schema(schema),
            compression="zstd",
            compression_level=9,
            use_dictionary=["run", "split", "label", "labels.list.element"],
            column_encoding={"logits.list.element": "BYTE_STREAM_SPLIT", "id": "DELTA_BYTE_ARRAY"},
        ) as writer,
    ):
        for (run, split), path in sorted(places.items()):
            with _opened(path) as stored:
                table = stored.read(schema.names)
            _matrix(table, path)
            names = [pa.array([name] * len(table), pa.string()) for name in (run, split)]
            writer.write_table(
                pa.Table.from_arrays([*names, *table.columns], schema=_packed_schema(schema)), len(table)
            )


def _matrix(table: pa.Table, path: Path, column: str = "logits", dtype: Any = np.float32) -> npt.NDArray[Any]:
    lists = _whole(table, column)
    offsets = _numbers(lists.offsets, np.int32)
    widths = offsets[1:] - offsets[:-1]
    if not len(widths):
        return np.empty((0, 0), dtype=dtype)
    if (widths != widths[0]).any():
        found = np.unique(widths).tolist()
        raise CheckpointError(f"'{path}' has rows of {found} {column}; one number is needed; evaluate again")
    values = _numbers(lists.values, dtype)[offsets[0] : offsets[-1]]
    return values.reshape(len(table), int(widths[0]))


def _labels(table: pa.Table) -> npt.NDArray[np.int64]:
    labels: npt.NDArray[np.int64] = _numbers(_whole(table, "label"), np.int64)
    return labels


def _whole(table: pa.Table, column: str) -> pa.Array:
    """A column in one piece, without a copy where it is one already."""
    found = table.column(column)
    return found.chunk(0) if found.num_chunks == 1 else found.combine_chunks()


def _numbers(array: pa.Array, dtype: Any) -> npt.NDArray[Any]:
    """An array without empty cells as numpy sees it; pyarrow's own conversion imports pandas, half a second."""
    if not len(array):
        return np.empty(0, dtype=dtype)
    size = np.dtype(dtype).itemsize
    return np.frombuffer(array.buffers()[1], dtype=dtype, count=len(array), offset=array.offset * size)
