"""Rows of CSV, TSV, JSONL, Parquet and plain text, one at a time, in constant memory.

Every defect of a file becomes a `DataError` of one line with the place: line and byte for text, row for Parquet.
"""

from __future__ import annotations

import csv
import importlib.util
import itertools
import json
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from recurra.core.errors import DataError, UnavailableError, did_you_mean
from recurra.data.columns import check_unique, find_column

# A longer cell is nearly always an opening quotation mark without its end; only 512 tokens are ever used of a text.
MAX_CELL_CHARACTERS = 500_000
MAX_LINE_BYTES = 8 * 2**20
# Below what the csv module allows one field.
_LONGEST_HEADER = 100_000

Row = tuple[int, tuple[Any, ...]]
"""Place of the row in the file, counted from 1, and the values of the columns that were asked for."""


def raw_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yields lines; one that is too long comes as a piece just over the limit, so memory stays bounded."""
    while line := stream.readline(MAX_LINE_BYTES + 1):
        yield line


def decoded_lines(lines: Iterable[bytes], source: str) -> Iterator[str]:
    """Yields UTF-8 lines as text, with their line ends; a byte order mark is dropped.

    Raises:
        DataError: For a byte that is not UTF-8, a NUL byte or a line without end, with line and byte counted from 1.
    """
    offset = 0
    for number, raw in enumerate(lines, start=1):
        if len(raw) > MAX_LINE_BYTES:
            raise DataError(f"'{source}' line {number} is longer than {MAX_LINE_BYTES:,} bytes; put one row a line")
        if number == 1 and raw.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise DataError(f"'{source}' is UTF-16; save it as UTF-8")
        if (position := raw.find(b"\0")) >= 0:
            raise DataError(
                f"'{source}' line {number}, byte {position + 1} is a NUL byte; the file is damaged or not text: "
                "remove the byte or save the file again as UTF-8"
            )
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"'{source}' line {number}, byte {error.start + 1} (byte {offset + error.start + 1} of the file) is "
                f"0x{raw[error.start]:02x}, which is not UTF-8; save the file as UTF-8"
            ) from error
        yield line.removeprefix("\ufeff") if number == 1 else line
        offset += len(raw)


def csv_rows(
    lines: Iterable[str], source: str, columns: Sequence[str], optional: Sequence[str], delimiter: str
) -> Iterator[Row]:
    """Yields rows of CSV or TSV lines with a header; quoting is checked strictly.

    Raises:
        DataError: For a column that is missing or there twice, broken quoting, or a row with more or fewer fields than
            the header.
    """
    # The module's own limit is one for the whole process, so it is only ever raised.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_CELL_CHARACTERS))
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header: list[str] | None = None
    positions: list[int | None] = []
    while True:
        place = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            raise _broken_csv(source, place, error) from error
        if not fields:
            continue
        if header is None:
            header = [name.strip() for name in fields]
            positions = _positions(source, header, columns, optional)
        elif len(fields) != len(header):
            raise DataError(
                f"'{source}' line {place} has {len(fields)} fields, the header has {len(header)}; "
                "put texts that hold the separator into double quotes"
            )
        else:
            yield place, tuple(None if position is None else fields[position] for position in positions)
    if header is None:
        raise DataError(f"'{source}' is empty; give a file with a header and rows")


def _positions(source: str, header: list[str], columns: Sequence[str], optional: Sequence[str]) -> list[int | None]:
    names = [*(find_column(source, column, header) for column in columns), *optional]
    check_unique(source, names, header)
    return [header.index(name) if name in header else None for name in names]


def csv_delimiter(path: Path, columns: Sequence[str]) -> str:
    """What stands between the fields of a CSV or TSV file: a semicolon if only that finds the columns in the header.

    Spreadsheets write semicolons into ``.csv`` where the comma is the decimal sign.

    Raises:
        DataError: If the file cannot be read.
    """
    if path.suffix.lower() == ".tsv":
        return "\t"
    header: str = next((line for line in _file_lines(path) if not line.isspace()), "")
    # A name of which one half is in the next line is none that anybody asks for.
    by_comma, by_semicolon = (_header_names(header, delimiter) for delimiter in ",;")
    wanted = {name.strip().casefold() for name in columns}
    return ";" if wanted <= by_semicolon and not wanted <= by_comma else ","


def _header_names(line: str, delimiter: str) -> set[str]:
    try:
        names = next(csv.reader([line[:_LONGEST_HEADER]], delimiter=delimiter), [])
    except csv.Error:
        # Whoever reads the rows says what is wrong with it.
        return set()
    return {name.strip().casefold() for name in names}


def _broken_csv(source: str, place: int, error: csv.Error) -> DataError:
    detail = str(error)
    if "field larger" in detail:
        return too_long(source, "line", place)
    causes = {
        "unexpected end of data": "a quotation mark that opens in this row is never closed",
        "expected after": "text follows a closing quotation mark",
        "new-line character": "a bare carriage return stands in an unquoted field",
    }
    cause = next((text for key, text in causes.items() if key in detail), detail)
    return DataError(
        f"'{source}' line {place}: broken CSV quoting: {cause}; "
        'put the text into double quotes and write "" for a quotation mark inside'
    )


def too_long(source: str, unit: str, place: int) -> DataError:
    """The error for a cell that is too long to be a text."""
    return DataError(
        f"'{source}' {unit} {place} holds a cell of more than {MAX_CELL_CHARACTERS:,} characters; cut the text, "
        "or close the quotation mark that was left open"
    )


def jsonl_rows(lines: Iterable[str], source: str, columns: Sequence[str], optional: Sequence[str]) -> Iterator[Row]:
    """Yields rows of lines with one JSON object each; blank lines are passed over.

    Raises:
        DataError: For a line that is not a JSON object, lacks a column or has one twice.
    """
    for place, value in _json_objects(lines, source):
        names = columns
        if not all(name in value for name in columns):
            names = [find_column(source, name, list(value), line=place) for name in columns]
        if isinstance(value, _RepeatingObject):
            check_unique(source, [*names, *optional], value.keys_as_written, line=place)
        yield place, tuple(value.get(name) for name in (*names, *optional))


def _json_objects(lines: Iterable[str], source: str) -> Iterator[tuple[int, dict[str, Any]]]:
    place = 0
    for place, line in enumerate(lines, start=1):
        if line.isspace():
            continue
        try:
            value = json.loads(line, object_pairs_hook=_object)
        except (ValueError, RecursionError) as error:
            column = getattr(error, "colno", 1)
            detail = getattr(error, "msg", str(error))
            if "integer string" in detail:
                detail = "a number of thousands of digits; put it in quotes"
            raise DataError(
                f"'{source}' line {place}, column {column} is not valid JSON ({detail}); write one JSON object a line"
            ) from error
        if not isinstance(value, dict):
            raise DataError(
                f"'{source}' line {place} holds a {type(value).__name__}; write one JSON object a line, "
                'e.g. {"text": "...", "label": "..."}'
            )
        # Texts are looked at by who reads them; what is inside other cells, and names, is only passed on.
        if "\\ud" in line.lower() and not _is_unicode([*value, *filter(_holds_more, value.values())]):
            raise DataError(
                f"'{source}' line {place} holds half of a pair (\\ud800 to \\udfff), which is no valid Unicode; "
                "write the whole character"
            )
        yield place, value
    if place == 0:
        raise DataError(f"'{source}' is empty; give one JSON object a line")


def _holds_more(cell: object) -> bool:
    return isinstance(cell, dict | list)


def _is_unicode(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


class _RepeatingObject(dict[str, Any]):
    """A JSON object in which a key stands twice; JSON itself would take the last one and say nothing."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.keys_as_written = [key for key, _ in pairs]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    return values if len(values) == len(pairs) else _RepeatingObject(pairs)


