"""Columns by their names: in any case, and what is said of one that is not there, or there twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from recurra.core.errors import DataError, did_you_mean


def find_column(path: Path | str, column: str, present: Sequence[str], *, line: int | None = None) -> str:
    """The name by which a table, or one line of it, has a column: as asked for, or in other case or with blanks around.

    Raises:
        DataError: If there is none, or several of which none is written as asked for.
    """
    if column in present:
        return column
    found = [name for name in dict.fromkeys(present) if _same_name(name, column)]
    if not found:
        raise missing_column(path, column, present, line=line)
    if len(found) > 1:
        where = f"'{path}'" if line is None else f"'{path}' line {line}"
        raise DataError(
            f"{where} has no column '{column}' but {', '.join(repr(name) for name in found)}; "
            "name the right one with --text-column or --label-column"
        )
    return found[0]


def _same_name(name: str, other: str) -> bool:
    return name.strip().casefold() == other.strip().casefold()


def missing_column(path: Path | str, column: str, present: Sequence[str], *, line: int | None = None) -> DataError:
    """The error for a column that a table, or one line of it, does not have."""
    shown = ", ".join(repr(name) for name in present[:20]) or "none"
    where = f"'{path}'" if line is None else f"'{path}' line {line}"
    return DataError(
        f"{where} has no column '{column}'{did_you_mean(column, present)}; its columns are "
        f"{shown}; name the right ones with --text-column and --label-column"
    )


def check_unique(path: Path | str, columns: Sequence[str], present: Sequence[str], *, line: int | None = None) -> None:
    """Refuses a table, or a line of it, in which a column that is read stands more than once.

    Args:
        path: The file.
        columns: Columns that are read.
        present: Names of all columns, or of the keys of a line, repeats among them.
        line: The line, if it is one line's columns.

    Raises:
        DataError: With the column, and how often it is there.
    """
    for column in columns:
        if present.count(column) > 1:
            where = f"'{path}'" if line is None else f"'{path}' line {line}"
            raise DataError(f"{where} has {present.count(column)} columns '{column}'; rename all but one")
