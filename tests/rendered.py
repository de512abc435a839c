"""Parts of a report as text, for tests that look at rows."""

from __future__ import annotations

from typing import Any

from recurra.report.summary import reporting_of


def part_rows(task: str, table: Any, key: str) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of one part of a table; nothing if it has no rows."""
    part = next(part for part in reporting_of(task).tables(table) if part.key == key)
    headings = part.headings()
    return headings, part.cells(headings)
