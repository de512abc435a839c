"""Files of a user: a labelled table in memory, or texts streamed in constant memory."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from recurra.core.errors import DataError
from recurra.data.cleaning import clean_text
from recurra.data.formats import (
    MAX_CELL_CHARACTERS,
    TABLE_FORMATS,
    Row,
    check_path,
    csv_delimiter,
    plain_rows,
    table_rows,
    too_long,
)

DEFAULT_ID_COLUMN = "id"
# A longer one is a text, and would stand in every table of a report.
MAX_LABEL_CHARACTERS = 500
STANDARD_INPUT = "-"
# Large enough for batches of like length, small enough that a chunk of long texts takes a few MiB.
CHUNK_ROWS = 4096
# Texts of this many characters are cleaned and tokenised at once; a chunk of texts of usual length has a tenth of it.
MAX_CHUNK_CHARACTERS = 2**25
STREAM_FORMATS = (*TABLE_FORMATS, ".txt")


class LabelReader(Protocol):
    """Reads the cells of a label column; see `recurra.data.labels.LabelColumn`."""

    def read(self, cell: Any, word: Callable[[Any], str]) -> Any:
        """What a row's labels are; the empty text if there is none where one is needed; a ValueError says why not."""
        ...


@dataclass(frozen=True)
class FileTable:
    """Labelled rows of a file, cleaned.

    Attributes:
        source: The file.
        unit: What ``places`` counts: ``line`` or ``row``.
        texts: Cleaned texts, none empty.
        labels: Labels as words; where a row may have several, tuples of them.
        ids: Unique identities: the id column, or the place.
        groups: Values of the group column, or None without one; an empty value groups the row with no other.
        places: Where each row stands in the file, from 1.
        empty: Rows left out because no text was left after cleaning.
        headers: Places of rows that repeat the names of the columns, as where files were put behind each other.
        swallowed: Places of rows whose text holds lines that look like rows: a quotation mark that opens there is
            closed lines later.
        unlabelled: Places of rows left out because they have no label.
        delimiter: What stands between the fields of CSV and TSV; None of others.
    """

    source: str
    unit: str
    texts: list[str]
    labels: list[Any]
    ids: list[str]
    groups: list[str] | None
    places: list[int]
    empty: int
    headers: list[int] = field(default_factory=list)
    swallowed: list[int] = field(default_factory=list)
    unlabelled: list[int] = field(default_factory=list)
    delimiter: str | None = None

    def __len__(self) -> int:
        return len(self.texts)


