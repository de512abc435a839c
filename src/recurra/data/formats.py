"""Lines and rows of text files, one at a time, in constant memory: encodings, CSV, JSON, and columns by their names.

Every defect of a file becomes a `DataError` of one line that says where it is: line and byte of a text, row of a list.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, BinaryIO

from recurra.core.errors import DataError, did_you_mean

# A longer cell nearly always means that a quotation mark was opened and never closed.
MAX_CELL_CHARACTERS = 500_000
MAX_LINE_BYTES = 8 * 2**20
# Limit for a JSON file without one row a line, which has to be read whole.
MAX_DOCUMENT_BYTES = 2**28
# Below what the csv module allows one field.
_LONGEST_HEADER = 100_000
_HEAD_BYTES = 200
# Longer marks come first, because the mark of UTF-32 begins with that of UTF-16.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8",
}
# How files begin that are no text, whatever their names say; and what to do.
_BEGINNINGS = {
    b"\x1f\x8b": "compressed by gzip; decompress it, or rename it to end in .gz",
    b"BZh91AY&SY": "compressed by bzip2; decompress it, or rename it to end in .bz2",
    b"\xfd7zXZ\0": "compressed by xz; decompress it, or rename it to end in .xz",
    b"PK\x03\x04": "a zip archive, as Excel writes it; rename a sheet to end in .xlsx, or unpack the archive",
    b"PAR1\x15": "Parquet; rename it to end in .parquet",
}
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}

Row = tuple[int, tuple[Any, ...]]
"""Number of the row or line in the file, from 1, and the values of the columns that were asked for."""


class MissingColumnError(DataError):
    """A column is missing; the caller may add the option that names another column (`naming_options`)."""

    def __init__(self, message: str, column: str) -> None:
        super().__init__(message)
        self.column = column


@contextlib.contextmanager
def naming_options(options: Mapping[str, str]) -> Iterator[None]:
    """Adds the option that names another column to the error for a missing column."""
    try:
        yield
    except MissingColumnError as error:
        option = options.get(error.column)
        raise DataError(f"{error}; name the right one with {option}" if option else str(error)) from error


def _encoding_of(head: bytes, requested: str | None, source: str) -> tuple[str, bool]:
    """The encoding, by a mark in the first bytes or else as requested, and whether there is a mark."""
    marked = next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
    name = marked or codecs.lookup(requested or "utf-8").name
    if kind := next((kind for beginning, kind in _BEGINNINGS.items() if head.startswith(beginning)), ""):
        raise DataError(f"{source} is {kind}")
    null_bytes = {"le": head[1::2].count(0), "be": head[::2].count(0)}
    if name == "utf-8" and marked is None and max(null_bytes.values()) > len(head) // 3:
        raise DataError(
            f"{source} looks like UTF-16 without a byte order mark; save it as UTF-8, or name its encoding, for "
            f"example --encoding utf-16-{max(null_bytes, key=null_bytes.__getitem__)}"
        )
    if name in ("utf-16", "utf-32") and marked is None and head:
        raise DataError(f"{source} has no byte order mark; name the byte order with --encoding {name}-le or {name}-be")
    return name, marked is not None


def decoded(stream: BinaryIO, source: str, given: str | None) -> tuple[Iterator[str], str, bool]:
    """Lines of a stream as text, the name of its encoding, and whether a mark at its start says so."""
    buffered: Any = stream if hasattr(stream, "peek") else io.BufferedReader(stream)
    name, has_mark = _encoding_of(buffered.peek(_HEAD_BYTES)[:_HEAD_BYTES], given, source)
    lines = _utf8_lines(buffered, source) if name == "utf-8" else _text_lines(buffered, source, name)
    return lines, name, has_mark


def decoded_whole(stream: BinaryIO, source: str, given: str | None) -> tuple[str, str, bool]:
    """All of a stream as text, with its encoding as from `decoded`; for files whose one line may be the whole file."""
    raw = stream.read(MAX_DOCUMENT_BYTES + 1)
    if len(raw) > MAX_DOCUMENT_BYTES:
        raise DataError(
            f"{source} has more than {MAX_DOCUMENT_BYTES:,} bytes and does not have one row a line; write one JSON "
            "object a line (.jsonl)"
        )
    name, has_mark = _encoding_of(raw[:_HEAD_BYTES], given, source)
    try:
        return raw.decode(name).removeprefix("\ufeff"), name, has_mark
    except UnicodeDecodeError as error:
        raise _not_encoded(source, name, error) from error


def _text_lines(stream: BinaryIO, source: str, encoding: str) -> Iterator[str]:
    text = io.TextIOWrapper(stream, encoding, newline="\n")
    try:
        for number, line in enumerate(iter(partial(text.readline, MAX_LINE_BYTES + 1), ""), start=1):
            _check_line(len(line), line.find("\0"), source, number)
            yield line.removeprefix("\ufeff") if number == 1 else line
    except UnicodeDecodeError as error:
        raise _not_encoded(source, encoding, error) from error
    finally:
        # The caller closes the stream, and may have closed it already.
        with contextlib.suppress(ValueError):
            text.detach()


def _not_encoded(source: str, encoding: str, error: UnicodeDecodeError) -> DataError:
    return DataError(
        f"{source} is not {encoding}: byte 0x{error.object[error.start]:02x} is not valid in it ({error.reason}); "
        "save the file as UTF-8, or name its encoding, for example --encoding cp1252"
    )


def _check_line(size: int, nul: int, source: str, number: int) -> None:
    if size > MAX_LINE_BYTES:
        raise DataError(f"{source} line {number} is longer than {MAX_LINE_BYTES:,} bytes; put one row a line")
    if nul >= 0:
        raise DataError(
            f"{source} line {number}, byte {nul + 1} is a NUL byte; the file is damaged or not text: "
            "remove the byte or save the file again as UTF-8"
        )


def _utf8_lines(stream: BinaryIO, source: str) -> Iterator[str]:
    offset = 0
    # At most one byte over the limit is read of a line, so memory stays bounded.
    for number, raw in enumerate(iter(partial(stream.readline, MAX_LINE_BYTES + 1), b""), start=1):
        _check_line(len(raw), raw.find(b"\0"), source, number)
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{source} line {number}, byte {error.start + 1} (byte {offset + error.start + 1} of the file) is "
                f"0x{raw[error.start]:02x}, which is not UTF-8; save the file as UTF-8, or name its encoding, for "
                "example --encoding cp1252 for what Windows programs of western Europe write"
            ) from error
        yield line.removeprefix("\ufeff") if number == 1 else line
        offset += len(raw)


def check_encoding(name: str) -> str:
    """Returns the name of an encoding of text."""
    try:
        codec = codecs.lookup(name)
        "a".encode(name)
    except (LookupError, ValueError, UnicodeError) as error:
        hint = did_you_mean(name, ["utf-8", "utf-16", "cp1252", "latin-1", "cp1251", "shift_jis", "gb18030", "big5"])
        raise ValueError(f"there is no such encoding{hint}; give one of Python's, such as cp1252 or utf-16") from error
    return codec.name


def csv_fields(
    lines: Iterable[str], source: str, delimiter: str, *, quoted: bool, skipped: int
) -> Iterator[tuple[int, list[str]]]:
    """Yields number and fields of each line that is not blank, the header first; quoting is strict.

    If the header has one field, a line of spaces is a row.
    """
    # The csv module has one limit for the whole process, so it is only ever raised.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_CELL_CHARACTERS))
    reader = (
        csv.reader(lines, delimiter=delimiter, strict=True)
        if quoted
        else csv.reader(lines, delimiter=delimiter, strict=True, quoting=csv.QUOTE_NONE)
    )
    width = 0
    while True:
        number = reader.line_num + 1 + skipped
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise _broken_csv(source, number, error) from error
        if len(fields) > 1 or (fields and (width == 1 or not fields[0] or fields[0].strip())):
            width = width or len(fields)
            yield number, fields


def _broken_csv(source: str, number: int, error: csv.Error) -> DataError:
    detail = str(error)
    if "field larger" in detail:
        return _too_long(source, "line", number)
    causes = {
        "unexpected end of data": "a quotation mark that opens in this row is never closed",
        "expected after": "text follows a closing quotation mark",
        "new-line character": "a bare carriage return stands in an unquoted field, or ends every line: save those with "
        "line feeds",
    }
    cause = next((text for key, text in causes.items() if key in detail), detail)
    return DataError(
        f"{source} line {number}: broken CSV quoting: {cause}; "
        'put the text into double quotes and write "" for a quotation mark inside'
    )


def _too_long(source: str, unit: str, number: int) -> DataError:
    return DataError(
        f"{source} {unit} {number} holds a cell of more than {MAX_CELL_CHARACTERS:,} characters; cut the text, "
        "or close the quotation mark that was left open"
    )


def header_names(line: str, delimiter: str) -> list[str]:
    """The names in a header with this delimiter; empty if it cannot be read."""
    try:
        names = next(csv.reader([line[:_LONGEST_HEADER]], delimiter=delimiter), [])
    except csv.Error:
        # The error is raised when the rows are read.
        return []
    return [name.strip() for name in names]


def delimiter_of(header: str, wanted: Iterable[str], usual: str) -> str:
    """The separator of a header: the usual one unless only another one gives the wanted columns.

    If none gives them all and the usual one gives a single name, it is the separator that gives the most names.
    """
    names = {separator: header_names(header.casefold(), separator) for separator in (usual, *SEPARATORS)}
    wanted_names = folded_names(wanted)
    finding = [separator for separator in names if wanted_names and wanted_names <= {*names[separator]}]
    if finding:
        return finding[0]
    if len(names[usual]) > 1:
        return usual
    return max(names, key=lambda separator: len(names[separator]))


def quotes_are_text(lines: Callable[[], Iterable[str]], delimiter: str) -> bool:
    """Whether quotation marks of a file with tabs are plain characters, as spreadsheets and GLUE write them.

    They are if every line has as many fields as the header and if reading them as quoting would leave one open, join
    lines or change the number of fields.
    """
    width, marked = 0, False
    for line in lines():
        if line.strip(" \r\n"):
            fields = line.count(delimiter) + 1
            width, marked = width or fields, marked or '"' in line
            if fields != width:
                return False
    if not marked:
        return False
    try:
        return any(
            len(cells) != width or any("\n" in cell for cell in cells)
            for _, cells in csv_fields(lines(), "", delimiter, quoted=True, skipped=0)
        )
    except DataError:
        return True


def record_rows(
    records: Iterable[tuple[int, dict[str, Any]]],
    source: str,
    columns: Sequence[str],
    optional: Sequence[str],
    *,
    unit: str = "line",
    lenient: Collection[str] = (),
) -> Iterator[Row]:
    """Yields the values of ``columns``, then of ``optional``, of each object; names may differ in case.

    An object may lack ``lenient`` columns, but each of them must be in some object.
    """
    unseen, present = {*lenient}, dict[str, None]()
    for number, record in records:
        names = columns
        if not all(name in record for name in columns):
            keys, where = list(record), f"{source} {unit} {number}"
            names = [
                matching_column(where, name, keys) or name if name in lenient else find_column(where, name, keys)
                for name in columns
            ]
        if unseen:
            present.update(dict.fromkeys(record))
            unseen -= {name for name, key in zip(columns, names, strict=True) if key in record}
        yield number, tuple(record.get(name) for name in (*names, *optional))
    for name in columns:
        if name in unseen and present:
            raise missing_column(source, name, list(present))


def json_lines(lines: Iterable[str], source: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields number and object of lines with one JSON object each; blank lines are skipped."""
    number = 0
    for number, line in enumerate(lines, start=1):
        if not line.isspace():
            where = f"{source} line {number}"
            value = _parse_json(line, source, "one JSON object a line", number)
            yield number, _checked_object(value, where, escaped="\\ud" in line.lower())
    if number == 0:
        raise DataError(f"{source} is empty; give one JSON object a line")


