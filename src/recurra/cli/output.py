"""What commands print: tables for a person, one JSON document for a machine, exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from recurra.study.study import StudyResult

EXIT_FAILED = 1
EXIT_AUDIT = 3


def print_json(value: Any) -> None:
    """Prints one JSON document on standard output."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def console() -> Console:
    """Standard output for a person; wide when it is not a terminal, so that logs are not cut."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table; all columns but the first are right-aligned."""
    table = Table(title=title or None, title_justify="left")
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(cell.replace("[", "\\[") for cell in row))
    console().print(table)


def present_study(result: StudyResult, *, as_json: bool) -> None:
    """Prints a study's tables and where its report lies, then exits with what the study deserves.

    Raises:
        typer.Exit: 1 if a run failed, or that run's own code if all failed with the same one; 3 if an audit failed.
    """
    failed = result.failed_runs
    if as_json:
        print_json({"output": str(result.output), "report": str(result.report or ""), **result.summary})
    else:
        _print_study(result)
    for outcome in failed:
        sys.stderr.write(f"error: {outcome.config.run_id}: {outcome.error}\n")
    if failed:
        codes = {outcome.exit_code for outcome in failed}
        raise typer.Exit(codes.pop() if len(failed) == len(result.outcomes) and len(codes) == 1 else EXIT_FAILED)
    if result.failed_audits:
        sys.stderr.write(f"AUDIT FAILED: {'; '.join(result.failed_audits)}\n")
        raise typer.Exit(EXIT_AUDIT)


def _print_study(result: StudyResult) -> None:
    from recurra.study.report.tables import result_rows

    for table in result.summary["tables"]:
        headings, rows = result_rows(table)
        print_table(table["title"], headings, rows)
        out = console()
        out.print(table.get("conclusion", ""), markup=False, soft_wrap=True)
    if result.report is not None:
        console().print(f"report: {result.report}", markup=False, soft_wrap=True)
