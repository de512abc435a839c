"""Parts of a report as text, for tests that look at rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recurra.report.render import write_study_report
from recurra.report.summary import load_runs, reporting_of, summarise
from recurra.tasks.measures import StudyLatency
from recurra.tasks.summary import Summary, plain


def part_rows(task: str, table: Any, key: str) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of one part of a table; nothing if it has no rows."""
    part = next(part for part in reporting_of(task).tables(table) if part.key == key)
    headings = part.headings()
    return headings, part.cells(headings)


def summarise_folders(
    runs: Sequence[Path],
    latency: StudyLatency | None = None,
    failures: Mapping[str, str] | None = None,
    **asked: Any,
) -> Summary:
    """What a report of run folders knows."""
    finished, failed = load_runs(runs, failures)
    return summarise(finished, latency, failed, **asked)


def summarise_runs(runs: Sequence[Path], latency: StudyLatency | None = None, **asked: Any) -> dict[str, Any]:
    """Plain values of what a report of run folders knows."""
    values: dict[str, Any] = plain(summarise_folders(runs, latency, **asked))
    return values


def write_report(
    output: Path,
    runs: Sequence[Path],
    *,
    title: str,
    command: str = "",
    latency: StudyLatency | None = None,
    failures: Mapping[str, str] | None = None,
    **asked: Any,
) -> Path:
    """Writes a report of run folders."""
    finished, failed = load_runs(runs, failures)
    summary = summarise(finished, latency, failed, base=output, **asked)
    return write_study_report(output, summary, finished, title=title, command=command)
