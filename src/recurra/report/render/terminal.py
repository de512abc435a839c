"""The tables of a study as a terminal shows them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from recurra.report.summary import reporting_of
from recurra.tasks.columns import Column, Table
from recurra.tasks.summary import RECOMMENDED, Summary, TableSummary


@dataclass(frozen=True)
class Block:
    """A table, or lines where there are no headings.

    Attributes:
        title: Above the table.
        headings: Of its columns.
        rows: Its cells.
        left: Whether each column is aligned to the left.
        lines: Below it.
    """

    title: str = ""
    headings: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    left: tuple[bool, ...] = ()
    lines: tuple[str, ...] = ()


def terminal_blocks(summary: Summary, *, wide: bool = True) -> Iterator[Block]:
    """What is printed of a study: of each table the results, what they say, and what else has room.

    Args:
        summary: Of the study.
        wide: Whether all columns are shown; otherwise those that fit 80 characters.
    """
    for table in summary.tables:
        for index, part in enumerate(reporting_of(summary.task).tables):
            columns, rows = part.shown(table, "terminal", brief=not wide)
            if rows:
                yield _block(part, columns, rows, table, first=index == 0)
    if summary.pooled:
        yield Block(lines=tuple(f"- {line.statement}" for line in summary.pooled))


def _block(part: Table, columns: list[Column], rows: list[object], table: TableSummary, *, first: bool) -> Block:
    recommended = next((advice for advice in table.advice if advice.priority == RECOMMENDED), None)
    said = (
        *(f"FAILED: {group.name}. {group.meaning}" for group in table.failed_groups),
        *((f"Recommended: {recommended.choice or 'none'}, {recommended.why}",) if recommended else ()),
        table.conclusion,
        *(f"- {line.statement}" for line in table.contrasts),
    )
    caption = part.caption(table)
    return Block(
        title=part.short or table.title,
        headings=tuple(column.heading_in("terminal") for column in columns),
        rows=tuple(tuple(column.text(row) for column in columns) for row in rows),
        left=tuple(index == 0 or "terminal" in column.left for index, column in enumerate(columns)),
        lines=said if first else (caption,) if caption else (),
    )
