"""Reads any file of a user as a table: rows of the wanted columns, one at a time, in constant memory.

Encoding, line ends, separator, quoting, and the labelling tool that wrote a file are recognised from its content.
`TableFile.notes` mentions everything that is not the plain case.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import importlib.util
import itertools
import json
import lzma
import math
import re
import stat
import sys
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from recurra.core.errors import DataError, UnavailableError, near_name
from recurra.data.formats import (
    SEPARATORS,
    Row,
    check_text,
    check_unique,
    csv_fields,
    decoded,
    decoded_whole,
    delimiter_of,
    find_column,
    folded_names,
    header_names,
    join_cells,
    json_lines,
    json_objects,
    naming_options,
    quotes_are_text,
    record_rows,
    split_names,
)

STANDARD_INPUT = "-"
# Large enough for batches of like length, small enough that a chunk of long texts takes a few MiB.
CHUNK_ROWS = 4096
# Texts of this many characters are cleaned and tokenised at once; a chunk of texts of usual length has a tenth of it.
MAX_CHUNK_CHARACTERS = 2**25

TABLE_FORMATS = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".xlsx")
STREAM_FORMATS = (*TABLE_FORMATS, ".txt")
_SAME_FORMAT = {".tab": ".tsv", ".ndjson": ".jsonl"}
_COMPRESSED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_FASTTEXT_PREFIX = "__label__"
_SEP_LINE = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)


def format_of(path: Path | str) -> str:
    """The format by the file name, such as ``.csv``, without the ending of a compressed file."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix in _COMPRESSED:
        suffix = Path(path.stem).suffix.lower()
    return _SAME_FORMAT.get(suffix, suffix)


