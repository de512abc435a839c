"""Parquet files, whole or in pieces, with errors that name file and column.

A text that stands in many rows is stored once, so a file of a kilobyte can hold any number of gigabytes. Texts stay
folded while a file is read in pieces, and a file that is read whole may unfold to `MAX_UNFOLDED_BYTES`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recurra.core.errors import DataError
from recurra.data.formats import check_unique, missing_column

# Of the columns that are read, with every text counted as often as it stands there: nine million reviews of 400
# characters. A row counts for more than its text, because as Python values it takes more.
MAX_UNFOLDED_BYTES = 4 * 10**9
ROW_BYTES = 64

_PLAIN_ENCODINGS = frozenset({"PLAIN", "RLE", "BIT_PACKED", "DELTA_LENGTH_BYTE_ARRAY"})
_FOLDING_ENCODINGS = frozenset({"PLAIN", "RLE", "BIT_PACKED", "PLAIN_DICTIONARY", "RLE_DICTIONARY"})
# Of one batch of a column that Arrow cannot give folded.
_UNFOLDED_BATCH_BYTES = 2**26
_SUSPECT_BYTES = 2**29
_MOST_COMPRESSION = 1000


def open_parquet(path: Path) -> pq.ParquetFile:
    """Opens a Parquet file.

    Raises:
        DataError: If it is not one, or is cut short.
    """
    try:
        file = pq.ParquetFile(path)
        # Names stand there once more for each group of rows, and are decoded when they are asked for.
        for group in range(file.metadata.num_row_groups):
            for column in range(file.metadata.num_columns):
                _ = file.metadata.row_group(group).column(column).path_in_schema
        return file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
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

    A text that the file holds once for many rows is one object in all rows of a batch.

    Raises:
        DataError: If the file cannot be read, lacks a column or has one twice.
    """
    # One column may serve twice, as label and group for example.
    columns = list(dict.fromkeys(columns))
    for batch in _batches(path, columns, batch_rows):
        with _damage(path):
            values = {column: _values(batch.column(column)) for column in columns}
        yield values


def read_parquet_columns(path: Path, columns: Sequence[str]) -> dict[str, list[Any]]:
    """Reads some columns whole.

    Raises:
        DataError: If the file cannot be read, lacks a column or has one twice, or unfolds to more than
            `MAX_UNFOLDED_BYTES`.
    """
    check_unfolded(path, columns)
    values: dict[str, list[Any]] = {column: [] for column in columns}
    for batch in iterate_parquet(path, columns, batch_rows=65_536):
        for column, part in batch.items():
            values[column].extend(part)
    return values


def read_parquet_table(path: Path, columns: Sequence[str]) -> pa.Table:
    """Reads some columns whole, as Arrow holds them: for tables whose rows as Python values would fill the memory.

    Raises:
        DataError: If the file cannot be read, lacks a column or has one twice, or unfolds to more than
            `MAX_UNFOLDED_BYTES`.
    """
    check_unfolded(path, columns)
    with open_parquet(path) as file, _damage(path):
        return file.read(columns=list(columns))


def check_single_values(path: Path, columns: Sequence[str]) -> None:
    """Refuses columns whose values are none of a table: lists, records, blocks of bytes. They unfold without bound.

    Raises:
        DataError: With the type; or if the file cannot be read, lacks a column or has one twice.
    """
    with open_parquet(path) as file:
        _check_columns(file, path, columns)
        kinds = {column: file.schema_arrow.field(column).type for column in columns}
    for column, kind in kinds.items():
        if pa.types.is_nested(kind) or pa.types.is_fixed_size_binary(kind):
            raise DataError(f"'{path}' column '{column}' holds {kind}; give a column of words or numbers")


def check_unfolded(path: Path, columns: Sequence[str]) -> None:
    """Refuses a file whose columns are too large to be read whole, before anything of them is kept.

    A text that stands in every row is stored once, so the size of the file says nothing of what it unfolds to.

    Args:
        path: The file.
        columns: Columns that will be read.

    Raises:
        DataError: With the rows after which it is too much; or if the file cannot be read.
    """
    with open_parquet(path) as file:
        rows = file.metadata.num_rows
        bound = rows * ROW_BYTES + sum(_unfolded_at_most(chunk) for chunk in _chunks(file, columns))
    if bound <= MAX_UNFOLDED_BYTES:
        return
    seen, unfolded = 0, 0
    if rows * ROW_BYTES <= MAX_UNFOLDED_BYTES:
        for batch in _batches(path, list(dict.fromkeys(columns)), 65_536):
            seen += batch.num_rows
            unfolded += batch.num_rows * ROW_BYTES + sum(_text_bytes(column) for column in batch.columns)
            if unfolded > MAX_UNFOLDED_BYTES:
                break
        else:
            return
    within = f"the first {seen:,} of its {rows:,} rows" if seen else f"its {rows:,} rows"
    raise DataError(
        f"'{path}' has {path.stat().st_size:,} bytes and unfolds to more than {MAX_UNFOLDED_BYTES:,} bytes of text in "
        f"{within}, which is not read whole; give fewer rows or shorter texts"
    )


