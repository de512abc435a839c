"""Parquet files, whole or in pieces, with errors that name file and column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from recurra.core.errors import DataError
from recurra.data.arrow import pa, pq
from recurra.data.columns import missing_column


def open_parquet(path: Path) -> pq.ParquetFile:
    """Opens a Parquet file.

    Raises:
        DataError: If it is not one, or is cut short.
    """
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).split(".")[0]
        raise DataError(
            f"'{path}' is not a whole Parquet file ({reason}); write it again, or give CSV or JSONL"
        ) from error


def parquet_columns(path: Path) -> list[str]:
    """Names of the columns.

    Raises:
        DataError: If it is not a Parquet file.
    """
    with open_parquet(path) as file:
        return list(file.schema_arrow.names)


def iterate_parquet(path: Path, columns: Sequence[str], batch_rows: int = 4096) -> Iterator[dict[str, list[Any]]]:
    """Yields the values of some columns, a batch of rows at a time, in constant memory.

    Raises:
        DataError: If the file cannot be read or lacks a column.
    """
    with open_parquet(path) as file:
        present = file.schema_arrow.names
        for column in columns:
            if column not in present:
                raise missing_column(path, column, present)
        try:
            for batch in file.iter_batches(batch_size=batch_rows, columns=list(columns)):
                yield {column: batch.column(column).to_pylist() for column in columns}
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"'{path}' is damaged: {str(error).splitlines()[0]}; write the Parquet file again"
            ) from error
        except UnicodeDecodeError as error:
            raise DataError(
                f"'{path}' holds text that is not UTF-8 ({error.reason}); write it again as UTF-8"
            ) from error


def read_parquet_columns(path: Path, columns: Sequence[str]) -> dict[str, list[Any]]:
    """Reads some columns whole.

    Raises:
        DataError: If the file cannot be read or lacks a column.
    """
    values: dict[str, list[Any]] = {column: [] for column in columns}
    for batch in iterate_parquet(path, columns, batch_rows=65_536):
        for column, part in batch.items():
            values[column].extend(part)
    return values


def read_parquet_table(path: Path, columns: Sequence[str]) -> pa.Table:
    """Reads some columns whole, as Arrow holds them: for tables whose rows as Python values would fill the memory.

    Raises:
        DataError: If the file cannot be read or lacks a column.
    """
    with open_parquet(path) as file:
        present = file.schema_arrow.names
        for column in columns:
            if column not in present:
                raise missing_column(path, column, present)
        try:
            return file.read(columns=list(columns))
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"'{path}' is damaged: {str(error).splitlines()[0]}; write the Parquet file again"
            ) from error
