"""What a command shows, as values: one document for machines, tables and lines for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ShownTable:
    """One table of text cells.

    Attributes:
        title: Above it; empty for none.
        headings: One a column.
        rows: Cells.
        left: Headings of columns that are aligned to the left, besides the first.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Sequence[str] = ()


@dataclass(frozen=True)
class Shown:
    """What a command shows of its result.

    Attributes:
        plain: Plain JSON values.
        parts: Tables and groups of lines, in order.
        failed_audits: Names of audits that failed, for the exit code.
    """

    plain: dict[str, Any]
    parts: Sequence[ShownTable | list[str]] = ()
    failed_audits: Sequence[str] = field(default_factory=tuple)