def check_path(path: Path, allowed: Sequence[str]) -> None:
    """Refuses a path that is no readable file of a known format; for a missing file it proposes the closest name."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise DataError(f"'{path}' does not exist{near_name(path)}; give the path of a file") from error
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror}; give the path of a file") from error
    if stat.S_ISDIR(status.st_mode):
        raise DataError(f"'{path}' is a folder; give a file: {', '.join(allowed)}")
    if not stat.S_ISREG(status.st_mode):
        kind = "a named pipe" if stat.S_ISFIFO(status.st_mode) else "a device or a socket"
        raise DataError(f"'{path}' is {kind}, which cannot be read twice; save its content in a file and give that")
    if format_of(path) not in allowed and not is_fasttext(path):
        raise DataError(
            f"'{path}' has the unknown extension '{format_of(path) or path.suffix}'; allowed: {', '.join(allowed)}, "
            f"those of text also with {', '.join(_COMPRESSED)} behind it; rename it or save it in one of these formats"
        )
    if format_of(path) in (".parquet", ".xlsx") and path.suffix.lower() in _COMPRESSED:
        raise DataError(
            f"'{path}' is compressed twice, since {format_of(path)} is compressed itself; decompress it once"
        )
    if status.st_size == 0 and path.suffix.lower() != ".txt":
        raise DataError(f"'{path}' is empty; give a file with rows")


def is_fasttext(path: Path | str) -> bool:
    """Whether a file begins as a fastText file does, whatever its name."""
    try:
        with _COMPRESSED.get(Path(path).suffix.lower(), Path.open)(Path(path), "rb") as stream:
            head: bytes = stream.read(len(_FASTTEXT_PREFIX) + 3)
    except (OSError, ValueError, lzma.LZMAError, EOFError, zlib.error):
        return False
    return head.removeprefix(codecs.BOM_UTF8).startswith(b"__label__")


def check_pyarrow(otherwise: str) -> None:
    """Refuses Parquet if pyarrow is missing, as in the slim environment; ``otherwise`` says what to do instead."""
    if importlib.util.find_spec("pyarrow") is None:
        raise UnavailableError(
            f"Parquet needs the package pyarrow, which is not installed; pip install pyarrow, {otherwise}"
        )


class TableFile:
    """A file as a table; it is opened anew whenever its rows are read."""

    def __init__(
        self,
        path: Path | str,
        wanted: Sequence[str] = (),
        *,
        encoding: str | None = None,
        allowed: Sequence[str] = TABLE_FORMATS,
    ) -> None:
        self.path = Path(path)
        check_path(self.path, allowed)
        self.source = f"'{path}'"
        self.unit = "row"
        self.notes: list[str] = []
        self.tool = ""
        self._encoding = encoding
        self._document: list[tuple[int, dict[str, Any]]] = []
        self.header: list[str] = []
        self.delimiter, self._quoted, self._skipped = "", True, 0
        self.kind = format_of(self.path).removeprefix(".")
        if self.kind == "parquet":
            self._open_parquet()
        elif self.kind == "xlsx":
            self._read_sheet(wanted)
        else:
            self._open_text(wanted)

    def _open_parquet(self) -> None:
        check_pyarrow("or use CSV or JSONL")
        from recurra.data.parquet import open_parquet

        with open_parquet(self.path) as file:
            self.header = list(file.schema_arrow.names)
            # Messages about rows from memory name the object that they came in.
            source_name = (file.schema_arrow.metadata or {}).get(MADE_FROM)
        if source_name:
            self.source = source_name.decode("utf-8")

    def _open_text(self, wanted: Sequence[str]) -> None:
        if self.kind in ("json", "jsonl"):
            self.kind = "json" if self._is_document() else "jsonl"
        with self._stream() as stream:
            number, first = 0, ""
            if self.kind == "json":
                text, encoding, has_mark = decoded_whole(stream, self.source, self._encoding)
                self._document = list(json_objects(text, self.source, wanted))
                self.kind = "document"
            else:
                lines, encoding, has_mark = decoded(stream, self.source, self._encoding)
                number, first = _first_line(lines)
        if encoding != "utf-8":
            reason = "its first bytes say" if has_mark else "was asked for"
            self.notes.append(f"{self.source} is read as {encoding.upper()}, as {reason}.")
        if first.startswith(_FASTTEXT_PREFIX):
            self.kind = "fasttext"
        if self.kind != "document":
            self.unit = "line"
        if self.kind in ("csv", "tsv"):
            self._open_csv(number, first, wanted)
        elif self.kind != "txt":
            self._recognise()

    def _is_document(self) -> bool:
        """Whether a JSON file is read whole, because it has not one object a line."""
        lines = self._lines()
        try:
            _, first = _first_line(lines)
            if self.kind == "jsonl":
                return first.lstrip().startswith("[")
            return not isinstance(json.loads(first), dict) or _first_line(lines) == (0, "")
        except (DataError, ValueError, RecursionError):
            # One line may be the whole file, and longer than a line of rows may be.
            return self.kind == "json"

    def _open_csv(self, number: int, first: str, wanted: Sequence[str]) -> None:
        usual = "\t" if self.kind == "tsv" else ","
        declared = _SEP_LINE.fullmatch(first)
        if declared:
            self.delimiter, self._skipped = declared[1], number
        else:
            self.delimiter = delimiter_of(first, wanted, usual)
        if self.delimiter != usual:
            name = SEPARATORS.get(self.delimiter, f"'{self.delimiter}'")
            reason = f"its line sep={self.delimiter} says" if declared else "its header has them"
            self.notes.append(f"{self.source} is read with {name} between its fields, as {reason}.")
        if self.delimiter == "\t" and quotes_are_text(self._lines, "\t"):
            self._quoted = False
            self.notes.append(
                f"{self.source} is read with its quotation marks as characters: as quoting they would not close, or "
                "would join rows."
            )
        _, header = next(self._fields(), (0, []))
        if not header:
            raise DataError(f"{self.source} is empty; give a file with a header and rows")
        self.header = [name.strip() for name in header]
        if {"annotation_id", "annotator"} <= {*self.header}:
            self._name_tool("Label Studio")

    def _recognise(self) -> None:
        _, record = next(iter(self._objects()), (0, {}))
        if tool := _tool_of(record):
            self._name_tool(tool[0])
            record = self._read_export(tool[1])
        self.header = list(record)

    def _name_tool(self, name: str) -> None:
        self.tool = name
        self.notes.append(f"{self.source} is read as an export of {name}.")

    def _read_export(self, row_of: Callable[[dict[str, Any]], ToolRow]) -> dict[str, Any]:
        """Reads all rows and returns the first; if there is one question, its answers also become column ``label``."""
        rows = []
        for number, record in self._objects():
            try:
                rows.append((number, row_of(record)))
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                raise DataError(
                    f"{self.source} {self.unit} {number} is not as {self.tool} exports it ({error}); export it again"
                ) from error
        questions: dict[str, None] = dict.fromkeys(name for _, row in rows for name in row.answers)
        has_label = any("label" in row.columns for _, row in rows)
        if has_label and questions and "label" not in questions:
            names = ", ".join(map(repr, questions))
            self.notes.append(
                f"The column 'label' of {self.source} stands in its data; the answers are in the column {names}."
            )
        repeated = sum(row.people > 1 for _, row in rows)
        if repeated:
            subject = f"{repeated:,} text{'s' * (repeated > 1)} of {self.source}"
            self.notes.append(f"{subject} have several annotations: the first of each counts.")
        # Answers win over a field of the same name. An old value of ``label`` never counts as an annotator's answer.
        self._document = []
        for number, row in rows:
            missing = None if row.people else Unanswered()
            unlabelled = {"label": missing} if "label" in questions else {}
            columns = {**dict.fromkeys(questions, missing), **row.columns, **unlabelled, **row.answers}
            self._document.append((number, columns))
        if len(questions) == 1 and not has_label:
            for _, columns in self._document:
                columns["label"] = columns[next(iter(questions))]
        self.kind = "document"
        return self._document[0][1]

    @contextmanager
    def _stream(self) -> Iterator[BinaryIO]:
        opener = _COMPRESSED.get(self.path.suffix.lower(), Path.open)
        try:
            with opener(self.path, "rb") as stream:
                yield stream
        except (gzip.BadGzipFile, lzma.LZMAError, EOFError, zlib.error) as error:
            raise DataError(
                f"{self.source} is an incomplete or damaged compressed file ({error}); compress it again"
            ) from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise DataError(f"cannot read {self.source}: {reason}; check the file and its permissions") from error

    def _lines(self) -> Iterator[str]:
        with self._stream() as stream:
            yield from itertools.islice(decoded(stream, self.source, self._encoding)[0], self._skipped, None)

    def _objects(self) -> Iterable[tuple[int, dict[str, Any]]]:
        if self.kind == "jsonl":
            return json_lines(self._lines(), self.source)
        return _fasttext_records(self._lines()) if self.kind == "fasttext" else self._document

    def _read_sheet(self, wanted: Sequence[str]) -> None:
        if importlib.util.find_spec("openpyxl") is None or importlib.util.find_spec("pandas") is None:
            raise UnavailableError(
                f"{self.source} needs the packages pandas and openpyxl, which are not installed; pip install "
                "'recurra[excel]', or save the sheet as CSV"
            )
        import pandas as pd

        try:
            with pd.ExcelFile(self.path) as book:
                first, *others = map(str, book.sheet_names)
                sheet = pd.read_excel(book, dtype=object, keep_default_na=False).rename(columns=str)
        except Exception as error:
            raise DataError(f"{self.source} is not a sheet that can be read ({error}); save it as CSV") from error
        if others:
            self.notes.append(f"Only the sheet '{first}' of {self.source} is read, not {', '.join(map(repr, others))}.")
        for name in [name for name in sheet.columns if folded_names([name]) <= folded_names(wanted)]:
            sheet[name] = sheet[name].map(_as_typed)
        self.kind, self.header = "document", list(sheet.columns)
        # The first row has the names.
        self._document = list(enumerate(sheet.to_dict("records"), start=2))

    def columns(self) -> list[str]:
        """Names of all columns, in their order; for objects the keys of all objects."""
        if self.kind not in ("jsonl", "document", "fasttext"):
            return self.header
        return list(dict.fromkeys(key for _, record in self._objects() for key in record))

    def check(self, columns: Sequence[str]) -> None:
        """Refuses a column that is named twice or, in Parquet, one that holds no single values."""
        check_unique(self.source, columns, columns)
        if self.kind == "parquet":
            from recurra.data.parquet import check_single_values

            check_single_values(self.path, columns)

    def rows(
        self,
        columns: Sequence[str],
        optional: Sequence[str] = (),
        *,
        whole: bool = False,
        lenient: Collection[str] = (),
    ) -> Iterator[Row]:
        """Yields the rows with the values of ``columns``, which must exist, and of ``optional`` ones.

        An object may lack ``lenient`` columns if another has them. Give ``whole`` if all rows will be kept in memory:
        Parquet that unfolds to more than fits is then refused.
        """
        if self.kind == "parquet":
            return self._parquet_rows(columns, optional, whole=whole)
        if self.kind == "txt":
            return ((number, (line.rstrip("\r\n"),)) for number, line in enumerate(self._lines(), start=1))
        if self.kind in ("csv", "tsv"):
            rows = _csv_rows(self._fields(), self.source, self.header, columns, optional)
            return ((number, tuple(map(_choices_of_cell, cells))) for number, cells in rows) if self.tool else rows
        return record_rows(
            self._objects(), self.source, columns, optional, unit=self.unit, lenient=columns if self.tool else lenient
        )

    def _fields(self) -> Iterator[tuple[int, list[str]]]:
        return csv_fields(self._lines(), self.source, self.delimiter, quoted=self._quoted, skipped=self._skipped)

    def _parquet_rows(self, columns: Sequence[str], optional: Sequence[str], *, whole: bool) -> Iterator[Row]:
        from recurra.data.parquet import check_single_values, iterate_parquet

        needed = [find_column(self.source, column, self.header) for column in columns]
        present = [name for name in optional if name in self.header]
        check_single_values(self.path, [*needed, *present])
        number = 0
        for batch in iterate_parquet(self.path, [*needed, *present], whole=whole):
            missing = [None] * len(batch[needed[0]])
            for values in zip(*(batch.get(name, missing) for name in (*needed, *optional)), strict=True):
                number += 1
                yield number, values


MADE_FROM = b"recurra.made_from"
"""Metadata key of Parquet files written from rows in memory; its value is the name of the rows in messages."""


class Unanswered(str):
    """The cell of a text that nobody has answered in a tool; any other empty cell or list may mean no labels."""

    __slots__ = ()


def _fasttext_records(lines: Iterator[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, start=1):
        words = line.split()
        labels = [word.removeprefix(_FASTTEXT_PREFIX) for word in words if word.startswith(_FASTTEXT_PREFIX)]
        text = " ".join(word for word in words if not word.startswith(_FASTTEXT_PREFIX))
        if words:
            yield number, {"text": text, "label": labels}


def _csv_rows(
    lines: Iterator[tuple[int, list[str]]],
    source: str,
    header: Sequence[str],
    columns: Sequence[str],
    optional: Sequence[str] = (),
) -> Iterator[Row]:
    """Yields the rows after the header, which is the first item of ``lines``."""
    names = [*(find_column(source, column, header) for column in columns), *optional]
    check_unique(source, names, header)
    positions = [header.index(name) if name in header else None for name in names]
    for number, fields in itertools.islice(lines, 1, None):
        if len(fields) != len(header):
            raise DataError(
                f"{source} line {number} has {len(fields)} fields, the header has {len(header)}; "
                "put texts that hold the separator into double quotes"
            )
        yield number, tuple(None if position is None else fields[position] for position in positions)


def _first_line(lines: Iterable[str]) -> tuple[int, str]:
    """The first line that is not blank, and its number from 1."""
    return next(((number, line) for number, line in enumerate(lines, start=1) if not line.isspace()), (0, ""))


def _as_typed(cell: Any) -> Any:
    """The text of a cell that Excel turned into a number or a truth value; empty for Excel's errors."""
    if not isinstance(cell, int | float):
        return cell
    return "" if math.isnan(cell) else str(cell).lower()


