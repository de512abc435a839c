"""Labelled rows of a user's file: reads label cells, finds spellings of the same label, and notes what is odd.

Two labels are spellings of the same label if they are equal after these steps: bring them into Unicode's compatibility
form (NFKC); remove format characters (category Cf: zero-width spaces and joiners, direction marks, soft hyphens, byte
order marks); make every run of white space one space, with none at either end; fold case; and compare plain decimal
numbers (a sign, digits, a point, no exponent) as numbers. So ``NEG`` is ``neg``, and ``1``, ``+1``, ``01`` and ``1.0``
are one label. Labels that look like missing values are reported and never joined.
"""

from __future__ import annotations

import ast
import itertools
import json
import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recurra.core.errors import DataError, did_you_mean
from recurra.core.record import MOST_LABELS
from recurra.data.cleaning import FIRST, clean_text, removed_by
from recurra.data.formats import check_text, find_column, join_cells, naming_options, short_repr, split_names
from recurra.data.tables import TableFile, Unanswered

DEFAULT_ID_COLUMN = "id"
# The options to propose if the label column is missing.
LABEL_OPTIONS = "--label-column, or columns of 0 and 1 with --label-columns"
# A longer label is a text, and would fill every table of a report.
MAX_LABEL_CHARACTERS = 500
AS_JSON = "json"
NEGATIVE_WORDS = frozenset({"negative", "neg", "bad", "no", "false", "dislike", "unhappy", "fail", "-"})
POSITIVE_WORDS = frozenset({"positive", "pos", "good", "yes", "true", "like", "happy", "pass", "+"})


MISSING_WORDS = frozenset({"", "?", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "nil", "missing", "undefined"})

_NUMBER = re.compile(r"([+-]?)(?=\.?[0-9])([0-9]*)(?:\.([0-9]*))?")
_MOST_SHOWN = 10
_READ_LISTS = "--label-separator json (data.label_separator=json)"


def spelling_key(label: str) -> str:
    """Returns the key that all spellings of a label share; see the module."""
    visible = "".join(
        character for character in unicodedata.normalize("NFKC", label) if unicodedata.category(character) != "Cf"
    )
    # Folding the case can leave characters that are no longer in the compatibility form.
    key = " ".join(unicodedata.normalize("NFKC", visible.casefold()).split())
    number = _NUMBER.fullmatch(key)
    if number is None:
        return key
    whole, part = number[2].lstrip("0"), (number[3] or "").rstrip("0")
    sign = "-" if number[1] == "-" and (whole or part) else ""
    return f"{sign}{whole or '0'}{f'.{part}' if part else ''}"


def looks_missing(label: str) -> bool:
    """Whether a label looks like a missing value as programs write it."""
    return spelling_key(label) in MISSING_WORDS