def read_table(
    path: Path | str,
    text_column: str,
    label_column: str,
    group_column: str | None = None,
    id_column: str | None = None,
    *,
    labels: LabelReader | None = None,
    skip_unlabelled: bool | None = None,
) -> FileTable:
    """Reads a labelled CSV, TSV, JSONL or Parquet file, cleans its texts and drops those that are empty then.

    Args:
        path: The file; its extension says the format.
        text_column: Column with the text.
        label_column: Column with the label: words or whole numbers.
        group_column: Column whose equal values belong together.
        id_column: Column with unique identities; None takes ``id`` if there is such a column, else the place.
        labels: Reads the cells of the label column; none takes words.
        skip_unlabelled: Whether rows without a label are left out and told in the table instead of an error; None is an
            error too, for callers whose users have no such choice.

    Raises:
        DataError: If the file cannot be used, with the place and what to do.
    """
    path = Path(path)
    check_path(path, TABLE_FORMATS)
    unit = _unit(path)
    columns = [name for name in (text_column, label_column, group_column, id_column) if name]
    optional = [] if id_column else [DEFAULT_ID_COLUMN]
    texts, found, ids, groups, places, headers = [], [], [], [], [], []
    empty = 0
    unlabelled: list[int] = []
    # Fields at both ends of the further lines of a cell, by the place of the row.
    inner: dict[int, set[str]] = {}
    delimiter = csv_delimiter(path, columns) if path.suffix.lower() in (".csv", ".tsv") else None
    for place, values in table_rows(path, columns, optional, whole=True):
        text = clean_text(check_text(values[0], str(path), unit, place))
        if not text:
            empty += 1
            continue
        word = partial(as_word, path=path, unit=unit, place=place, column=label_column)
        try:
            label = word(values[1]) if labels is None else labels.read(values[1], word)
        except ValueError as error:
            raise DataError(f"'{path}' {unit} {place}: column '{label_column}' {error}") from error
        if label == "":
            unlabelled.append(place)
            continue
        if len(label) > MAX_LABEL_CHARACTERS:
            raise DataError(
                f"'{path}' {unit} {place} has a label of {len(label):,} characters in column '{label_column}'; at most "
                f"{MAX_LABEL_CHARACTERS} are a label: shorten it, or name the right column with --label-column"
            )
        if delimiter is not None and "\n" in str(values[0]):
            inner[place] = _ends_of_lines(str(values[0]), delimiter)
        texts.append(text)
        found.append(label)
        groups.append(as_word(values[2], path, unit, place, group_column) if group_column else "")
        ids.append(as_word(values[-1], path, unit, place, id_column or DEFAULT_ID_COLUMN) or f"{unit}-{place}")
        places.append(place)
        if _folded(label) == _folded(label_column) and _folded(values[0]) == _folded(text_column):
            headers.append(place)
    if unlabelled and not skip_unlabelled:
        skip = ", or leave them out with --skip-unlabelled" if skip_unlabelled is False else ""
        raise DataError(
            f"'{path}' has {len(unlabelled):,} rows without a label in column '{label_column}' "
            f"({unit} {listed_places(unlabelled)}); fill them in or remove the rows{skip}"
        )
    if not texts:
        what = f"{empty} rows, all without text after cleaning" if empty else "no rows"
        what = f"{len(unlabelled):,} rows with text, all without label" if unlabelled else what
        raise DataError(f"'{path}' has {what}; give rows with text in column '{text_column}'")
    _check_ids(ids, places, path, unit, id_column or DEFAULT_ID_COLUMN)
    known = {label for label in found if isinstance(label, str)}
    swallowed = [place for place, ends in inner.items() if ends & known]
    own_groups = groups if group_column else None
    return FileTable(
        str(path), unit, texts, found, ids, own_groups, places, empty, headers, swallowed, unlabelled, delimiter
    )


def listed_places(places: Sequence[int], most: int = 20) -> str:
    """Places as a person reads them, for example ``3, 9, 12 and 4 more``."""
    more = f" and {len(places) - most:,} more" if len(places) > most else ""
    return ", ".join(map(str, places[:most])) + more


def _folded(name: object) -> str:
    return str(name).strip().casefold()


def _ends_of_lines(cell: str, delimiter: str) -> set[str]:
    """First and last fields of those lines of a cell that have a delimiter."""
    lines = [line.split(delimiter) for line in cell.splitlines() if delimiter in line]
    return {field.strip() for fields in lines for field in (fields[0], fields[-1])}


def _unit(path: Path) -> str:
    return "row" if path.suffix.lower() == ".parquet" else "line"