class ToolRow(NamedTuple):
    """A row from a labelling tool's record: columns of its data, answers by question, and how many people answered."""

    columns: dict[str, Any]
    answers: Mapping[str, Any]
    people: int


def _tool_of(record: Mapping[str, Any]) -> tuple[str, Callable[[dict[str, Any]], ToolRow]] | None:
    """The labelling tool that writes such records, and the function that makes a row of one; None if unknown."""
    if isinstance(record.get("data"), dict) and "annotations" in record:
        return "Label Studio", _label_studio_row
    if {"annotation_id", "annotator"} <= {*record}:
        return "Label Studio", _label_studio_minimal_row
    if isinstance(record.get("fields"), dict) and {"responses", "suggestions"} & {*record}:
        return "Argilla", _argilla_row
    answered = record.get("answer") in ("accept", "reject", "ignore") and {"accept", "label", "options"} & {*record}
    if "_input_hash" in record or answered:
        return "Prodigy", _prodigy_row
    return None


def _choices_of_cell(cell: Any) -> Any:
    if isinstance(cell, str) and cell.startswith('{"choices"'):
        with suppress(ValueError, RecursionError):
            cell = json.loads(cell)
    return cell["choices"] if isinstance(cell, dict) and isinstance(cell.get("choices"), list) else cell


