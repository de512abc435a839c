"""Predictions for every example of a split, on disk: what the paired tests and the report are computed from."""

from __future__ import annotations

from collections.abc import Sequence
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


@dataclass(frozen=True, eq=False)
class Predictions:
    """One split's predictions, in the split's order.

    Attributes:
        ids: The row's identity; equal ids in two runs are the same example.
        labels: True labels, int64, shape ``(rows,)``.
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
    try:
        table = pq.read_table(path)
    except FileNotFoundError as error:
        present = ", ".join(sorted(item.stem for item in path.parent.glob("*.parquet"))) or "none"
        raise CheckpointError(
            f"'{path}' is missing: no predictions for split '{split_name}'; there: {present}; evaluate the run again"
        ) from error
    except (OSError, pa.ArrowException) as error:
        raise CheckpointError(f"'{path}' cannot be read as Parquet (damaged?); evaluate the run again") from error
    if not table.schema.remove_metadata().equals(SCHEMA):
        raise CheckpointError(
            f"'{path}' has the columns {table.schema.names}; predictions of ours have {SCHEMA.names}; "
            "evaluate the run again"
        )
    return Predictions(table.column("id").to_pylist(), _integers(table, path), _matrix(table, path))


def _integers(table: pa.Table, path: Path) -> npt.NDArray[np.int64]:
    column = table.column("label")
    if any(table.column(name).null_count for name in SCHEMA.names):
        raise CheckpointError(f"'{path}' has empty cells; evaluate the run again")
    values: npt.NDArray[Any] = column.to_numpy()
    return values.astype(np.int64, copy=False)


def _matrix(table: pa.Table, path: Path) -> npt.NDArray[np.float32]:
    lists = table.column("logits").combine_chunks()
    widths = np.unique(lists.value_lengths().to_numpy(zero_copy_only=False))
    if len(widths) > 1:
        raise CheckpointError(f"'{path}' has rows of {widths.tolist()} logits; one number is needed; evaluate again")
    values = lists.flatten().to_numpy(zero_copy_only=False)
    return values.astype(np.float32, copy=False).reshape(len(table), int(widths[0]) if len(widths) else 0)
