"""What is said of a column that is not there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from recurra.core.errors import DataError, did_you_mean


def missing_column(path: Path | str, column: str, present: Sequence[str], *, line: int | None = None) -> DataError:
    """The error for a column that a table, or one line of it, does not have."""
    shown = ", ".join(repr(name) for name in present[:20]) or "none"
    where = f"'{path}'" if line is None else f"'{path}' line {line}"
    return DataError(
        f"{where} has no column '{column}'{did_you_mean(column, present)}; its columns are "
        f"{shown}; name the right ones with --text-column and --label-column"
    )