def _label_studio_row(record: dict[str, Any]) -> ToolRow:
    answers: dict[str, list[Any]] = {}
    items = (item for item in record.get("annotations") or () if isinstance(item, dict))
    answered = [item for item in items if not item.get("was_cancelled")]
    for result in answered[0].get("result", []) if answered else ():
        value = result.get("value", {})
        if "choices" in value:
            answers.setdefault(str(result.get("from_name", "label")), []).extend(value["choices"])
        elif result.get("type") in ("labels", "hypertextlabels"):
            raise ValueError("it marks passages of a text, and choices for whole texts are read")
    return ToolRow({"id": record.get("id"), **record["data"]}, answers, len(answered))


def _label_studio_minimal_row(record: dict[str, Any]) -> ToolRow:
    return ToolRow({key: _choices_of_cell(cell) for key, cell in record.items()}, {}, 1)


def _argilla_row(record: dict[str, Any]) -> ToolRow:
    responses = record.get("responses") or {}
    if isinstance(responses, list):
        replies = [reply.get("values") or {} for reply in _submitted(responses)]
        responses = {name: [values[name] for values in replies if name in values] for name in (replies or [{}])[0]}
    submitted = {name: values for name, replies in responses.items() if (values := _submitted(replies or ()))}
    answers = {name: values[0]["value"] for name, values in submitted.items()}
    people = max(map(len, submitted.values()), default=0)
    return ToolRow({"id": record.get("id"), **record["fields"]}, answers, people)


