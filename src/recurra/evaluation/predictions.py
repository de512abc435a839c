"""Predictions for every example of a split, on disk: what the paired tests and the report are computed from."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from recurra.core.errors import CheckpointError
from recurra.core.files import atomic_path

FOLDER_NAME = "predictions"
SCHEMA = pa.schema([("id", pa.string()), ("label", pa.int64()), ("logits", pa.list_(pa.float32()))])
# Where a row may have any number of labels.
SEVERAL_LABELS = pa.schema([("id", pa.string()), ("labels", pa.list_(pa.int8())), ("logits", pa.list_(pa.float32()))])


@dataclass(frozen=True, eq=False)
class Predictions:
    """One split's predictions, in the split's order.

    Attributes:
        ids: The row's identity; equal ids in two runs are the same example.
        labels: True labels, int64, shape ``(rows,)``; or 0 and 1 a label, ``(rows, labels)``.
        logits: Scores, float32, shape ``(rows, classes)``.
    """

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
    return Path(folder) / FOLDER_NAME / f"{split_name}.parquet"


def write_predictions(
    folder: Path | str,
    split_name: str,
    ids: Sequence[str],
    labels: npt.ArrayLike,
    logits: npt.ArrayLike,
) -> Path:
    """Writes ``predictions/<split>.parquet`` into a run folder, atomically.

    Args:
        folder: The run folder.
        split_name: For example ``test``.
        ids: Identity of each row.
        labels: True labels, shape ``(rows,)``.
        logits: Scores, shape ``(rows, classes)``; stored as float32.

    Returns:
        The file's path.

    Raises:
        StorageError: If it cannot be written.
        ValueError: If the three differ in their number of rows.
    """
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
    """Reads the predictions of a split from a run folder.

    Raises:
        CheckpointError: If the file is missing, damaged or not ours.
    """
    path = predictions_path(folder, split_name)
    with _opened(path) as (_, file):
        table = _without_empty_cells(file.read(use_threads=False), path)
    labels = _numbers(table.column("label").combine_chunks(), np.int64)
    return Predictions(table.column("id").to_pylist(), labels, _matrix(table, path))


def read_several_labels(folder: Path | str, split_name: str) -> Predictions:
    """The same of rows that may have any number of labels.

    Raises:
        CheckpointError: If the file is missing, damaged or not ours.
    """
    path = predictions_path(folder, split_name)
    with _opened(path, SEVERAL_LABELS) as (_, file):
        table = _without_empty_cells(file.read(use_threads=False), path)
    labels = _matrix(table, path, "labels", np.int8).astype(np.int64)
    return Predictions(table.column("id").to_pylist(), labels, _matrix(table, path))


def read_correctness(
    folder: Path | str, split_name: str, known: dict[bytes, tuple[bytes, npt.NDArray[np.int64]]] | None = None
) -> tuple[bytes, npt.NDArray[np.bool_]]:
    """Reads which rows of a split are right, for a comparison of many runs.

    Args:
        folder: The run folder.
        split_name: For example ``test``.
        known: Identifiers and labels that were read before, filled by this function. Most runs of a study were judged
            on the same rows and hold the same bytes for them, which are then not decoded again.

    Returns:
        A hash of identifiers and true labels, in order, equal for runs that were judged on the same rows; and whether
        each row is right, shape ``(rows,)``.

    Raises:
        CheckpointError: If the file is missing, damaged or not ours.
    """
    path = predictions_path(folder, split_name)
    with _opened(path) as (content, file):
        rows = _stored_rows(content, file)
        if known is None or rows not in known:
            table = _without_empty_cells(file.read(use_threads=False), path)
            labels = _numbers(table.column("label").combine_chunks(), np.int64)
            key = hashlib.sha256(len(table).to_bytes(8, "little"))
            for buffer in table.column("id").combine_chunks().buffers()[1:]:
                key.update(buffer or b"")
            key.update(labels.tobytes())
            found = key.digest(), labels
            if known is not None:
                known[rows] = found
        else:
            found = known[rows]
            table = file.read(columns=["logits"], use_threads=False)
        logits = _matrix(_without_empty_cells(table, path), path)
    return found[0], logits.argmax(axis=1) == found[1]


def _stored_rows(content: bytes, file: pq.ParquetFile) -> bytes:
    """Hash of the schema and of the stored bytes of identifiers and labels: equal ones decode to equal rows."""
    metadata = file.metadata
    key = hashlib.sha256(str(file.schema_arrow).encode())
    for group in range(metadata.num_row_groups):
        for number in range(2):
            column = metadata.row_group(group).column(number)
            start = column.dictionary_page_offset or column.data_page_offset
            key.update(content[start : start + column.total_compressed_size])
    return key.digest()


@contextlib.contextmanager
def _opened(path: Path, schema: pa.Schema = SCHEMA) -> Iterator[tuple[bytes, pq.ParquetFile]]:
    """Opens a file of predictions, and says what is wrong with it.

    `pyarrow.parquet.read_table` goes through the dataset layer and a thread pool, which costs more than reading so
    small a file.
    """
    try:
        content = path.read_bytes()
        with pq.ParquetFile(pa.BufferReader(content)) as file:
            if not file.schema_arrow.remove_metadata().equals(schema):
                raise CheckpointError(
                    f"'{path}' has the columns {file.schema_arrow.names}; predictions of ours have {schema.names}; "
                    "evaluate the run again"
                )
            yield content, file
    except FileNotFoundError as error:
        present = ", ".join(sorted(item.stem for item in path.parent.glob("*.parquet"))) or "none"
        raise CheckpointError(
            f"'{path}' is missing: no predictions for split '{path.stem}'; there: {present}; evaluate the run again"
        ) from error
    except (OSError, pa.ArrowException) as error:
        raise CheckpointError(f"'{path}' cannot be read as Parquet (damaged?); evaluate the run again") from error


def _without_empty_cells(table: pa.Table, path: Path) -> pa.Table:
    if any(column.null_count for column in table.columns):
        raise CheckpointError(f"'{path}' has empty cells; evaluate the run again")
    return table


def _matrix(table: pa.Table, path: Path, column: str = "logits", dtype: Any = np.float32) -> npt.NDArray[Any]:
    lists = table.column(column).combine_chunks()
    offsets = _numbers(lists.offsets, np.int32)
    widths = np.diff(offsets)
    if not len(widths):
        return np.empty((0, 0), dtype=dtype)
    if (widths != widths[0]).any():
        found = np.unique(widths).tolist()
        raise CheckpointError(f"'{path}' has rows of {found} {column}; one number is needed; evaluate again")
    values = _numbers(lists.values, dtype)[offsets[0] : offsets[-1]]
    return values.reshape(len(table), int(widths[0]))


def _numbers(array: pa.Array, dtype: Any) -> npt.NDArray[Any]:
    """An array without empty cells as numpy sees it; pyarrow's own conversion imports pandas, half a second."""
    if not len(array):
        return np.empty(0, dtype=dtype)
    size = np.dtype(dtype).itemsize
    return np.frombuffer(array.buffers()[1], dtype=dtype, count=len(array), offset=array.offset * size)