def check_pyarrow(otherwise: str) -> None:
    """Looks whether Parquet can be read and written, without importing what does: the slim environment has it not.

    Args:
        otherwise: What to do without it, for the message.

    Raises:
        UnavailableError: If pyarrow is not installed.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise UnavailableError(
            f"Parquet needs the package pyarrow, which is not installed; pip install pyarrow, {otherwise}"
        )


def parquet_rows(path: Path, columns: Sequence[str], optional: Sequence[str], *, whole: bool = False) -> Iterator[Row]:
    """Yields rows of a Parquet file.

    Args:
        path: The file.
        columns: Columns that must be there.
        optional: Columns whose values are None where the file has none.
        whole: Whether all rows will be kept: more than a stated size is refused.

    Raises:
        DataError: If it is not a whole Parquet file, lacks a column or has one twice, or unfolds to too much.
        UnavailableError: If pyarrow is not installed, which a server has no use for.
    """
    check_pyarrow("or use CSV or JSONL")
    from recurra.data.parquet import check_single_values, iterate_parquet, parquet_columns

    names = parquet_columns(path)
    needed = [find_column(path, column, names) for column in columns]
    present = [name for name in optional if name in names]
    check_single_values(path, [*needed, *present])
    place = 0
    for batch in iterate_parquet(path, [*needed, *present], whole=whole):
        missing = [None] * len(batch[needed[0]])
        for values in zip(*(batch.get(name, missing) for name in (*needed, *optional)), strict=True):
            place += 1
            yield place, values


TABLE_FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")


def check_path(path: Path, allowed: Sequence[str]) -> None:
    """Refuses what is not a readable file of a known format.

    Raises:
        DataError: With the closest name in the folder, the formats that are read, or what the system says of the path.
    """
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        close = did_you_mean(path.name, _siblings(path))
        raise DataError(f"'{path}' does not exist{close}; give the path of a file") from error
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror}; give the path of a file") from error
    if stat.S_ISDIR(status.st_mode):
        raise DataError(f"'{path}' is a folder; give a file: {', '.join(allowed)}")
    if not stat.S_ISREG(status.st_mode):
        kind = "a named pipe" if stat.S_ISFIFO(status.st_mode) else "a device or a socket"
        raise DataError(f"'{path}' is {kind}, which cannot be read twice; save its content in a file and give that")
    if path.suffix.lower() not in allowed:
        raise DataError(
            f"'{path}' has the unknown extension '{path.suffix}'; allowed: {', '.join(allowed)}; "
            "rename it or save it in one of these formats (JSON: one object a line, as .jsonl)"
        )
    if status.st_size == 0 and path.suffix.lower() != ".txt":
        raise DataError(f"'{path}' is empty; give a file with rows")


def _siblings(path: Path) -> list[str]:
    try:
        return [entry.name for entry in path.parent.iterdir()]
    except (OSError, ValueError):
        return []


def table_rows(
    path: Path, columns: Sequence[str], optional: Sequence[str] = (), *, whole: bool = False
) -> Iterator[Row]:
    """Yields rows of a CSV, TSV, JSONL or Parquet file, by its extension.

    Args:
        path: The file.
        columns: Columns that must be there.
        optional: Columns whose values are None where the file has none.
        whole: Whether all rows will be kept; see `parquet_rows`.

    Raises:
        DataError: See the functions for each format.
    """
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        yield from parquet_rows(path, columns, optional, whole=whole)
        return
    if suffix == ".jsonl":
        yield from jsonl_rows(_file_lines(path), str(path), columns, optional)
    else:
        yield from csv_rows(_file_lines(path), str(path), columns, optional, csv_delimiter(path, columns))


def all_columns(path: Path, text_column: str) -> list[str]:
    """Names of all columns of a CSV, TSV, JSONL or Parquet file, in their order; of JSONL those of all its lines.

    Args:
        path: The file.
        text_column: A column that it should have, by which semicolons are recognised.

    Raises:
        DataError: If the file cannot be read.
        UnavailableError: If it is Parquet and pyarrow is not installed.
    """
    suffix = path.suffix.lower()
    if suffix == ".jsonl":
        return list(dict.fromkeys(key for _, value in _json_objects(_file_lines(path), str(path)) for key in value))
    if suffix == ".parquet":
        check_pyarrow("or use CSV or JSONL")
        from recurra.data.parquet import parquet_columns

        return parquet_columns(path)
    reader = csv.reader(_file_lines(path), delimiter=csv_delimiter(path, [text_column]), strict=True)
    try:
        return [name.strip() for name in next((fields for fields in reader if fields), [])]
    except csv.Error as error:
        raise _broken_csv(str(path), 1, error) from error


def check_columns(path: Path, columns: Sequence[str]) -> None:
    """Refuses columns that cannot be read, or not all together.

    Raises:
        DataError: If one is there twice, or holds lists or records in Parquet.
    """
    check_unique(path, columns, columns)
    if path.suffix.lower() == ".parquet":
        from recurra.data.parquet import check_single_values

        check_single_values(path, columns)


def _file_lines(path: Path) -> Iterator[str]:
    try:
        with path.open("rb") as stream:
            yield from decoded_lines(raw_lines(stream), str(path))
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror}; check the file and its permissions") from error


def plain_rows(stream: BinaryIO, source: str, jsonl_column: str | None = None) -> Iterator[Row]:
    """Yields the lines of a stream, each as one text.

    Args:
        stream: A text file or standard input, opened for bytes.
        source: Its name, for messages.
        jsonl_column: If given, and the first line begins with a brace, lines are JSON objects with this column.
    """
    pieces = raw_lines(stream)
    first = next(pieces, b"")
    lines = decoded_lines(itertools.chain([first] if first else [], pieces), source)
    if jsonl_column is not None and first.lstrip().startswith(b"{"):
        yield from jsonl_rows(lines, source, (jsonl_column,), ())
        return
    for place, line in enumerate(lines, start=1):
        yield place, (line.rstrip("\r\n"),)
