"""The numbers of a study for other programs: plain fields, full precision."""

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


def numbers_of(table: TableSummary, part: Table) -> list[Row]:
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