def _batches(path: Path, columns: list[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Batches of rows in which repeated texts stay folded, of fewer rows where that cannot be."""
    with open_parquet(path) as file:
        _check_columns(file, path, columns)
        chunks = _chunks(file, columns)
        _check_compression(path, chunks)
        folded = [column for column in columns if _can_stay_folded(chunks, column)]
        unfolding = [chunk for chunk in chunks if chunk.path_in_schema not in folded and _unfolds(chunk)]
    largest = max((chunk.total_uncompressed_size for chunk in unfolding), default=0)
    rows = min(batch_rows, max(1, _UNFOLDED_BATCH_BYTES // max(largest, 1)))
    with _damage(path), pq.ParquetFile(path, read_dictionary=folded) as file:
        yield from file.iter_batches(batch_size=rows, columns=columns)


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"'{path}' is damaged: {str(error).splitlines()[0]}; write the Parquet file again") from error
    except UnicodeDecodeError as error:
        raise DataError(f"'{path}' holds text that is not UTF-8 ({error.reason}); write it again as UTF-8") from error


def _check_columns(file: pq.ParquetFile, path: Path, columns: Sequence[str]) -> None:
    present = file.schema_arrow.names
    for column in columns:
        if column not in present:
            raise missing_column(path, column, present)
    check_unique(path, columns, present)


def _check_compression(path: Path, chunks: Sequence[Any]) -> None:
    for chunk in chunks:
        packed, whole = chunk.total_compressed_size, chunk.total_uncompressed_size
        if whole > _SUSPECT_BYTES and whole > _MOST_COMPRESSION * packed:
            raise DataError(
                f"'{path}' holds {whole:,} bytes of column '{chunk.path_in_schema}' in {packed:,}, which no text "
                f"compresses to (at most {_MOST_COMPRESSION:,}-fold is read); write it again from its rows"
            )


def _chunks(file: pq.ParquetFile, columns: Sequence[str]) -> list[Any]:
    """What the file says of each column in each group of rows; without the parts of nested columns."""
    wanted, metadata = set(columns), file.metadata
    positions = [index for index in range(metadata.num_columns) if metadata.schema.column(index).path in wanted]
    return [metadata.row_group(group).column(index) for group in range(metadata.num_row_groups) for index in positions]


def _unfolds(chunk: Any) -> bool:
    """Whether the texts of a column may be longer than what is stored of them."""
    return chunk.physical_type == "BYTE_ARRAY" and not _PLAIN_ENCODINGS.issuperset(chunk.encodings)


def _unfolded_at_most(chunk: Any) -> int:
    # A cell is never longer than all that is stored.
    return int(chunk.total_uncompressed_size * (max(chunk.num_values, 1) if _unfolds(chunk) else 1))


def _can_stay_folded(chunks: Sequence[Any], column: str) -> bool:
    """Whether Arrow can give a column as distinct texts and their places."""
    own = [chunk for chunk in chunks if chunk.path_in_schema == column]
    return bool(own) and all(
        chunk.physical_type == "BYTE_ARRAY" and _FOLDING_ENCODINGS.issuperset(chunk.encodings) for chunk in own
    )


def _values(array: pa.Array) -> list[Any]:
    if not isinstance(array, pa.DictionaryArray):
        return list(array.to_pylist())
    # A batch has the dictionary of all its group of rows, and uses little of it.
    places = array.indices.to_pylist()
    used = sorted({place for place in places if place is not None})
    words: dict[int | None, Any] = dict(
        zip(used, array.dictionary.take(pa.array(used, pa.int64())).to_pylist(), strict=True)
    )
    words[None] = None
    return [words[place] for place in places]


def _text_bytes(array: pa.Array) -> int:
    if isinstance(array, pa.DictionaryArray):
        lengths = _text_lengths(array.dictionary)
        return 0 if lengths is None else int(pc.sum(lengths.take(array.indices)).as_py() or 0)
    lengths = _text_lengths(array)
    return 0 if lengths is None else int(pc.sum(lengths).as_py() or 0)


def _text_lengths(array: pa.Array) -> pa.Array | None:
    text = pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary
    if not any(kind(array.type) for kind in text):
        return None
    return pc.binary_length(array).cast(pa.int64())
