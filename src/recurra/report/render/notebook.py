"""The results of a study as a program or a notebook shows them: a DataFrame, a few lines of text, a table of a cell."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from recurra.core.errors import UnavailableError
from recurra.report.render.csv import numbers_of
from recurra.report.summary import reporting_of
from recurra.tasks.summary import Summary, TableSummary

# Of the columns of the terminal, what a person chooses by.
_SHORT = ("model", "seeds", "interval", "parameters", "file_size_mib", "failed_audits")


def results_frame(summary: Summary) -> Any:
    """A pandas ``DataFrame`` with a row a model: plain values in full precision, as in ``tables/results.csv``.

    Raises:
        UnavailableError: If pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise UnavailableError(
            "a table of results is a pandas DataFrame, and pandas is not installed; pip install pandas, or read "
            "result.summary, plain values"
        ) from error
    rows = [row for table in summary.tables for row in _headline(table, summary)]
    return pd.DataFrame(rows).set_index("model") if rows else pd.DataFrame()


def _headline(table: TableSummary, summary: Summary) -> list[dict[str, Any]]:
    part = reporting_of(summary.task).tables[0]
    return [row for row in numbers_of(table, part) if row.get("split", table.headline_split) == table.headline_split]


def results_text(summary: Summary, lines: Sequence[str]) -> str:
    """The results in columns that a terminal of 120 has room for, and lines under them."""
    blocks = []
    for table in summary.tables:
        headings, rows, left = _cells(table, summary)
        widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
        grid = [
            "  ".join(
                cell.ljust(width) if is_left else cell.rjust(width)
                for cell, width, is_left in zip(row, widths, left, strict=True)
            ).rstrip()
            for row in (headings, *rows)
        ]
        blocks += [table.title, *grid]
    return "\n".join([*blocks, *lines])


def results_html(summary: Summary, lines: Sequence[str]) -> str:
    """The same as HTML, for a notebook."""
    parts = []
    for table in summary.tables:
        headings, rows, left = _cells(table, summary)
        aligned = [f' style="text-align: {"left" if is_left else "right"}"' for is_left in left]
        made = [
            "".join(f"<{tag}{style}>{escape(cell)}</{tag}>" for cell, style in zip(row, aligned, strict=True))
            for tag, row in (("th", headings), *(("td", row) for row in rows))
        ]
        parts.append(f"<p><b>{escape(table.title)}</b></p><table><tr>{'</tr><tr>'.join(made)}</tr></table>")
    return "".join([*parts, *(f"<p>{escape(line)}</p>" for line in lines)])


def _cells(table: TableSummary, summary: Summary) -> tuple[list[str], list[list[str]], list[bool]]:
    """Headings, cells, and which columns are aligned to the left."""
    reporting = reporting_of(summary.task)
    columns, rows = reporting.tables[0].shown(table, "terminal")
    timed = next((column.key for column in columns if column.key.startswith("batch_")), "")
    kept = [column for column in columns if column.key in (*_SHORT, reporting.judge(table).key, timed)]
    left = [index == 0 or "terminal" in column.left for index, column in enumerate(kept)]
    return [column.heading_in("terminal") for column in kept], [[c.text(row) for c in kept] for row in rows], left
