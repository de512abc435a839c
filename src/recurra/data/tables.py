"""Any file of a user as one table: rows of the columns that are asked for, one at a time, in constant memory.

Encoding, line ends, separator, quoting, and the labelling tool that wrote a file are seen from its content; what is not
the plain case is said in `TableFile.notes`.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import importlib.util
import io
import itertools
import json
import lzma
import re
import stat
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from recurra.core.configuration import explain, parse_yaml
from recurra.core.errors import DataError, UnavailableError, did_you_mean
from recurra.data.formats import (
    SEPARATORS,
    Row,
    check_text,
    check_unique,
    csv_fields,
    csv_rows,
    decoded,
    delimiter_of,
    find_column,
    join_cells,
    json_elements,
    json_lines,
    naming_options,
    quotes_are_text,
    record_rows,
    split_names,
)

# Of a file that is no list of rows, and so is read whole.
MAX_DOCUMENT_CHARACTERS = 2**28
STANDARD_INPUT = "-"
# Large enough for batches of like length, small enough that a chunk of long texts takes a few MiB.
CHUNK_ROWS = 4096
# Texts of this many characters are cleaned and tokenised at once; a chunk of texts of usual length has a tenth of it.
MAX_CHUNK_CHARACTERS = 2**25

TABLE_FORMATS = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".xlsx", ".yml")
STREAM_FORMATS = (*TABLE_FORMATS, ".txt")
_SAME_FORMAT = {".tab": ".tsv", ".ndjson": ".jsonl", ".yaml": ".yml"}
_COMPRESSED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_FASTTEXT_PREFIX = "__label__"
_SEP_LINE = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)


def format_of(path: Path | str) -> str:
    """The format that a name says, with a dot and without the ending of a compressed file."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix in _COMPRESSED:
        suffix = Path(path.stem).suffix.lower()
    return _SAME_FORMAT.get(suffix, suffix)


def check_path(path: Path, allowed: Sequence[str]) -> None:
    """Refuses what is not a readable file of a known format; a wrong name with the closest one."""
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
    if format_of(path) not in allowed and not is_fasttext(path):
        raise DataError(
            f"'{path}' has the unknown extension '{path.suffix}'; allowed: {', '.join(allowed)}, "
            f"each also with {', '.join(_COMPRESSED)} behind it; rename it or save it in one of these formats"
        )
    if status.st_size == 0 and path.suffix.lower() != ".txt":
        raise DataError(f"'{path}' is empty; give a file with rows")


def _siblings(path: Path) -> list[str]:
    with suppress(OSError, ValueError):
        return [entry.name for entry in path.parent.iterdir()]
    return []


def is_fasttext(path: Path | str) -> bool:
    """Whether a file begins as those of fastText do, whatever its name says."""
    try:
        with Path(path).open("rb") as stream:
            return stream.read(len(_FASTTEXT_PREFIX) + 3).removeprefix(codecs.BOM_UTF8).startswith(b"__label__")
    except (OSError, ValueError):
        return False


def check_pyarrow(otherwise: str) -> None:
    """Refuses Parquet where pyarrow is not installed, as in the slim environment; ``otherwise`` is what to do then."""
    if importlib.util.find_spec("pyarrow") is None:
        raise UnavailableError(
            f"Parquet needs the package pyarrow, which is not installed; pip install pyarrow, {otherwise}"
        )