def spellings(counts: Mapping[str, int]) -> list[list[str]]:
    """Groups of spellings of the same label; the most frequent comes first, and of equally frequent ones the first."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for label in counts:
        groups[spelling_key(label)].append(label)
    return [
        sorted(group, key=lambda label: -counts[label])
        for key, group in groups.items()
        if len(group) > 1 and key not in MISSING_WORDS
    ]


def join_spellings(table: FileTable, names: Iterable[str] | None = None) -> FileTable:
    """Returns a table in which every label has one spelling: that in ``names``, or the table's most frequent one.

    With ``names``, a label that spells none of them stays as it is.
    """
    counts = Counter(name for label in table.labels for name in _names(label))
    if names is None:
        chosen = {label: group[0] for group in spellings(counts) for label in group}
    else:
        by_key = {spelling_key(name): name for name in names if not looks_missing(name)}
        chosen = {label: by_key.get(spelling_key(label), label) for label in counts}
    return replace(table, labels=[_respelt(label, chosen) for label in table.labels])


def _names(label: str | Sequence[str]) -> Sequence[str]:
    """The labels of a row, whether it has exactly one or may have several."""
    return (label,) if isinstance(label, str) else label


def _respelt(label: str | Sequence[str], chosen: Mapping[str, str]) -> str | tuple[str, ...]:
    if isinstance(label, str):
        return chosen.get(label, label)
    return tuple(dict.fromkeys(chosen.get(name, name) for name in label))


@dataclass(frozen=True)
class FileTable:
    """Cleaned labelled rows of a file; a row with an empty group is grouped with no other."""

    source: str
    unit: str
    texts: list[str]
    labels: list[Any]
    ids: list[str]
    groups: list[str] | None
    row_numbers: list[int]
    empty: int = 0
    notes: list[str] = field(default_factory=list)
    unlabelled: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.texts)


class LabelColumn:
    """Reads one label a row, from the label column, or from ``columns`` if there are any."""

    columns: Sequence[str] = ()

    def read(self, cell: Any, word: Callable[[Any], str]) -> Any:
        """Returns a row's labels, each made by ``word``; the empty text if a required label is missing.

        Raises:
            ValueError: If no label can be read from the cell; the caller adds file and row.
        """
        parsed = cell if isinstance(cell, list | dict) else _parsed_list(cell)
        if parsed is None:
            return word(cell)
        if isinstance(parsed, list) and len(parsed) <= 1 and not isinstance(next(iter(parsed), None), list | dict):
            return word(parsed[0]) if parsed else ""
        if isinstance(parsed, dict) and not isinstance(parsed.get("choices"), list):
            advice = "; write the name of the label"
        elif any(isinstance(part, list | dict) for part in parsed):
            advice = ": it marks passages; write labels of the whole text"
        else:
            advice = f"; lists of labels are read with {_READ_LISTS}"
        raise ValueError(f"holds {'an object' if isinstance(parsed, dict) else 'a list'}, {short_repr(cell)}{advice}")

    def names(self, table: FileTable, label_column: str) -> list[str]:
        """The class names of a table; refuses a single class, and so many that the column can hardly be a label."""
        counts = Counter(table.labels)
        if len(counts) < 2:
            only = next(iter(counts))
            raise DataError(
                f"{table.source} has one class only: all {len(table)} rows have the label '{only[:60]}' in column "
                f"'{label_column}'; a classifier needs at least two"
            )
        _refuse_many(table, label_column, counts, _separator_hint(counts))
        if len(counts) > MOST_LABELS:
            raise DataError(
                f"{table.source} has {len(counts):,} different labels in column '{label_column}', and a record holds "
                f"at most {MOST_LABELS:,}; give rare labels one name, or leave their rows out"
            )
        return order_labels(counts)

    def values(self, table: FileTable, names: Sequence[str]) -> npt.NDArray[np.int64]:
        """The index of each row's label, ``(rows,)``."""
        index = _index(table, names)
        return np.fromiter((index[label] for label in table.labels), dtype=np.int64, count=len(table))


class SeveralLabels(LabelColumn):
    """Reads cells with any number of labels; an empty cell or list means no labels."""

    def __init__(self, separator: str) -> None:
        self.separator = separator

    def read(self, cell: Any, word: Callable[[Any], str]) -> Any:
        """The labels of a cell, each once, in their order; the empty text for a text that nobody has answered."""
        if isinstance(cell, Unanswered):
            return ""
        parts = self._list(cell) if self.separator == AS_JSON else self._parts(cell)
        return tuple(dict.fromkeys(filter(None, map(word, parts))))

    def _parts(self, cell: Any) -> Sequence[Any]:
        if isinstance(cell, list) or _parsed_list(cell) is not None:
            raise ValueError(f"holds a list, {short_repr(cell)}; read it with {_READ_LISTS}")
        return cell.split(self.separator) if isinstance(cell, str) else [cell]

    def _list(self, cell: Any) -> Sequence[Any]:
        if cell is None or (isinstance(cell, str) and not cell.strip()):
            return []
        parsed = _parsed_list(cell) if isinstance(cell, str) else cell
        if isinstance(parsed, dict) and isinstance(parsed.get("choices"), list):
            parsed = parsed["choices"]
        if not isinstance(parsed, list):
            raise ValueError(f'holds {str(cell)[:60]!r}, which is no JSON list; write ["first", "second"] or []')
        return parsed

    def names(self, table: FileTable, label_column: str) -> list[str]:
        """The label names of a table."""
        counts = Counter(label for labels in table.labels for label in labels)
        listed = self.separator == AS_JSON or any(len(labels) > 1 for labels in table.labels)
        if counts and listed and set(counts) <= {"0", "1", "true", "false"}:
            raise DataError(
                f"{table.source} has lists of {' and '.join(sorted(counts))} in column '{label_column}', which say "
                "whether a text has each label but not what the labels are called; write the names of the labels, or "
                "give a column of 0 and 1 for each and name them with --label-columns"
            )
        if len(counts) < 2:
            raise DataError(
                f"{table.source} has {len(counts)} different labels in column '{label_column}' with the separator "
                f"'{self.separator}'; at least two are needed"
            )
        _refuse_many(table, label_column, counts, f", and the separator, which is '{self.separator}'")
        return order_labels(counts)

    def values(self, table: FileTable, names: Sequence[str]) -> npt.NDArray[np.int64]:
        """0 and 1 a label, ``(rows, labels)``."""
        index = _index(table, names)
        values = np.zeros((len(table), len(names)), dtype=np.int64)
        for row, labels in enumerate(table.labels):
            values[row, [index[label] for label in labels]] = 1
        return values