def _submitted(replies: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The replies that are neither drafts nor discarded; some versions write no status."""
    return [reply for reply in replies if reply.get("status") in (None, "submitted")]


def _prodigy_row(record: dict[str, Any]) -> ToolRow:
    answer = record.get("accept", record.get("label"))
    accepted = record.get("answer", "accept") == "accept"
    return ToolRow({**record, "label": answer if accepted else Unanswered()}, {}, 1)


@dataclass(frozen=True, eq=False)
class TextRows:
    """Some rows of a stream: texts, and a list of values for each of the other columns."""

    texts: list[str]
    columns: list[list[Any]]


def stream_texts(
    path: Path | str, text_column: str = "text", chunk_rows: int = CHUNK_ROWS, *, encoding: str | None = None
) -> Iterator[list[str]]:
    """Yields the raw texts of a file in chunks, in constant memory; ``""`` for a missing text. See `stream_rows`."""
    return (rows.texts for rows in stream_rows(path, text_column, (), chunk_rows, encoding=encoding))


def stream_rows(
    path: Path | str,
    text_column: str,
    columns: Sequence[str],
    chunk_rows: int = CHUNK_ROWS,
    *,
    encoding: str | None = None,
) -> Iterator[TextRows]:
    """Yields the raw texts of a file in chunks, as `stream_texts` does, with the values of other columns.

    ``-`` is standard input. Its lines are texts; JSON objects if the first begins with a brace; a table if the first is
    a header of several columns that include the text's. A chunk ends early once its cells have `MAX_CHUNK_CHARACTERS`.
    Chunks before a defect are still yielded.
    """
    if str(path) == STANDARD_INPUT:
        source, unit = "standard input", "line"
        width, rows = _standard_rows(text_column, encoding)
    else:
        table = TableFile(path, text_column.split(","), encoding=encoding, allowed=STREAM_FORMATS)
        names = split_names(text_column, table.header)
        source, unit, width, rows = table.source, table.unit, len(names), table.rows(names, columns)
    texts: list[str] = []
    others: list[tuple[Any, ...]] = []
    characters = 0
    with naming_options(dict.fromkeys((text_column, *text_column.split(",")), "--text-column")):
        for number, values in rows:
            texts.append(join_cells([check_text(cell, source, unit, number) for cell in values[:width]], width))
            others.append(values[width:])
            characters += len(texts[-1])
            if columns:
                cells = [cell for cell in values[width:] if isinstance(cell, str)]
                characters += sum(len(check_text(cell, source, unit, number)) for cell in cells)
            if len(texts) == chunk_rows or characters >= MAX_CHUNK_CHARACTERS:
                yield TextRows(texts, [list(column) for column in zip(*others, strict=True)])
                texts, others, characters = [], [], 0
    if texts:
        yield TextRows(texts, [list(column) for column in zip(*others, strict=True)])


def _standard_rows(text_column: str, encoding: str | None) -> tuple[int, Iterator[Row]]:
    """The number of columns that make up a text, and the rows."""
    source = "standard input"
    lines = decoded(sys.stdin.buffer, source, encoding)[0]
    first = next(lines, "")
    lines = itertools.chain([first] if first else [], lines)
    if first.lstrip().startswith("{"):
        _, names = next(json_lines([first], source))
        columns = split_names(text_column, list(names))
        return len(columns), record_rows(json_lines(lines, source), source, columns, ())
    delimiter = delimiter_of(first, text_column.split(","), ",")
    header = header_names(first, delimiter)
    columns = split_names(text_column, header)
    if len(header) > 1 and folded_names(columns) <= folded_names(header):
        next_lines = [*itertools.islice(lines, 2)]
        lines = itertools.chain(next_lines, lines)
        # A first line such as "text, and more" is no header: the next line then has another number of fields.
        if '"' in next_lines[-1] or len(header_names(next_lines[-1], delimiter)) == len(header):
            fields = csv_fields(lines, source, delimiter, quoted=True, skipped=0)
            return len(columns), _csv_rows(fields, source, header, columns)
    return 1, ((number, (line.rstrip("\r\n"),)) for number, line in enumerate(lines, start=1))
