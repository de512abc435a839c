"""The numbers of a study for other programs, plain and in full precision; its tables for a paper, in LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from recurra.tasks.columns import Table
from recurra.tasks.summary import TableSummary

Row = dict[str, Any]


def csv_tables(summaries: Sequence[TableSummary], tables: Sequence[Table]) -> dict[str, str]:
    """CSV of each part over all tables of a study, by the key of the part; those without rows are left out."""
    made = {part.key: [row for table in summaries for row in _rows(table, part)] for part in tables}
    return {key: csv_text(rows) for key, rows in made.items() if rows}


def _rows(table: TableSummary, part: Table) -> list[Row]:
    """The rows of one table, each with what identifies the table first."""
    own = {
        "table": table.title,
        "data": table.data,
        "split_protocol": table.protocol,
        "part": table.variant,
        "training": table.training,
        "precision": table.precision,
    }
    return [own | row for row in numbers_of(table, part)]


def numbers_of(table: Any, part: Table) -> list[Row]:
    """The rows of a part as plain values by field."""
    columns, rows = part.shown(table, "csv")
    return [{name: value for column in columns for name, value in column.fields(row).items()} for row in rows]


def csv_text(rows: Sequence[Row]) -> str:
    """Rows as CSV; columns in the order of their first use, an empty cell for what is not known."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue().encode("utf-8", "replace").decode("utf-8")


_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "−": "$-$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "–": "--",
    "<": "$<$",
    ">": "$>$",
    "·": r"$\cdot$",
    "’": "'",
    "“": "``",
    "”": "''",
}


def escape(text: str) -> str:
    """Makes a text safe inside a cell: nothing in it is a command."""
    return "".join(_SPECIAL.get(character, character) for character in " ".join(str(text).split()))


def tabular(
    headings: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[bool] = (True,), comment: str = ""
) -> str:
    """A ``tabular`` environment with booktabs rules; cells are escaped.

    Args:
        headings: One a column.
        rows: Cells.
        left: Whether each column is aligned left; those beyond are aligned right.
        comment: A line above, for who opens the file.
    """
    columns = "".join("l" if index < len(left) and left[index] else "r" for index in range(len(headings)))
    body = [" & ".join(escape(cell) for cell in cells) + r" \\" for cells in rows]
    first = f"% {' '.join(comment.split())}\n" if comment else ""
    lines = [
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(escape(cell) for cell in headings) + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return first + "\n".join(lines) + "\n"


def latex_tables(table: TableSummary, tables: Sequence[Table]) -> dict[str, str]:
    """The tables of a summary that belong into a paper, by the key of the part; those without rows are left out."""
    note = f"{table.title}; {table.headline_split} split."
    made = {part.key: latex_table(table, part, note) for part in tables}
    return {key: content for key, content in made.items() if content}


def latex_table(table: Any, part: Table, note: str = "") -> str:
    """One part for a paper, with a comment above it; empty if it has no rows.

    Args:
        table: What the part is of.
        part: The part.
        note: How the comment begins.
    """
    columns, rows = part.shown(table, "latex")
    if not rows:
        return ""
    return tabular(
        [column.heading_in("latex") for column in columns],
        [[column.paper(row) for column in columns] for row in rows],
        left=[index == 0 or "latex" in column.left for index, column in enumerate(columns)],
        comment=f"{note} {part.paper_note(table)}",
    )
