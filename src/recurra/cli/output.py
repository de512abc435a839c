"""Output of commands: tables for a person, one JSON document for a machine, exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer

from recurra.core.errors import StorageError
from recurra.core.terminal import LONGEST_CELL, is_utf8, one_line, printable

if TYPE_CHECKING:
    from rich.console import Console

    from recurra.reported_study import StudyResult
    from recurra.tasks import tables

EXIT_FAILED = 1
EXIT_INPUT = 2
EXIT_AUDIT = 3


def command_line() -> str:
    """The command as it was typed."""
    return shlex.join(["recurra", *sys.argv[1:]])


@contextlib.contextmanager
def standard_output() -> Iterator[None]:
    """Guards writing to standard output: a reader that left (``head``, ``less``) ends the block without an error."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        # Buffered output would fail once more when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return
        reason = error.strerror or str(error)
        raise StorageError(f"cannot write standard output: {reason}; free some space or send it elsewhere") from error


def print_json(value: Any) -> None:
    """Prints one JSON document on standard output."""
    with standard_output():
        ascii_only = not is_utf8(sys.stdout)
        sys.stdout.write(json.dumps(value, ensure_ascii=ascii_only, indent=1, allow_nan=False) + "\n")


def print_lines(lines: Sequence[str]) -> None:
    """Prints lines for a person on standard output; control characters are escaped."""
    with standard_output():
        sys.stdout.write("".join(f"{printable(line)}\n" for line in lines))


def complain(*lines: str) -> None:
    """Prints lines on standard error; line breaks within one are removed."""
    for line in lines:
        sys.stderr.write(one_line(line) + "\n")


def console() -> Console:
    """Standard output for a person; wide when it is not a terminal, so that logs are not cut."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def _print_table(title: str, table: tables.Table, *, brief: bool) -> None:
    if not (headings := table.headings(brief=brief)):
        return
    from rich.table import Table
    from rich.text import Text

    def literal(text: str) -> Text:
        return Text(printable(text, LONGEST_CELL))

    printed = Table(title=literal(title) if title else None, title_justify="left")
    for heading, is_left in zip(headings, table.left(headings), strict=True):
        printed.add_column(literal(heading), justify="left" if is_left else "right", overflow="fold")
    for row in table.cells(headings):
        printed.add_row(*map(literal, row))
    with standard_output():
        console().print(printed)


def present(result: tables.CommandResult, *, as_json: bool) -> None:
    """Prints the result of a command; exits with 3 if an audit failed."""
    if as_json:
        print_json(result.plain)
    else:
        for part in result.parts:
            if isinstance(part, list):
                print_lines(part)
            else:
                _print_table(part.heading, part, brief=False)
    present_failed(result.failed_audits)


def present_failed(names: Sequence[str]) -> None:
    """Names failed audits on standard error and exits with 3 if there are any."""
    if names:
        complain(f"AUDIT FAILED: {', '.join(dict.fromkeys(names))}")
        raise typer.Exit(EXIT_AUDIT)


def present_study(result: StudyResult, *, as_json: bool, wide: bool = False) -> None:
    """Prints a study's tables and the path of its report, then exits with the code of the study.

    Raises:
        typer.Exit: 1 if a run, an export or the timing failed, or the runs' own code if all failed with the same one;
            3 if an audit failed; 2 if no model stays within the requested limits.
    """
    if as_json:
        exports = [export.plain() for export in result.exports]
        paths = {"output": str(result.output), "report": str(result.report or "")}
        usage = {"ships": result.ships, "commands": result.commands}
        print_json({**paths, **usage, **result.summary, "exports": exports, "timing_error": result.timing_error})
    else:
        _print_study(result, wide=wide)
    # The first kind of failure decides.
    failed, timing, audits = result.failed_runs, result.timing_error, result.failed_audits
    codes = {outcome.exit_code for outcome in failed}
    run_code = codes.pop() if len(codes) == 1 and len(failed) == len(result.outcomes) else EXIT_FAILED
    for code, lines in (
        (run_code, [f"error: {outcome.config.run_id}: {outcome.error}" for outcome in failed]),
        (EXIT_FAILED, [f"error: {export.key}: {export.reason}" for export in result.failed_exports]),
        (EXIT_FAILED, [] if timing is None else [f"error: {timing}"]),
        (EXIT_AUDIT, [f"AUDIT FAILED: {'; '.join(audits)}"] if audits else []),
        (EXIT_INPUT, [f"error: {unmet}" for unmet in result.unmet_limits]),
    ):
        if lines:
            complain(*lines)
            raise typer.Exit(code)


def _print_study(result: StudyResult, *, wide: bool) -> None:
    from recurra.report.render import terminal_tables

    for title, table, lines in terminal_tables(result.content):
        _print_table(title, table, brief=not wide)
        print_lines(lines)
    print_lines(result.content.warnings)
    if not result.content.tables:
        print_lines(["No run finished: there is nothing to report."])
        return
    if result.report is not None:
        print_lines([f"report: {result.report}"])
    if result.ships:
        print_lines([f"model to use: {result.ships}"])
    print_lines([f"next: {command}" for command in result.commands[:1]])