def check_text(value: Any, source: str, unit: str, place: int, *, longest: int | None = MAX_CELL_CHARACTERS) -> str:
    """Returns a cell as text; nothing is the empty text.

    Args:
        value: The cell.
        source: Where it stands, for messages.
        unit: What ``place`` counts.
        place: Where in the source, from 1.
        longest: Most characters, or None for any number: a novel, not a row of a table.

    Raises:
        DataError: If it is no text, too long, or holds what is not a character.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(
            f"'{source}' {unit} {place}: the text is {_shown(value)}, a {type(value).__name__}; give text, in quotes"
        )
    if longest is not None and len(value) > longest:
        raise too_long(source, unit, place)
    if "\0" in value:
        raise DataError(f"'{source}' {unit} {place}: the text holds a NUL character; remove it")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise DataError(
                f"'{source}' {unit} {place}: the text holds \\u{ord(value[error.start]):04x}, half of a pair, "
                "which is no valid Unicode; write the whole character"
            ) from error
    return value


def as_word(value: Any, path: Path | str, unit: str, place: int, column: str | None) -> str:
    """A label, group or identity as a word; empty if it is missing.

    Raises:
        DataError: If it is neither a word nor a number, with the place.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, str):
        return check_text(" ".join(value.split()), str(path), unit, place)
    raise DataError(
        f"'{path}' {unit} {place}: column '{column}' holds {_shown(value)}, a {type(value).__name__}; "
        "give a word or a whole number"
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _check_ids(ids: list[str], places: list[int], path: Path, unit: str, column: str) -> None:
    first: dict[str, int] = {}
    for identity, place in zip(ids, places, strict=True):
        if identity in first:
            raise DataError(
                f"'{path}' {unit} {place} has the id '{_shown(identity)[1:-1]}' of {unit} {first[identity]} "
                f"(column '{column}'); make the ids unique, or rename the column to have rows numbered"
            )
        first[identity] = place


@dataclass(frozen=True, eq=False)
class TextRows:
    """Some rows of a stream.

    Attributes:
        texts: As they stand in the file; ``""`` where there is none.
        columns: Values of the columns that were asked for beside the text, one list a column.
    """

    texts: list[str]
    columns: list[list[Any]]


def stream_texts(path: Path | str, text_column: str = "text", chunk_rows: int = CHUNK_ROWS) -> Iterator[list[str]]:
    """Yields the raw texts of a file in chunks, in order, in constant memory; rows without text come as ``""``.

    Args:
        path: A CSV, TSV, JSONL, Parquet or ``.txt`` file (one text a line), or ``-`` for standard input, whose lines
            are texts or, if the first begins with a brace, JSON objects.
        text_column: Column with the text.
        chunk_rows: Rows a chunk; fewer where their texts have `MAX_CHUNK_CHARACTERS` together.

    Raises:
        DataError: If the file cannot be read; what came before the defect was yielded.
    """
    return (rows.texts for rows in stream_rows(path, text_column, (), chunk_rows))


def stream_rows(
    path: Path | str, text_column: str, columns: Sequence[str], chunk_rows: int = CHUNK_ROWS
) -> Iterator[TextRows]:
    """Yields rows of a file in chunks as `stream_texts` does, with the values of other columns.

    Args:
        path: As `stream_texts` takes it; one without columns if ``columns`` is empty.
        text_column: Column with the text.
        columns: Further columns, the text's own perhaps among them; a row that lacks one has None there.
        chunk_rows: Rows a chunk; fewer where their cells have `MAX_CHUNK_CHARACTERS` together.

    Raises:
        DataError: If the file cannot be read; what came before the defect was yielded.
    """
    if chunk_rows < 1:
        raise ValueError(f"chunk_rows {chunk_rows} must be at least 1")
    source = "standard input" if str(path) == STANDARD_INPUT else str(path)
    unit = "line" if str(path) == STANDARD_INPUT else _unit(Path(path))
    texts: list[str] = []
    others: list[tuple[Any, ...]] = []
    characters = 0
    for place, values in _text_rows(path, text_column, columns):
        texts.append(check_text(values[0], source, unit, place))
        others.append(values[1:])
        characters += len(texts[-1])
        if columns:
            cells = [cell for cell in values[1:] if isinstance(cell, str)]
            characters += sum(len(check_text(cell, source, unit, place)) for cell in cells)
        if len(texts) == chunk_rows or characters >= MAX_CHUNK_CHARACTERS:
            yield TextRows(texts, _by_column(others))
            texts, others, characters = [], [], 0
    if texts:
        yield TextRows(texts, _by_column(others))


def _by_column(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _text_rows(path: Path | str, text_column: str, columns: Sequence[str]) -> Iterator[Row]:
    if str(path) == STANDARD_INPUT:
        yield from plain_rows(sys.stdin.buffer, "standard input", text_column)
        return
    path = Path(path)
    check_path(path, STREAM_FORMATS)
    if path.suffix.lower() != ".txt":
        yield from table_rows(path, (text_column,), columns)
        return
    try:
        with path.open("rb") as stream:
            yield from plain_rows(stream, str(path))
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror}; check the file and its permissions") from error
