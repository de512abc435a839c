"""What commands print: tables for a person, one JSON document for a machine, exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from recurra.core.errors import StorageError

if TYPE_CHECKING:
    from recurra.study.study import StudyResult

EXIT_FAILED = 1
EXIT_AUDIT = 3
# Columns of the table of exports that a terminal has no room for.
_LEFT_TO_THE_REPORT = ("Published", "Ours −", "95 %", "Right alone", "Folder")


@contextlib.contextmanager
def standard_output() -> Iterator[None]:
    """Guards writing to standard output: a reader that left (``head``, ``less``) ends the block without an error.

    Raises:
        StorageError: If it cannot be written: there is a full disk behind it.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        # What is still buffered would be refused once more when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return
        reason = error.strerror or str(error)
        raise StorageError(f"cannot write standard output: {reason}; free some space or send it elsewhere") from error


def print_json(value: Any) -> None:
    """Prints one JSON document on standard output."""
    with standard_output():
        sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False) + "\n")


def print_lines(lines: Sequence[str]) -> None:
    """Prints lines for a person on standard output, as they are."""
    with standard_output():
        sys.stdout.write("".join(f"{line}\n" for line in lines))


def console() -> Console:
    """Standard output for a person; wide when it is not a terminal, so that logs are not cut."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def print_table(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[str] = ()
) -> None:
    """Prints a table; the first column and those in ``left`` are aligned to the left, the others to the right."""
    table = Table(title=title or None, title_justify="left")
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index == 0 or heading in left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(cell.replace("[", "\\[") for cell in row))
    with standard_output():
        console().print(table)


def present_study(result: StudyResult, *, as_json: bool) -> None:
    """Prints a study's tables and where its report lies, then exits with what the study deserves.

    Raises:
        typer.Exit: 1 if a run or an export failed, or that run's own code if all failed with the same one; 3 if an
            audit failed.
    """
    failed = result.failed_runs
    if as_json:
        exports = [export.plain() for export in result.exports]
        print_json(
            {"output": str(result.output), "report": str(result.report or ""), **result.summary, "exports": exports}
        )
    elif result.summary.get("task") is not None:
        _print_language_study(result)
    else:
        _print_study(result)
    for outcome in failed:
        sys.stderr.write(f"error: {outcome.config.run_id}: {outcome.error}\n")
    if failed:
        codes = {outcome.exit_code for outcome in failed}
        raise typer.Exit(codes.pop() if len(failed) == len(result.outcomes) and len(codes) == 1 else EXIT_FAILED)
    for export in result.failed_exports:
        sys.stderr.write(f"error: {export.key}: {export.reason}\n")
    if result.failed_exports:
        raise typer.Exit(EXIT_FAILED)
    if result.failed_audits:
        sys.stderr.write(f"AUDIT FAILED: {'; '.join(result.failed_audits)}\n")
        raise typer.Exit(EXIT_AUDIT)


def _print_language_study(result: StudyResult) -> None:
    from recurra.study.report.language_tables import exit_rows, language_rows

    for table in result.summary["tables"]:
        print_table(table["title"], *language_rows(table), left=("Causality and other audits",))
        headings, rows = exit_rows(table)
        if rows:
            print_table("by head", headings, rows, left=("Head",))
        print_lines([table["conclusion"]])
    if result.report is not None:
        print_lines([f"report: {result.report}"])


def _print_study(result: StudyResult) -> None:
    from recurra.study.report.exported_rows import EXPORTS_CAPTION, export_rows
    from recurra.study.report.tables import result_rows

    for table in result.summary["tables"]:
        headings, rows = result_rows(table)
        print_table(table["title"], headings, rows)
        print_lines([table["conclusion"], *(f"- {line['statement']}" for line in table["contrasts"])])
        if table["exports"]:
            headings, rows = export_rows(table["exports"])
            shown = [index for index, heading in enumerate(headings) if not heading.startswith(_LEFT_TO_THE_REPORT)]
            narrow = [[row[index] for index in shown] for row in [headings, *rows]]
            print_table("exports", narrow[0], narrow[1:], left=("Stored as", "Computed in"))
            print_lines([EXPORTS_CAPTION])
    if result.report is not None:
        print_lines([f"report: {result.report}"])