class TableFile:
    """A file that is opened as often as its rows are asked for.

    Raises:
        RecurraError: If it cannot be read, or its format needs a package that is not installed.
    """

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
        self.answered_again: set[int] = set()
        self._encoding = encoding
        self._flatten: Callable[[dict[str, Any]], dict[str, Any]] | None = None
        self.delimiter, self._quoted, self._skipped = "", True, 0
        self.kind = format_of(self.path).removeprefix(".")
        if self.kind == "parquet":
            self._open_parquet()
        elif self.kind == "xlsx":
            self.header = [str(name) for name in self._sheet().columns]
        else:
            self._open_text(wanted)

    def _open_parquet(self) -> None:
        check_pyarrow("or use CSV or JSONL")
        from recurra.data.parquet import open_parquet

        with open_parquet(self.path) as file:
            self.header = list(file.schema_arrow.names)
            # Rows that a program had in memory are called by what they came in.
            written_from = (file.schema_arrow.metadata or {}).get(MADE_FROM)
        if written_from:
            self.source = written_from.decode("utf-8")

    def _open_text(self, wanted: Sequence[str]) -> None:
        pieces = self.kind == "json"
        with self._stream() as stream:
            lines, encoding, has_mark = decoded(stream, self.source, self._encoding, pieces=pieces)
            first = next((line for line in lines if not line.isspace()), "")
        if encoding != "utf-8":
            why = "its first bytes say" if has_mark else "was asked for"
            self.notes.append(f"{self.source} is read as {encoding.upper()}, as {why}.")
        start = first.lstrip()
        if first.startswith(_FASTTEXT_PREFIX):
            self.kind = "fasttext"
        elif self.kind in ("json", "jsonl") and start.startswith("["):
            self.kind = "list"
        elif self.kind == "json":
            line, _, more = first.partition("\n")
            self.kind = "jsonl" if more.strip() and _is_json(line) else "document"
        if self.kind == "txt":
            self.unit, self.header = "line", []
            return
        if self.kind in ("csv", "tsv"):
            self._open_csv(first, wanted)
            return
        self.unit = "line" if self.kind in ("jsonl", "fasttext") else "row"
        self._recognise()

    def _open_csv(self, first: str, wanted: Sequence[str]) -> None:
        self.unit = "line"
        usual = "\t" if self.kind == "tsv" else ","
        declared = _SEP_LINE.fullmatch(first)
        if declared:
            with self._stream() as stream:
                lines = decoded(stream, self.source, self._encoding)[0]
                before = list(itertools.takewhile(lambda line: not _SEP_LINE.fullmatch(line), lines))
                first = next((line for line in lines if not line.isspace()), "")
            self.delimiter, self._skipped = declared[1], len(before) + 1
        else:
            self.delimiter = delimiter_of(first, wanted, usual)
        if self.delimiter != usual:
            name = SEPARATORS.get(self.delimiter, f"'{self.delimiter}'")
            why = f"its line sep={self.delimiter} says" if declared else "its header has them"
            self.notes.append(f"{self.source} is read with {name} between its fields, as {why}.")
        if self.delimiter == "\t" and quotes_are_text(self._lines, "\t"):
            self._quoted = False
            self.notes.append(
                f"{self.source} is read with its quotation marks as characters: as quoting they would not close, or "
                "would join rows."
            )
        fields = csv_fields(self._lines(), self.source, self.delimiter, quoted=self._quoted, skipped=self._skipped)
        self.header = [name.strip() for name in next(fields, (0, []))[1]]
        if {"annotation_id", "annotator"} <= {*self.header}:
            self._name_tool("Label Studio")

    def _recognise(self) -> None:
        first = next(self._records(), None)
        tool = None if first is None else _tool_of(first[1])
        if tool is not None:
            self._flatten = tool[1]
            self._name_tool(tool[0])
            first = next(self._records())
        self.header = [] if first is None else list(first[1])

    def _name_tool(self, name: str) -> None:
        self.tool = name
        self.notes.append(f"{self.source} is read as an export of {name}.")

    def all_notes(self) -> list[str]:
        """The notes, with what only reading the rows has told."""
        again = len(self.answered_again)
        several = f"{again:,} text{'s' * (again > 1)} of {self.source}"
        return [*self.notes, *([f"{several} have several annotations: the first of each counts."] if again else [])]

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

    def _lines(self, *, pieces: bool = False) -> Iterator[str]:
        with self._stream() as stream:
            lines = decoded(stream, self.source, self._encoding, pieces=pieces)[0]
            yield from itertools.islice(lines, self._skipped, None)

    def _records(self) -> Iterator[tuple[int, dict[str, Any]]]:
        if self.kind == "jsonl":
            records = json_lines(self._lines(), self.source)
        elif self.kind == "list":
            records = json_elements(self._lines(pieces=True), self.source)
        elif self.kind == "fasttext":
            records = _fasttext_records(self._lines())
        else:
            text = self._document()
            rows = _rasa_rows(text, self.source) if self.kind == "yml" else _rows_of_document(text, self.source)
            records = enumerate(rows, start=1)
        for place, record in records:
            if self._flatten and _answered(record) > 1:
                self.answered_again.add(place)
            try:
                yield place, self._flatten(record) if self._flatten else record
            except (AttributeError, TypeError, ValueError) as error:
                raise DataError(
                    f"{self.source} {self.unit} {place} is not as {self.tool} exports it ({error}); export it again"
                ) from error

    def _document(self) -> str:
        text = io.StringIO()
        for piece in self._lines(pieces=True):
            if text.write(piece) and text.tell() > MAX_DOCUMENT_CHARACTERS:
                most = f"{MAX_DOCUMENT_CHARACTERS:,} characters"
                raise DataError(f"{self.source} is one object of more than {most}; write one JSON object a line")
        return text.getvalue()

    def _sheet(self) -> Any:
        if importlib.util.find_spec("openpyxl") is None or importlib.util.find_spec("pandas") is None:
            raise UnavailableError(
                f"{self.source} needs the packages pandas and openpyxl, which are not installed; pip install "
                "'recurra[excel]', or save the sheet as CSV"
            )
        import pandas as pd

        try:
            return pd.read_excel(self.path, dtype=object, keep_default_na=False)
        except Exception as error:
            raise DataError(f"{self.source} is not a sheet that can be read ({error}); save it as CSV") from error

    def columns(self) -> list[str]:
        """Names of all columns, in their order; of objects those of all of them."""
        if self.kind not in ("jsonl", "list", "document", "fasttext", "yml"):
            return self.header
        return list(dict.fromkeys(key for _, record in self._records() for key in record))

    def check(self, columns: Sequence[str]) -> None:
        """Refuses columns that cannot be read, or not all together."""
        check_unique(self.source, columns, columns)
        if self.kind == "parquet":
            from recurra.data.parquet import check_single_values

            check_single_values(self.path, columns)

    def rows(self, columns: Sequence[str], optional: Sequence[str] = (), *, whole: bool = False) -> Iterator[Row]:
        """Yields the rows, with the values of columns that must be there and of optional ones.

        If all rows will be kept (``whole``), Parquet that unfolds to too much for that is refused at once.
        """
        if self.kind == "parquet":
            return self._parquet_rows(columns, optional, whole=whole)
        if self.kind == "xlsx":
            return self._sheet_rows(columns, optional)
        if self.kind == "txt":
            return ((place, (line.rstrip("\r\n"),)) for place, line in enumerate(self._lines(), start=1))
        if self.kind not in ("csv", "tsv"):
            return record_rows(
                self._records(), self.source, columns, optional, unit=self.unit, lenient=self._flatten is not None
            )
        layout: Any = {"quoted": self._quoted, "skipped": self._skipped}
        rows = csv_rows(self._lines(), self.source, columns, optional, self.delimiter, **layout)
        return ((place, tuple(map(_choices_of_cell, cells))) for place, cells in rows) if self.tool else rows

    def _parquet_rows(self, columns: Sequence[str], optional: Sequence[str], *, whole: bool) -> Iterator[Row]:
        from recurra.data.parquet import check_single_values, iterate_parquet

        needed = [find_column(self.source, column, self.header) for column in columns]
        present = [name for name in optional if name in self.header]
        check_single_values(self.path, [*needed, *present])
        place = 0
        for batch in iterate_parquet(self.path, [*needed, *present], whole=whole):
            missing = [None] * len(batch[needed[0]])
            for values in zip(*(batch.get(name, missing) for name in (*needed, *optional)), strict=True):
                place += 1
                yield place, values

    def _sheet_rows(self, columns: Sequence[str], optional: Sequence[str]) -> Iterator[Row]:
        sheet = self._sheet()
        sheet.columns = self.header
        needed = [find_column(self.source, column, self.header) for column in columns]
        check_unique(self.source, [*needed, *optional], self.header)
        cells = [sheet[name].tolist() if name in self.header else [None] * len(sheet) for name in (*needed, *optional)]
        # The first row has the names.
        yield from enumerate(zip(*cells, strict=True), start=2)


