"""Reads Parquet files in batches of rows, up to a stated size, with errors that name file and column.

A text of many rows is stored once, so a file of a kilobyte can unfold to any number of gigabytes. Such a text is one
object for all rows of a batch; if all rows are kept, its size is counted in every row.
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

# Limit for columns that are read whole: nine million reviews of 400 characters. Each row counts `ROW_BYTES` more than
# its text, because its Python values take more.
MAX_WHOLE_BYTES = 4 * 10**9
ROW_BYTES = 64

# Encodings for which Arrow can give the distinct texts and the index of each row's text.
_FOLDING_ENCODINGS = frozenset({"PLAIN", "RLE", "BIT_PACKED", "PLAIN_DICTIONARY", "RLE_DICTIONARY"})
# Limit for one batch of a column whose repeated texts are unfolded.
_BATCH_BYTES = 2**26
_BATCH_ROWS = 4096
_SUSPECT_BYTES = 2**29
_MOST_COMPRESSION = 1000


def open_parquet(path: Path) -> pq.ParquetFile:
    """Opens a Parquet file."""
    with _damage(path):
        file = pq.ParquetFile(path)
        # Each group of rows has the column names once more, and they are decoded only when they are read.
        for group in range(file.metadata.num_row_groups):
            for column in range(file.metadata.num_columns):
                _ = file.metadata.row_group(group).column(column).path_in_schema
    return file


def parquet_columns(path: Path) -> list[str]:
    """Names of the columns."""
    with open_parquet(path) as file:
        return list(file.schema_arrow.names)


def check_single_values(path: Path, columns: Sequence[str]) -> None:
    """Refuses columns of lists, records or fixed-size bytes: they do not fit a table, and unfold without bound."""
    with open_parquet(path) as file:
        _check_columns(file, path, columns)
        types = {column: file.schema_arrow.field(column).type for column in columns}
    for column, kind in types.items():
        if pa.types.is_nested(kind) or pa.types.is_fixed_size_binary(kind):
            raise DataError(f"'{path}' column '{column}' holds {kind}; give a column of words or numbers")


def iterate_parquet(path: Path, columns: Sequence[str], *, whole: bool = False) -> Iterator[dict[str, list[Any]]]:
    """Yields the values of some columns in batches; with ``whole``, for kept rows, at most `MAX_WHOLE_BYTES`."""
    if whole:
        # Counting comes first, because making Python values takes far longer than reading and counting.
        for _ in _batches(path, columns, _BATCH_ROWS, whole=True):
            pass
    for batch in _batches(path, columns, _BATCH_ROWS, whole=False):
        with _damage(path):
            values = {name: _values(batch.column(name)) for name in batch.schema.names}
        yield values


def read_parquet_table(path: Path, columns: Sequence[str]) -> pa.Table:
    """Reads some columns whole, as an Arrow table: for tables whose rows as Python values would fill the memory."""
    with open_parquet(path) as file:
        schema = file.schema_arrow
    batches = list(_batches(path, columns, 65_536, whole=True))
    with _damage(path):
        plain = pa.schema([schema.field(column) for column in columns])
        return pa.Table.from_batches(batches).select(columns).cast(plain) if batches else plain.empty_table()


def _batches(path: Path, columns: Sequence[str], batch_rows: int, *, whole: bool) -> Iterator[pa.RecordBatch]:
    """Batches in which repeated texts stay folded; where that is impossible, a batch has fewer rows."""
    # A column may be named twice, as label and group for example.
    columns = list(dict.fromkeys(columns))
    folded: set[str] = set()
    unfolded: set[str] = set()
    rows = batch_rows
    with open_parquet(path) as file:
        _check_columns(file, path, columns)
        for chunk in _chunks(file, columns):
            packed, size = chunk.total_compressed_size, chunk.total_uncompressed_size
            if size > _SUSPECT_BYTES and size > _MOST_COMPRESSION * packed:
                raise DataError(
                    f"'{path}' holds {size:,} bytes of column '{chunk.path_in_schema}' in {packed:,}, which no text "
                    f"compresses to (at most {_MOST_COMPRESSION:,}-fold is read); write it again from its rows"
                )
            if chunk.physical_type == "BYTE_ARRAY" and _FOLDING_ENCODINGS.issuperset(chunk.encodings):
                folded.add(chunk.path_in_schema)
            elif chunk.physical_type == "BYTE_ARRAY":
                unfolded.add(chunk.path_in_schema)
                # A cell is never longer than all that is stored.
                rows = min(rows, max(1, _BATCH_BYTES // max(size, 1)))
        total = file.metadata.num_rows
    rows_read = bytes_read = 0
    with _damage(path), pq.ParquetFile(path, read_dictionary=sorted(folded - unfolded)) as file:
        for batch in file.iter_batches(batch_size=rows, columns=columns):
            rows_read += batch.num_rows
            if whole:
                bytes_read += batch.num_rows * ROW_BYTES + sum(map(_text_bytes, batch.columns))
            if bytes_read > MAX_WHOLE_BYTES:
                raise DataError(
                    f"'{path}' unfolds to more than {MAX_WHOLE_BYTES:,} bytes of text in the first {rows_read:,} of "
                    f"its {total:,} rows, which is too much to read; give fewer rows or shorter texts"
                )
            yield batch


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
        raise DataError(f"'{path}' is an incomplete or damaged Parquet file ({reason}); write it again") from error
    except UnicodeDecodeError as error:
        raise DataError(f"'{path}' holds text that is not UTF-8 ({error.reason}); write it again as UTF-8") from error


def _check_columns(file: pq.ParquetFile, path: Path, columns: Sequence[str]) -> None:
    present = file.schema_arrow.names
    for column in columns:
        if column not in present:
            raise missing_column(f"'{path}'", column, present)
    check_unique(f"'{path}'", columns, present)


def _chunks(file: pq.ParquetFile, columns: Sequence[str]) -> Iterator[Any]:
    """Metadata of each column in each group of rows; without the parts of nested columns."""
    for index in range(file.metadata.num_columns):
        if file.metadata.schema.column(index).path in columns:
            for group in range(file.metadata.num_row_groups):
                yield file.metadata.row_group(group).column(index)


def _values(array: pa.Array) -> list[Any]:
    if not isinstance(array, pa.DictionaryArray):
        return list(array.to_pylist())
    # The dictionary is that of the whole group of rows, and a batch uses little of it.
    positions = array.indices.to_pylist()
    used = sorted({position for position in positions if position is not None})
    words = array.dictionary.take(pa.array(used, pa.int64())).to_pylist()
    by_position = {None: None, **dict(zip(used, words, strict=True))}
    return [by_position[position] for position in positions]


def _text_bytes(array: pa.Array) -> int:
    folded = isinstance(array, pa.DictionaryArray)
    texts = array.dictionary if folded else array
    if pa.types.is_string_view(texts.type) or pa.types.is_binary_view(texts.type):
        # Not every version of Arrow computes the lengths of views.
        return sum(len(text) for text in _values(array) if text is not None)
    is_kind = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    if not any(test(texts.type) for test in is_kind):
        return 0
    lengths = pc.binary_length(texts).cast(pa.int64())
    return int(pc.sum(lengths.take(array.indices) if folded else lengths).as_py() or 0)
