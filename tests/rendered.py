"""Parts of a report as text, for tests that look at rows."""

from __future__ import annotations

from typing import Any

from recurra.report.summary import reporting_of
from recurra.tasks.columns import Place


def part_rows(task: str, table: Any, key: str, place: Place = "html") -> tuple[list[str], list[list[str]]]:
    """Headings and rows of one part of a table as a reader of that place has them."""
    part = next(found for found in reporting_of(task).tables if found.key == key)
    columns, rows = part.shown(table, place)
    return [column.heading_in(place) for column in columns], [[column.text(row) for column in columns] for row in rows]
