"""A column is declared once, and every renderer shows it: heading, value, how it is written, and where.

A `Column` reads a typed value from a row object. Its `Format` says how such values are written for a reader (`Cell`),
in a paper, and as plain fields for other programs. A `Table` is rows and columns with what stands around them. The
renderers in `recurra.report.render` know neither tasks nor columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from recurra.core import terminal as form
from recurra.tasks.measures import Estimate
from recurra.tasks.summary import Timing

Place = Literal["terminal", "html", "latex", "csv"]
EVERYWHERE: frozenset[Place] = frozenset(("terminal", "html", "latex", "csv"))
NOWHERE: frozenset[Place] = frozenset()
READERS = EVERYWHERE - {"csv"}
NUMBERS: frozenset[Place] = frozenset(("csv",))
PAGE: frozenset[Place] = frozenset(("html",))
Fields = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """A value for a page or a document.

    Attributes:
        text: The value, as far as ``aside`` and ``below`` do not say it.
        strong: Whether the page prints it in bold.
        aside: What follows it in a softer colour, on the page.
        below: Lines under it, on the page.
        alarm: A line under it that nobody may overlook, on the page.
        status: Of an audit: the page gives it a colour, and documents print what failed in bold.
        address: Documents link ``text`` to it.
        whole: The value in one line; of a cell that a column made.
    """

    text: str
    strong: bool = False
    aside: str = ""
    below: tuple[str, ...] = ()
    alarm: str = ""
    status: str = ""
    address: str = ""
    whole: str = ""


def _text(value: Any) -> str:
    return str(value)


@dataclass(frozen=True)
class Format:
    """How values of one kind are written; a value that is not known is a dash for a reader.

    Attributes:
        write: As text.
        paper: In LaTeX, where that is not ``write``.
        cell: With what only the page or a document can show, where that is more than ``write``.
        spread: As plain fields by name, from the key of the column; also of a value that is not known, so that the
            fields of a table are the same in every row.
    """

    write: Callable[[Any], str] = _text
    paper: Callable[[Any], str] | None = None
    cell: Callable[[Any], Cell] | None = None
    spread: Callable[[str, Any], Fields] | None = None


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        key: Name of the field in CSV.
        heading: For a reader.
        value: Reads the typed value from a row; none if it is not known.
        format: How values are written.
        places: Where it is shown.
        left: Where it is aligned to the left; the first column always is.
        headings: Other headings for some places.
        optional: Whether it is left out where no row has a value.
        wide: Whether its cells are sentences.
        print: Whether its cells are letters to compare one by one, as a hash.
        always: Whether a terminal shows it even where there is room for few.
    """

    key: str
    heading: str
    value: Callable[[Any], Any]
    format: Format = field(default_factory=Format)
    places: frozenset[Place] = EVERYWHERE
    left: frozenset[Place] = NOWHERE
    headings: Mapping[Place, str] = field(default_factory=dict)
    optional: bool = False
    wide: bool = False
    print: bool = False
    always: bool = False

    def only(self, *places: Place) -> Column:
        """The same in some places alone."""
        return replace(self, places=frozenset(places))

    def heading_in(self, place: Place) -> str:
        """Its heading in one place."""
        return self.headings.get(place, self.heading)

    def text(self, row: Any) -> str:
        """Its value in a row as text."""
        value = self.value(row)
        return form.NONE if value is None else self.format.write(value)

    def paper(self, row: Any) -> str:
        """The same as a paper has it."""
        value = self.value(row)
        return form.NONE if value is None else (self.format.paper or self.format.write)(value)

    def cell(self, row: Any) -> Cell:
        """The same with what only a page or a document can show."""
        value = self.value(row)
        if value is None:
            return Cell(form.NONE, whole=form.NONE)
        cell = self.format.cell(value) if self.format.cell else Cell(self.format.write(value))
        return replace(cell, whole=self.format.write(value))

    def fields(self, row: Any) -> Fields:
        """The same as plain values in full, by field."""
        value = self.value(row)
        return self.format.spread(self.key, value) if self.format.spread else {self.key: value}


def _nothing(_table: Any) -> str:
    return ""