MADE_FROM = b"recurra.made_from"
"""Key in the metadata of Parquet files that were written from rows in memory: what messages call them."""


class Choices(list[Any]):
    """Labels that a tool writes as a list even where a text has one."""


def _is_json(text: str) -> bool:
    with suppress(ValueError, RecursionError):
        json.loads(text)
        return True
    return False


def _rows_of_document(text: str, source: str) -> Iterator[dict[str, Any]]:
    """Rows of one JSON object: of the one list of objects in it, or of its columns."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f"line {getattr(error, 'lineno', 1)}, column {getattr(error, 'colno', 1)}"
        raise DataError(
            f"{source} {where} is not valid JSON ({getattr(error, 'msg', error)}); write one JSON object a line, or a "
            "list of objects"
        ) from error
    cells = list(value.values()) if isinstance(value, dict) else []
    if cells and not any(isinstance(cell, list | dict) for cell in cells):
        return iter([value])
    nested = [cell for inner in cells if isinstance(inner, dict) for cell in inner.values()]
    lists = [cell for cell in (*cells, *nested) if isinstance(cell, list) and cell and isinstance(cell[0], dict)]
    if len(lists) == 1 and all(isinstance(row, dict) for row in lists[0]):
        # Rasa's old files call the label intent.
        return ({"label": row["intent"], **row} if "intent" in row else row for row in lists[0])
    columns = [list(cell.values()) if isinstance(cell, dict) else cell for cell in cells]
    if not columns or not all(isinstance(cell, list) and len(cell) == len(columns[0]) for cell in columns):
        raise DataError(
            f"{source} holds one JSON object with {', '.join(map(repr, list(value)[:8])) or 'nothing'}; write one JSON "
            "object a line, or a list of objects"
        )
    return (dict(zip(value, row, strict=True)) for row in zip(*columns, strict=True))


_ENTITY = re.compile(r"\[([^\]]*)\](?:\{[^}]*\}|\([^)]*\))")


def _rasa_rows(text: str, source: str) -> Iterator[dict[str, Any]]:
    """Examples of Rasa's training data, with their intents; entities are left as their words."""
    try:
        value = parse_yaml(text)
    except yaml.YAMLError as error:
        raise DataError(f"{source} is not valid YAML: {explain(error)}") from error
    items = value.get("nlu") if isinstance(value, dict) else None
    if not isinstance(items, list):
        raise DataError(f"{source} is no training data of Rasa, which have 'nlu' with intents; give CSV or JSONL")
    for item in items:
        if not isinstance(item, dict) or "intent" not in item:
            continue
        examples = item.get("examples", "")
        lines = examples.splitlines() if isinstance(examples, str) else [str(one["text"]) for one in examples]
        for line in lines:
            words = _ENTITY.sub(r"\1", line.strip().removeprefix("-").strip())
            if words:
                yield {"text": words, "label": str(item["intent"]), "intent": str(item["intent"])}


