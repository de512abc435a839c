"""What a report writes into a study's folder: the page, figures as SVG, numbers as CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recurra.core.files import read_json, write_json, write_text
from recurra.core.terminal import slug
from recurra.deployment.export_record import ExportRecord
from recurra.report.figures import Drawings, draw, standalone
from recurra.report.load import load_runs
from recurra.report.render import csv_text, render_report
from recurra.report.results import long_table, of_table, plain_line
from recurra.report.summary import reporting_of, summarise
from recurra.tasks.drawing import Chart
from recurra.tasks.loaded_runs import LoadedRun
from recurra.tasks.questions import NO_QUESTIONS, Questions
from recurra.tasks.summary import Summary, plain

FIGURES = "figures"
TABLES = "tables"
MANIFEST_NAME = "exports.json"
REPORT_NAME = "report.html"
SUMMARY_NAME = "summary.json"


def write_report(
    output: Path | str,
    runs: Sequence[Path],
    *,
    title: str,
    command: str = "",
    latency: Mapping[str, Any] | None = None,
    failures: Mapping[str, str] | None = None,
    questions: Questions = NO_QUESTIONS,
    exports: Sequence[ExportRecord] = (),
) -> Path:
    """Writes ``report.html``, ``summary.json``, ``figures/`` and ``tables/`` from run folders.

    Args:
        output: The study's folder; or a path that ends in ``.html``, then only that file is written.
        runs: Run folders. Those without a readable record are listed as failed.
        title: Heading of the report.
        command: The command that makes these runs again.
        latency: Content of the study's ``latency.json``, if there is one.
        failures: Reasons of failed runs that the caller knows, by run identifier.
        questions: Contrasts and published tables that the study names.
        exports: Records of exports of these runs.

    Returns:
        The path of the HTML file.

    Raises:
        StorageError: If it cannot be written.
    """
    path = Path(output)
    alone = path.suffix == ".html"
    finished, failed = load_runs(runs, failures)
    base = path.parent if alone else path
    summary = summarise(finished, latency, failed, base=base, questions=questions, exports=exports)
    if alone:
        write_text(path, render_report(summary, finished, title=title, command=command))
        return path
    return write_study_report(path, summary, finished, title=title, command=command)


@dataclass(frozen=True)
class Answer:
    """What a page says beside the recommendation.

    Attributes:
        ships: What rows the model has that the folder hands out; empty if nothing is known.
        commands: What to type to use it.
    """

    ships: str = ""
    commands: Sequence[str] = ()


def write_study_report(
    folder: Path,
    summary: Summary,
    runs: Sequence[LoadedRun],
    *,
    title: str,
    command: str = "",
    answer: Answer | None = None,
) -> Path:
    """Writes everything that a study shows into its folder: the page, its figures and tables, the plain values.

    Returns:
        The path of the HTML file.

    Raises:
        StorageError: If it cannot be written.
    """
    drawn = draw(summary, runs)
    target = folder / REPORT_NAME
    write_text(target, render_report(summary, runs, title=title, command=command, drawn=drawn, answer=answer))
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