@dataclass(frozen=True)
class Table:
    """One part of a report.

    Attributes:
        key: Name of the part; its files are named after it.
        heading: Of the section on the page.
        columns: Of a table; they may depend on it, as those by batch size do.
        rows: What it has a row for.
        caption: What the terminal prints under it.
        note: What the page prints under it, where that is not the caption.
        paper_note: What is said in the comment above a LaTeX table.
        numbers: Rows for CSV, where those are more.
        places: Where it is shown at all.
        empty: What stands there if it has no rows, by place; nothing elsewhere.
        alarms: Words in bold and a sentence each, printed above it on the page.
        row_class: Class of a row on the page.
        short: Title in the terminal; the title of the whole if empty.
        brief: Fields of the columns that documents show, and a terminal if it is not asked for all; none is all.
        sortable: Whether a reader of the page can sort and search its rows.
        folded: Whether the page shows its heading alone until it is opened, from what the table is of.
    """

    key: str
    heading: Callable[[Any], str]
    columns: Callable[[Any], Sequence[Column]]
    rows: Callable[[Any], Sequence[Any]]
    caption: Callable[[Any], str] = _nothing
    note: Callable[[Any], str] | None = None
    paper_note: Callable[[Any], str] = _nothing
    numbers: Callable[[Any], Sequence[Any]] | None = None
    places: frozenset[Place] = EVERYWHERE
    empty: Mapping[Place, str] = field(default_factory=dict)
    alarms: Callable[[Any], Sequence[tuple[str, str]]] = lambda _: ()
    row_class: Callable[[Any], str] = _nothing
    short: str = ""
    brief: tuple[str, ...] = ()
    sortable: bool = False
    folded: Callable[[Any], bool] = lambda _: False

    def shown(self, table: Any, place: Place, *, brief: bool = False) -> tuple[list[Column], list[Any]]:
        """Columns and rows of a table in one place; both empty if it has no rows or is not shown there."""
        rows = list((self.numbers or self.rows)(table) if place == "csv" else self.rows(table))
        if place not in self.places or not rows:
            return [], []
        return [
            column
            for column in self.columns(table)
            if place in column.places
            and (not brief or not self.brief or column.always or column.key in self.brief)
            and not (column.optional and all(column.value(row) is None for row in rows))
        ], rows


def _estimate_fields(key: str, value: Estimate | None) -> Fields:
    names = ("mean", "sd", "low", "high", "basis")
    return {key if name == "mean" else f"{key}_{name}": getattr(value, name, None) for name in names}


def _spread(sd: float | None, digits: int) -> str:
    return f"± {sd:.{digits}f}" if sd else ""


def interval(value: Estimate) -> str | None:
    """The interval of an estimate and what it is over."""
    text = form.interval(value.low, value.high)
    return f"{text} ({value.basis})" if text else None


def paper_estimate(value: Estimate, digits: int = 4, *, percent: bool = False) -> str:
    """Mean and half the 95 % interval: ``81.2 ± 0.9``; an interval over examples is marked with a star."""
    factor, places = (100.0, 1) if percent else (1.0, digits)
    text = f"{value.mean * factor:.{places}f}"
    if value.low is None or value.high is None:
        return text
    half = (value.high - value.low) / 2 * factor
    return f"{text} ± {half:.{places}f}{'*' if value.basis == 'examples' else ''}"


def estimate_cell(value: Estimate, digits: int = 4) -> Cell:
    """A figure as the page shows it: with its standard deviation, and its interval below."""
    below = tuple(filter(None, [interval(value)]))
    return Cell(f"{value.mean:.{digits}f}", strong=True, aside=_spread(value.sd, digits), below=below)


def estimates(digits: int = 4, *, percent: bool = False) -> Format:
    """Figures with intervals: mean ± standard deviation; the page adds the interval, a paper has half of it.

    Args:
        digits: Decimals.
        percent: Whether a paper has them in percent.
    """

    def write(value: Estimate) -> str:
        return " ".join(filter(None, [f"{value.mean:.{digits}f}", _spread(value.sd, digits)]))

    return Format(
        write,
        lambda value: paper_estimate(value, digits, percent=percent),
        lambda value: estimate_cell(value, digits),
        _estimate_fields,
    )


def with_interval(write: Callable[[Any], str] = form.decimal) -> Format:
    """Figures with their interval in brackets, as one text."""

    def text(value: Estimate) -> str:
        found = form.interval(value.low, value.high)
        return write(value.mean) + (f" ({found})" if found else "")

    return replace(estimates(), write=text)


def numbers(write: Callable[[Any], str], paper: Callable[[Any], str] | None = None) -> Format:
    """Plain numbers, written by a function."""
    return Format(write, paper)


def _timing_text(value: Timing) -> str:
    return f"{form.significant(value.median_ms)} / {form.significant(value.p90_ms)}"


def timing_cell(value: Timing) -> Cell:
    """A timing as the page shows it: median, 90th percentile, and what was timed."""
    below = ("text to label",) if value.scope == "text" else ()
    return Cell(form.significant(value.median_ms), aside=f"/ {form.significant(value.p90_ms)}", below=below)


def _timing_fields(key: str, value: Timing | None) -> Fields:
    return {f"{name}_{key}": getattr(value, name, None) for name in ("median_ms", "p90_ms")}


TIMING = Format(_timing_text, lambda value: form.significant(value.median_ms), timing_cell, _timing_fields)
TEXT = Format()
COUNT = Format(form.count)
YES_NO = Format(form.yes_no)
SIGNIFICANT = Format(form.significant)
DECIMAL = Format(form.decimal)
DURATION = Format(form.duration)
P_VALUE = Format(form.p_value)
# Runs of a model: how many.
RUNS = Format(
    lambda runs: str(len(runs)),
    spread=lambda key, runs: {key: len(runs)},
)