def _fasttext_records(lines: Iterator[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for place, line in enumerate(lines, start=1):
        words = line.split()
        labels = [word.removeprefix(_FASTTEXT_PREFIX) for word in words if word.startswith(_FASTTEXT_PREFIX)]
        text = " ".join(word for word in words if not word.startswith(_FASTTEXT_PREFIX))
        if words:
            yield place, {"text": text, "label": Choices(labels)}


def _tool_of(record: Mapping[str, Any]) -> tuple[str, Callable[[dict[str, Any]], dict[str, Any]]] | None:
    """The labelling tool that writes such records, and what makes a row of one."""
    if isinstance(record.get("data"), dict) and {"annotations", "completions"} & {*record}:
        return "Label Studio", _label_studio_row
    if {"annotation_id", "annotator"} <= {*record}:
        return "Label Studio", lambda row: {key: _choices_of_cell(cell) for key, cell in row.items()}
    if isinstance(record.get("fields"), dict) and {"responses", "suggestions"} & {*record}:
        return "Argilla", _argilla_row
    if "inputs" in record and "annotation" in record:
        return "Argilla", _old_argilla_row
    if "_input_hash" in record or ("answer" in record and {"accept", "label", "options"} & {*record}):
        return "Prodigy", _prodigy_row
    return None


def _choices_of_cell(cell: Any) -> Any:
    if isinstance(cell, str) and cell.startswith('{"choices"') and _is_json(cell):
        cell = json.loads(cell)
    return Choices(cell["choices"]) if isinstance(cell, dict) and isinstance(cell.get("choices"), list) else cell


def _with_answers(row: dict[str, Any], answers: Mapping[str, Any]) -> dict[str, Any]:
    """A row with its answers by question, and as ``label`` where there is one question."""
    alone = {"label": next(iter(answers.values()))} if len(answers) == 1 and "label" not in row else {}
    return {**row, **answers, **alone}


def _label_studio_row(record: dict[str, Any]) -> dict[str, Any]:
    answers: dict[str, Choices] = {}
    given = [one for one in record.get("annotations") or record.get("completions") or () if isinstance(one, dict)]
    for result in next((one.get("result", []) for one in given if not one.get("was_cancelled")), []):
        value = result.get("value", {})
        if "choices" in value:
            answers.setdefault(str(result.get("from_name", "label")), Choices()).extend(value["choices"])
        elif result.get("type") in ("labels", "hypertextlabels"):
            raise ValueError("it marks passages of a text, and choices for whole texts are read")
    return _with_answers({"id": record.get("id"), **record["data"]}, answers)


def _answered(record: Mapping[str, Any]) -> int:
    """By how many people a text of Label Studio or Argilla was labelled; of their answers the first is read."""
    given = record.get("annotations") or record.get("completions")
    if isinstance(given, list):
        return sum(isinstance(one, dict) and not one.get("was_cancelled") for one in given)
    given = record.get("responses")
    if isinstance(given, list):
        return sum(isinstance(one, dict) and one.get("status") != "discarded" for one in given)
    answers = given.values() if isinstance(given, dict) else ()
    return max((len(one) for one in answers if isinstance(one, list)), default=0)


def _argilla_row(record: dict[str, Any]) -> dict[str, Any]:
    responses = record.get("responses") or {}
    if isinstance(responses, list):
        values = next((one.get("values") or {} for one in responses if one.get("status") != "discarded"), {})
        responses = {name: [value] for name, value in values.items()}
    answers = {name: _as_choices(given[0]["value"]) for name, given in responses.items() if given}
    return _with_answers({"id": record.get("id"), **record["fields"]}, answers)


def _old_argilla_row(record: dict[str, Any]) -> dict[str, Any]:
    inputs = record["inputs"]
    fields = inputs if isinstance(inputs, dict) else {"text": inputs}
    return {"text": record.get("text"), "id": record.get("id"), **fields, "label": _as_choices(record["annotation"])}


def _prodigy_row(record: dict[str, Any]) -> dict[str, Any]:
    answer = record.get("accept", record.get("label"))
    accepted = record.get("answer", "accept") == "accept"
    return {**record, "label": _as_choices(answer) if accepted else None}


def _as_choices(value: Any) -> Any:
    return Choices(value) if isinstance(value, list) else value


@dataclass(frozen=True, eq=False)
class TextRows:
    """Some rows of a stream.

    ``columns`` are the values of those that were asked for beside the text, one list each.
    """

    texts: list[str]
    columns: list[list[Any]]


def stream_texts(
    path: Path | str, text_column: str = "text", chunk_rows: int = CHUNK_ROWS, *, encoding: str | None = None
) -> Iterator[list[str]]:
    """Yields the raw texts of a file in chunks, in constant memory; ``""`` where there is none; see `stream_rows`."""
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

    Args:
        path: A file of any format, ``.txt`` with one text a line among them, or ``-`` for standard input, whose lines
            are texts or, if the first begins with a brace, JSON objects.
        text_column: Column with the text; or several with commas between, which are joined.
        columns: Further columns, the text's own perhaps among them; a row that lacks one has None there.
        chunk_rows: Rows a chunk; fewer where their cells have `MAX_CHUNK_CHARACTERS` together.

    Raises:
        DataError: If the file cannot be read; what came before the defect was yielded.
    """
    if chunk_rows < 1:
        raise ValueError(f"chunk_rows {chunk_rows} must be at least 1")
    texts: list[str] = []
    others: list[tuple[Any, ...]] = []
    characters = 0
    source, unit, width, rows = _text_rows(path, text_column, columns, encoding)
    with naming_options(dict.fromkeys((text_column, *text_column.split(",")), "--text-column")):
        for place, values in rows:
            texts.append(join_cells([check_text(cell, source, unit, place) for cell in values[:width]], width))
            others.append(values[width:])
            characters += len(texts[-1])
            if columns:
                cells = [cell for cell in values[width:] if isinstance(cell, str)]
                characters += sum(len(check_text(cell, source, unit, place)) for cell in cells)
            if len(texts) == chunk_rows or characters >= MAX_CHUNK_CHARACTERS:
                yield TextRows(texts, _by_column(others))
                texts, others, characters = [], [], 0
    if texts:
        yield TextRows(texts, _by_column(others))


def _by_column(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _text_rows(
    path: Path | str, text_column: str, columns: Sequence[str], encoding: str | None
) -> tuple[str, str, int, Iterator[Row]]:
    """What messages call a source, what its places count, the number of columns that make the text, and the rows."""
    if str(path) == STANDARD_INPUT:
        source = "standard input"
        return source, "line", 1, plain_rows(sys.stdin.buffer, source, text_column, encoding=encoding)
    table = TableFile(path, text_column.split(","), encoding=encoding, allowed=STREAM_FORMATS)
    names = split_names(text_column, table.header)
    return table.source, table.unit, len(names), table.rows(names, columns)


def plain_rows(
    stream: BinaryIO, source: str, jsonl_column: str | None = None, *, encoding: str | None = None
) -> Iterator[Row]:
    """Yields the lines of a stream of bytes, each as one text; or the cells of a column, if they are JSON objects."""
    lines = decoded(stream, source, encoding)[0]
    first = next(lines, "")
    lines = itertools.chain([first] if first else [], lines)
    if jsonl_column is not None and first.lstrip().startswith("{"):
        yield from record_rows(json_lines(lines, source), source, (jsonl_column,), ())
        return
    for place, line in enumerate(lines, start=1):
        yield place, (line.rstrip("\r\n"),)