class LabelColumns(SeveralLabels):
    """Reads one column of 0 and 1 for each label."""

    def __init__(self, columns: Sequence[str]) -> None:
        super().__init__("")
        self.columns = tuple(columns)

    def read(self, cell: Any, word: Callable[[Any], str]) -> Any:
        """The labels whose cell is 1."""
        values = dict(zip(self.columns, (spelling_key(word(part)) for part in cell), strict=True))
        if not all(values.values()):
            return ""
        for name, value in values.items():
            if value not in ("0", "1", "true", "false"):
                raise ValueError(f"'{name}' holds {value[:60]!r}; write 1 where a text has the label, and 0 elsewhere")
        return tuple(name for name, value in values.items() if value in ("1", "true"))

    def names(self, table: FileTable, label_column: str) -> list[str]:
        """The columns in their order, each of which must have a 1 somewhere."""
        del label_column
        present = {label for labels in table.labels for label in labels}
        for name in self.columns:
            if name not in present:
                raise DataError(f"{table.source} has no row with 1 in column '{name}'; leave it out of --label-columns")
        return list(self.columns)


def _refuse_many(table: FileTable, label_column: str, counts: Collection[str], other_options: str) -> None:
    if len(counts) > 2 and len(counts) * 2 > len(table):
        raise DataError(
            f"{table.source} has {len(counts)} different labels in {len(table)} rows of column '{label_column}'; "
            f"name the right column with --label-column{other_options}"
        )


def _parsed_list(cell: Any) -> list[Any] | dict[str, Any] | None:
    """Parses a cell that holds a list or an object as JSON or Python writes it; None for any other cell."""
    if not isinstance(cell, str) or cell.strip()[:1] not in ("[", "{"):
        return None
    # NumPy writes no commas.
    for text in (cell, re.sub(r"""(?<=['"])\s+(?=['"])""", ", ", cell)):
        for read in (json.loads, ast.literal_eval):
            try:
                parsed = read(text.strip())
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
            if isinstance(parsed, list | dict) and not ("' '" in text and read is ast.literal_eval):
                return parsed
    return None


def _separator_hint(counts: Mapping[str, int]) -> str:
    """A hint on the separator that labels seem to hold, and on the option that reads it; empty if there is none."""
    for separator in ("|", ";", ","):
        parts = {part.strip() for label in counts for part in label.split(separator)}
        if sum(separator in label for label in counts) >= 2 and len(parts) < len(counts):
            return (
                f"; with '{separator}' between several labels of a text, read them with --label-separator '{separator}'"
            )
    return ""


def _index(table: FileTable, names: Sequence[str]) -> dict[str, int]:
    """The index of each name; refuses a table with any other label."""
    index = {name: position for position, name in enumerate(names)}
    rows = zip(table.row_numbers, map(_names, table.labels), strict=True)
    unknown = next(((number, label) for number, labels in rows for label in labels if label not in index), None)
    if unknown is None:
        return index
    number, label = unknown
    key = spelling_key(label)
    joins = any(spelling_key(name) == key for name in names) and not looks_missing(label)
    raise DataError(
        f"{table.source} {table.unit} {number} has the label '{label[:60]}'{did_you_mean(label, names)}, which the "
        f"training data lacks; its labels are {', '.join(names[:20])}; correct the label"
        f"{', train with data.join_labels=true' if joins else ''} or add training rows that have it"
    )