def json_objects(text: str, source: str, wanted: Sequence[str] = ()) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields number and object of each row of a JSON text: of a list, an object's only list of objects, or its columns.

    Objects in an object are rows if the first has the ``wanted`` columns.
    """
    value = _parse_json(text, source, "one JSON object a line, or a list of objects")
    escaped = "\\ud" in text.lower()
    rows = value if isinstance(value, list) else _rows_of_object(value, source, wanted)
    for number, row in enumerate(rows, start=1):
        yield number, _checked_object(row, f"{source} row {number}", escaped=escaped)


def _rows_of_object(value: Any, source: str, wanted: Sequence[str]) -> list[Any]:
    cells = list(value.values()) if isinstance(value, dict) else []
    if not any(isinstance(cell, list | dict) for cell in cells):
        return [value]
    folded = folded_names(wanted)
    if all(isinstance(cell, dict) for cell in cells):
        if folded and folded <= folded_names(cells[0]):
            return cells
        if all(cell.keys() == cells[0].keys() for cell in cells):
            return [{name: column[key] for name, column in value.items()} for key in cells[0]]
    columns = [cell for cell in cells if isinstance(cell, list)]
    lists = [column for column in columns if column and isinstance(column[0], dict)]
    alone = [len(column) for column in columns].count(len(lists[0])) == 1 if lists else False
    if len(lists) == 1 and (alone or (folded and folded.isdisjoint(folded_names(value)))):
        return lists[0]
    if len(columns) < len(cells) or len({*map(len, columns)}) > 1:
        raise DataError(
            f"{source} holds one JSON object with {', '.join(map(repr, list(value)[:8]))}; write one JSON "
            "object a line, or a list of objects"
        )
    return [dict(zip(value, row, strict=True)) for row in zip(*columns, strict=True)]


def _parse_json(text: str, source: str, wanted: str, line: int | None = None) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        position = f"line {line or getattr(error, 'lineno', 1)}, column {getattr(error, 'colno', 1)}"
        detail = getattr(error, "msg", str(error))
        if "integer string" in detail:
            detail = "a number of thousands of digits; put it in quotes"
        raise DataError(f"{source} {position} is not valid JSON ({detail}); write {wanted}") from error


def _checked_object(value: Any, where: str, *, escaped: bool) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(
            f"{where} holds a {type(value).__name__}; write one JSON object a line, "
            'e.g. {"text": "...", "label": "..."}'
        )
    if escaped:
        # `check_text` checks the texts; names and nested cells are checked only here.
        unchecked = [*value, *(cell for cell in value.values() if isinstance(cell, dict | list))]
        try:
            json.dumps(unchecked, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            raise DataError(
                f"{where} holds half of a pair (\\ud800 to \\udfff), which is no valid Unicode; write the whole "
                "character"
            ) from error
    return value


def folded_names(names: Iterable[str]) -> set[str]:
    """Names of columns without what does not tell them apart: case, and blanks around."""
    return {name.strip().casefold() for name in names}


def find_column(where: str, column: str, present: Sequence[str]) -> str:
    """The name by which a table or line has a column: as asked for, in other case, or with blanks around."""
    name = matching_column(where, column, present)
    if name is None:
        raise missing_column(where, column, present)
    return name


def matching_column(where: str, column: str, present: Sequence[str]) -> str | None:
    """The name that `find_column` returns; None if the column is missing."""
    if column in present:
        return column
    similar = [name for name in dict.fromkeys(present) if name.strip().casefold() == column.strip().casefold()]
    if len(similar) > 1:
        raise MissingColumnError(
            f"{where} has no column '{column}' but {', '.join(repr(name) for name in similar)}", column
        )
    return similar[0] if similar else None


def missing_column(where: str, column: str, present: Sequence[str]) -> MissingColumnError:
    """The error for a column that a table, or one line of it, lacks."""
    names = ", ".join(map(repr, present[:20])) or "none"
    return MissingColumnError(
        f"{where} has no column '{column}'{did_you_mean(column, present)}; its columns are {names}", column
    )


def check_unique(where: str, columns: Sequence[str], present: Sequence[str]) -> None:
    """Refuses a table, or a line of it, that has a column to be read more than once."""
    for column in columns:
        if present.count(column) > 1:
            raise DataError(f"{where} has {present.count(column)} columns '{column}'; rename all but one")


def split_names(columns: str, present: Sequence[str]) -> list[str]:
    """The columns that ``columns`` names: several if separated by commas, unless one column has the whole name."""
    if "," not in columns or columns in present:
        return [columns]
    return [name.strip() for name in columns.split(",") if name.strip()] or [columns]


def join_cells(cells: Sequence[str], width: int) -> str:
    """Joins the cells of ``width`` columns with spaces; the cell of a single column is returned as it is."""
    return cells[0] if width == 1 else " ".join(filter(None, (cell.strip() for cell in cells)))


def check_text(value: Any, where: str, unit: str, number: int, *, longest: int | None = MAX_CELL_CHARACTERS) -> str:
    """Returns a cell as text of at most ``longest`` characters; None becomes the empty text."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(
            f"{where} {unit} {number}: the text is {short_repr(value)}, a {type(value).__name__}; give text, in quotes"
        )
    if longest is not None and len(value) > longest:
        raise _too_long(where, unit, number)
    if "\0" in value:
        raise DataError(f"{where} {unit} {number}: the text holds a NUL character; remove it")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise DataError(
                f"{where} {unit} {number}: the text holds \\u{ord(value[error.start]):04x}, half of a pair, "
                "which is no valid Unicode; write the whole character"
            ) from error
    return value


def short_repr(value: Any) -> str:
    """A value for a message, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
