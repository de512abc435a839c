"""The tables of a study for a paper: LaTeX with the rules of the package booktabs, one ``tabular`` each."""

from __future__ import annotations

from collections.abc import Sequence

from recurra.tasks.columns import Table
from recurra.tasks.summary import TableSummary

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
    found = {}
    for part in tables:
        columns, rows = part.shown(table, "latex")
        if rows:
            note = f"{table.title}; {table.headline_split} split. {part.paper_note(table)}"
            found[part.key] = tabular(
                [column.heading_in("latex") for column in columns],
                [[column.paper(row) for column in columns] for row in rows],
                left=[index == 0 or "latex" in column.left for index, column in enumerate(columns)],
                comment=note,
            )
    return found