def order_labels(labels: Collection[str]) -> list[str]:
    """Returns the class names in the order of their indices.

    Whole numbers are in numeric order. Of a known negative and a known positive word, the negative one comes first, so
    that precision and recall are those of the positive class. Everything else is sorted.
    """
    names = set(labels)
    if len(names) == 2:
        by_sense = sorted(names, key=lambda name: name.casefold() in POSITIVE_WORDS)
        if by_sense[0].casefold() in NEGATIVE_WORDS and by_sense[1].casefold() in POSITIVE_WORDS:
            return by_sense
    if all(name.removeprefix("-").isdecimal() for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def read_table(
    path: Path | str,
    text_column: str,
    label_column: str,
    group_column: str | None = None,
    id_column: str | None = None,
    *,
    labels: LabelColumn | None = None,
    skip_unlabelled: bool | None = None,
    encoding: str | None = None,
    clean: str = FIRST,
    as_written: bool = False,
) -> FileTable:
    """Reads a labelled file, without rows whose cleaned text is empty; returns texts cleaned, or ``as_written``.

    Rows without a label are refused, or with ``skip_unlabelled`` left out and noted; None keeps it out of the error.
    """
    reader = labels or LabelColumn()
    label_columns = list(reader.columns) or [label_column]
    others = [*label_columns, *filter(None, (group_column, id_column))]
    file = TableFile(path, [*text_column.split(","), *others], encoding=encoding)
    text_columns = split_names(text_column, file.header)
    for text, label in itertools.product(text_columns, label_columns):
        # Names that differ in case alone are one column, unless the file has both.
        if text == label or (_folded(text) == _folded(label) and not {text, label} <= {*file.header}):
            raise DataError(f"text and label are both '{text}'; name two different columns")
    options = {
        **dict.fromkeys(text_columns, "--text-column"),
        **dict.fromkeys(label_columns, "--label-columns" if reader.columns else LABEL_OPTIONS),
        **({group_column: "--group-column"} if group_column else {}),
        **({id_column: "--id-column"} if id_column else {}),
    }
    rows = _Rows(file, text_columns, label_columns, group_column, id_column, clean, reader, as_written)
    with naming_options(options):
        optional = [] if id_column else [DEFAULT_ID_COLUMN]
        # Programs omit the key of a missing label.
        lenient = () if reader.columns else label_columns
        for number, values in file.rows([*text_columns, *others], optional, whole=True, lenient=lenient):
            rows.add(number, values)
    return rows.table(skip_unlabelled=skip_unlabelled)


@dataclass
class _Rows:
    file: TableFile
    text_columns: Sequence[str]
    label_columns: Sequence[str]
    group_column: str | None
    id_column: str | None
    clean: str
    reader: LabelColumn
    as_written: bool
    headers: list[int] = field(default_factory=list)
    removed: Counter[str] = field(default_factory=Counter)
    # Labels of the lines of a text as if they were rows, by the row's number.
    inner: dict[int, set[str | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.label_column = ", ".join(self.label_columns)
        self.made = FileTable(self.file.source, self.file.unit, [], [], [], [] if self.group_column else None, [])
        self.empty = 0

    def add(self, number: int, values: Sequence[Any]) -> None:
        """Adds a row, unless it has no text or no label."""
        source, unit, width = self.file.source, self.file.unit, len(self.text_columns)
        raw = join_cells([check_text(cell, source, unit, number) for cell in values[:width]], width)
        self.removed.update(removed_by(raw, self.clean))
        text = clean_text(raw, self.clean)
        if not text:
            self.empty += 1
            return
        labels_end = width + len(self.label_columns)
        label = self._label(values[width:labels_end] if self.reader.columns else values[width], number)
        if label == "":
            self.made.unlabelled.append(number)
            return
        if self.file.delimiter and "\n" in raw:
            self.inner[number] = self._labels_inside(raw)
        self.made.texts.append(raw if self.as_written else text)
        self.made.labels.append(label)
        self.made.row_numbers.append(number)
        identity = as_identity(values[-1], source, unit, number, self.id_column or DEFAULT_ID_COLUMN)
        self.made.ids.append(identity or f"{unit}-{number}")
        if self.made.groups is not None:
            self.made.groups.append(as_identity(values[labels_end], source, unit, number, self.group_column))
        if _folded(label) == _folded(self.label_column) and _folded(raw) == _folded(", ".join(self.text_columns)):
            self.headers.append(number)

    def _labels_inside(self, raw: str) -> set[str | None]:
        """The labels of the rows that a text would be if a quotation mark had joined them; None for any other line.

        The mark opens in a text and closes in that of a later row, so all labels between these places are in the text.
        """
        header = self.file.header
        columns = (self.text_columns[-1], self.label_columns[0])
        text, label = (header.index(find_column(self.file.source, name, header)) for name in columns)
        lines = [line.split(self.file.delimiter) for line in raw.splitlines() if line.strip()]
        rows, fewest, place = (lines[1:], text + 1, label)
        if label > text:
            rows, fewest, place = (lines[:-1], len(header) - text, label - len(header))
        return {fields[place].strip() if len(fields) >= fewest else None for fields in rows}

    def _label(self, cell: Any, number: int) -> Any:
        source, unit, column = self.file.source, self.file.unit, self.label_column
        where = f"{source} {unit} {number}"
        try:
            label = self.reader.read(cell, lambda part: as_word(part, source, unit, number, column))
        except ValueError as error:
            raise DataError(f"{where}: column '{column}' {error}") from error
        longest = max(map(len, _names(label)), default=0)
        if longest > MAX_LABEL_CHARACTERS:
            raise DataError(
                f"{where} has a label of {longest:,} characters in column '{column}'; at most "
                f"{MAX_LABEL_CHARACTERS} are a label: shorten it, or name the right column with --label-column"
            )
        return label

    def table(self, *, skip_unlabelled: bool | None) -> FileTable:
        """All rows that were added."""
        source, unlabelled = self.file.source, self.made.unlabelled
        rows = f"{self.file.unit} {listed_numbers(unlabelled)}"
        if unlabelled and not skip_unlabelled:
            source_part = "" if source.startswith("'") else f" of {source}"
            skip = ", or leave them out with --skip-unlabelled" if skip_unlabelled is False else ""
            raise DataError(
                f"{source} has {len(unlabelled):,} row{'s' * (len(unlabelled) > 1)} without a label in column "
                f"'{self.label_column}' ({rows}{source_part}); fill them in or remove the rows{skip}"
            )
        if not self.made.texts:
            content = f"{self.empty} rows, all without text after cleaning" if self.empty else "no rows"
            if self.empty and self.removed:
                content += f", which takes out {' and '.join(sorted(self.removed))} (data.clean=none keeps them)"
            content = f"{len(unlabelled):,} rows with text, all without label" if unlabelled else content
            raise DataError(f"{source} has {content}; give rows with text in column '{', '.join(self.text_columns)}'")
        repeats = self._repeated_ids()
        ids = [f"{self.file.unit}-{number}" for number in self.made.row_numbers] if repeats else self.made.ids
        notes = [*self.file.notes, *repeats]
        if self.removed:
            content = " and ".join(f"{kind} out of {rows:,} texts" for kind, rows in sorted(self.removed.items()))
            notes.append(f"Cleaning takes {content} of {source}; data.clean=none leaves texts as they are.")
        if unlabelled:
            notes.append(f"{len(unlabelled):,} rows of {source} have no label and are left out ({rows}).")
        return replace(self.made, ids=ids, empty=self.empty, notes=[*notes, *self._odd_rows()])

    def _repeated_ids(self) -> list[str]:
        """A note that ids repeat, if they do; refuses repeated ids in a column that the user named."""
        first_row: dict[str, int] = {}
        rows = list(zip(self.made.row_numbers, self.made.ids, strict=True))
        repeats = [(number, row_id) for number, row_id in rows if first_row.setdefault(row_id, number) != number]
        if not repeats:
            return []
        (number, row_id), unit = repeats[0], self.file.unit
        where = (
            f"{self.file.source} {unit} {number} has the id '{short_repr(row_id)[1:-1]}' of {unit} {first_row[row_id]}"
        )
        if self.id_column:
            raise DataError(f"{where} (column '{self.id_column}'); make the ids unique, or leave --id-column out")
        return [
            f"{where}: {len(repeats):,} values of column '{DEFAULT_ID_COLUMN}' repeat, so rows are numbered; "
            "--id-column names another."
        ]

    def _odd_rows(self) -> list[str]:
        notes = []
        if self.headers:
            notes.append(
                f"{self.file.source} repeats its header among the rows ({self.file.unit} "
                f"{listed_numbers(self.headers, _MOST_SHOWN)}), where it is taken as a text with a label; remove it."
            )
        known = {label for label in self.made.labels if isinstance(label, str)}
        swallowed = [number for number, labels in self.inner.items() if labels & known and labels <= known | {""}]
        if swallowed:
            notes.append(
                f"In {self.file.source} {len(swallowed):,} texts hold lines that look like further rows (first: "
                f"line {swallowed[0]:,}): a quotation mark opens there and closes lines later, so they are lost; "
                'write "" for a quotation mark inside a quoted text.'
            )
        return notes


def listed_numbers(numbers: Sequence[int], most: int = 20) -> str:
    """Row numbers as text, for example ``3, 9, 12 and 4 more``."""
    rest = f" and {len(numbers) - most:,} more" if len(numbers) > most else ""
    return ", ".join(map(str, numbers[:most])) + rest


def _folded(name: object) -> str:
    return str(name).strip().casefold()


def as_identity(value: Any, source: str, unit: str, number: int, column: str | None) -> str:
    """An identity or a group as a word; it may be a date, a UUID or another key of a database."""
    plain = value is None or isinstance(value, str | int | float)
    return as_word(value if plain else str(value), source, unit, number, column)


def as_word(value: Any, source: str, unit: str, number: int, column: str | None) -> str:
    """A label, group or identity as a word; empty if it is missing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, str):
        return check_text(" ".join(value.split()), source, unit, number)
    raise DataError(
        f"{source} {unit} {number}: column '{column}' holds {short_repr(value)}, a {type(value).__name__}; "
        "give a word or a whole number"
    )


def label_notes(tables: Sequence[FileTable], *, joined: bool) -> list[str]:
    """Notes on labels that have several spellings or look missing, and on how files were read."""
    counts = Counter(name for table in tables for label in table.labels for name in _names(label))
    # Every table gets the spelling that is most frequent in the first, see `join_spellings`.
    first = Counter(name for label in tables[0].labels for name in _names(label))
    notes = []
    if groups := spellings({label: first[label] for label in counts}):
        what = (
            "is written in one way, the first of each (join_labels)"
            if joined
            else "makes classes of its own; data.join_labels=true joins them"
        )
        listed = _listed([_listed(_counted(group, counts), " = ") for group in groups], "; ")
        notes.append(f"What differs in case, spacing, invisible characters or a number's form alone {what}: {listed}.")
    if missing := [label for label in counts if looks_missing(label)]:
        listed = _listed(_counted(missing, counts), ", ")
        notes.append(f"Labels that look like missing values are taken as classes: {listed}; remove rows without label.")
    if (hint := _separator_hint(counts)) and all(isinstance(label, str) for table in tables for label in table.labels):
        notes.append(f"Labels such as {_listed(_counted(counts, counts)[:3], ', ')} are taken as they are{hint}.")
    return [*notes, *(note for table in tables for note in table.notes)]


def _counted(labels: Iterable[str], counts: Mapping[str, int]) -> list[str]:
    return [f"'{visible_form(label)}' ({counts[label]:,})" for label in labels]


def visible_form(label: str) -> str:
    """A label cut to 60 characters, its invisible characters written as escapes."""
    visible = "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in label
    )
    return visible if len(visible) <= 60 else f"{visible[:57]}..."


def _listed(items: Sequence[str], separator: str) -> str:
    rest = f"{separator}and {len(items) - _MOST_SHOWN:,} more" if len(items) > _MOST_SHOWN else ""
    return separator.join(items[:_MOST_SHOWN]) + rest
