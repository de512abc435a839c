"""What a report writes into a study's folder: the page, figures as SVG, numbers as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recurra.core.files import read_json, write_json, write_text
from recurra.core.terminal import slug
from recurra.report.figures import Drawings, draw, standalone
from recurra.report.render import csv_text, render_report
from recurra.report.results import long_table, of_table, plain_line
from recurra.report.summary import reporting_of
from recurra.tasks.drawing import Chart
from recurra.tasks.loaded_runs import LoadedRun
from recurra.tasks.summary import Summary, plain

FIGURES = "figures"
TABLES = "tables"
MANIFEST_NAME = "exports.json"
REPORT_NAME = "report.html"
SUMMARY_NAME = "summary.json"


def write_study_report(
    folder: Path, summary: Summary, runs: Sequence[LoadedRun], *, title: str, command: str = ""
) -> Path:
    """Writes everything that a study shows into its folder: the page, its figures and tables, the plain values.

    Returns:
        The path of the HTML file.

    Raises:
        StorageError: If it cannot be written.
    """
    drawn = draw(summary, runs)
    target = folder / REPORT_NAME
    write_text(target, render_report(summary, runs, title=title, command=command, drawn=drawn))
    write_json(folder / SUMMARY_NAME, plain(summary))
    write_files(folder, summary, drawn)
    return target


def write_files(folder: Path, summary: Summary, drawn: Drawings) -> list[Path]:
    """Writes ``figures/*.svg`` and ``tables/*.csv``; removes what only an earlier call wrote.

    Returns:
        The files, relative to the folder.

    Raises:
        StorageError: If one cannot be written.
    """
    figures = {f"{FIGURES}/{name}": content for name, (_, content) in named_figures(summary, drawn).items()}
    files = figures | _tables(summary)
    for name, content in files.items():
        write_text(folder / name, content)
    for name in _written_before(folder) - set(files):
        (folder / name).unlink(missing_ok=True)
    write_json(folder / MANIFEST_NAME, {"files": sorted(files)})
    return [Path(name) for name in files]


def _written_before(folder: Path) -> set[str]:
    """Files that an earlier call listed; only such that lie where we write, whatever the list says."""
    try:
        listed = read_json(folder / MANIFEST_NAME)["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    return {str(name) for name in listed if Path(str(name)).parent.as_posix() in (FIGURES, TABLES)}


def table_slugs(summary: Summary) -> dict[str, str]:
    """Part of a file name for each table, by its key; numbered where two titles would give the same."""
    slugs: dict[str, str] = {}
    for table in summary.tables:
        name = slug(table.title)[:80]
        taken = set(slugs.values())
        slugs[table.key] = next(
            candidate
            for candidate in (name, *(f"{name}-{number}" for number in range(2, len(summary.tables) + 2)))
            if candidate not in taken
        )
    return slugs


def named_figures(summary: Summary, drawn: Drawings) -> dict[str, tuple[Chart, str]]:
    """Drawings by file name, with their SVG."""
    slugs = table_slugs(summary)
    shown = {f"{slug(chart.heading)[:120]}.svg": (chart, standalone(chart)) for chart in drawn.study}
    for table in summary.tables:
        for chart in drawn.tables[table.key]:
            name = f"{slugs[table.key]}-{slug(chart.heading)[:60]}.svg"
            shown[name] = (chart, standalone(chart))
    return shown


def _tables(summary: Summary) -> dict[str, str]:
    """CSV of the one long table, and of what a task has beside it."""
    if not summary.task:
        return {}
    rows: dict[str, list[dict[str, Any]]] = {"results": long_table(summary)}
    for table in summary.tables:
        for key, lines in reporting_of(summary.task).lines(table).items():
            rows.setdefault(key, []).extend(plain_line(line, of_table(table), key) for line in lines)
    rows["pooled"] = [plain_line(line, {}, "") for line in summary.pooled]
    return {f"{TABLES}/{key}.csv": csv_text(part) for key, part in rows.items() if part}
