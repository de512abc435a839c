"""Predictions for every example of a split, on disk; paired tests and reports are computed from them.

A run folder has one file for each split. A packed study has one file with a row group for each run and split, and the
columns ``run`` and ``split`` in front (`recurra.core.packed`). The same functions read both.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
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
# Packed runs have no weights.
_RESTORE = "restore it, or pack the study again"
# STUDY/runs/RUN/predictions/SPLIT.parquet
_DEPTH = 4
SCHEMA = pa.schema([("id", pa.string()), ("label", pa.int64()), ("logits", pa.list_(pa.float32()))])
# For rows with any number of labels.
SEVERAL_LABELS = pa.schema([("id", pa.string()), ("labels", pa.list_(pa.int8())), ("logits", pa.list_(pa.float32()))])


@dataclass(frozen=True, eq=False)
class Predictions:
    """One split's predictions, in the split's order.

    Labels are indices ``(rows,)``, or 0 and 1 ``(rows, labels)``; logits are ``(rows, labels)``.
    """

    ids: list[str]
    labels: npt.NDArray[np.int64]
    logits: npt.NDArray[np.floating[Any]]

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
        return row_key(self.ids, self.labels)

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
        pq.write_table(table, temporary, compression="zstd")


def _lists(values: npt.NDArray[Any]) -> pa.ListArray:
    """A column with a list for each row of ``(rows, numbers)``."""
    rows, width = values.shape
    offsets = np.arange(0, rows * width + 1, width, dtype=np.int32) if rows else np.zeros(1, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values.ravel()))


def read_predictions(folder: Path | str, split_name: str) -> Predictions:
    """Reads the predictions of a split from a run folder."""
    path = predictions_path(folder, split_name)
    table = _read(path)
    if "labels" in table.column_names:
        labels = _matrix(table, path, "labels", np.int8).astype(np.int64)
    else:
        labels = _numbers(table.column("label").combine_chunks(), np.int64)
    return Predictions(table.column("id").to_pylist(), labels, _matrix(table, path))


def _read(path: Path) -> pa.Table:
    """Reads the predictions of a split: a file of its own, or a row group of a packed file."""
    with _explained(path):
        file: pq.ParquetFile | None = None
        with contextlib.suppress(FileNotFoundError):
            file = pq.ParquetFile(path)
        if file is not None:
            with file:
                return _read_groups(path, file, range(file.num_row_groups))
    run, packed = path.parents[1].name, _packed(path)
    group = packed.groups.get((run, path.stem)) if packed else None
    if packed is None or group is None:
        there = {item.stem for item in path.parent.glob("*.parquet")}
        there |= {split for name, split in packed.groups if name == run} if packed else set()
        raise CheckpointError(
            f"'{path}' is missing: no predictions for split '{path.stem}'; there: "
            f"{', '.join(sorted(there)) or 'none'}; evaluate the run again"
        )
    with _explained(packed.path, _RESTORE):
        return _read_groups(path, packed.file, [group])


def _read_groups(path: Path, file: pq.ParquetFile, groups: Sequence[int]) -> pa.Table:
    """Reads row groups of one of our two kinds of tables, which have no empty cells."""
    present = file.schema_arrow.remove_metadata()
    for schema in (SCHEMA, SEVERAL_LABELS):
        if present.equals(schema) or present.equals(_packed_schema(schema)):
            table = file.read_row_groups(groups, columns=schema.names, use_threads=False)
            if any(column.null_count for column in table.columns):
                raise CheckpointError(f"'{path}' has empty cells; evaluate the run again")
            return table
    raise CheckpointError(
        f"'{path}' has the columns {present.names}; predictions need {SCHEMA.names}; evaluate the run again"
    )


@contextlib.contextmanager
def _explained(path: Path, cure: str = "evaluate the run again") -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        # Arrow's own message repeats the path.
        number = getattr(error, "errno", None)
        why = f" as Parquet (damaged?); {cure}" if number is None else f" ({os.strerror(number)}); fix that, or {cure}"
        raise CheckpointError(f"'{path}' cannot be read{why}") from error


@dataclass(frozen=True)
class _Packed:
    """The predictions of a packed study, with the row group of each run and split."""

    path: Path
    file: pq.ParquetFile
    groups: Mapping[tuple[str, str], int]


def _packed_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([("run", pa.string()), ("split", pa.string()), *schema])


def _packed(path: Path) -> _Packed | None:
    """The packed file of the study that the file of a run's split belongs to, if there is one."""
    if len(path.parents) < _DEPTH:
        return None
    file = path.parents[_DEPTH - 1] / PREDICTIONS_NAME
    try:
        state = file.stat()
    except OSError:
        return None
    return _open_packed(file, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=1)
def _open_packed(path: Path, _changed: int, _size: int) -> _Packed:
    with _explained(path, _RESTORE):
        file = pq.ParquetFile(path, memory_map=True)
        groups = {}
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            names = [group.column(column).statistics for column in range(2)]
            if file.schema_arrow.names[:2] != ["run", "split"] or not all(
                name is not None and name.has_min_max and name.min == name.max for name in names
            ):
                raise CheckpointError(f"'{path}' has row groups of several runs or splits; pack the study again")
            groups[names[0].min, names[1].min] = number
    return _Packed(path, file, groups)


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
    schema = _packed_schema(SEVERAL_LABELS if "labels" in _read(next(iter(paths.values()))).column_names else SCHEMA)
    # The file that is replaced is mapped into memory and read while the new one is written.
    with (
        atomic_path(target) as temporary,
        pq.ParquetWriter(
            temporary,
            schema,
            compression="zstd",
            compression_level=9,
            use_dictionary=["run", "split", "label", "labels.list.element"],
            column_encoding={"logits.list.element": "BYTE_STREAM_SPLIT", "id": "DELTA_BYTE_ARRAY"},
        ) as writer,
    ):
        for key, path in sorted(paths.items()):
            table = _read(path)
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
