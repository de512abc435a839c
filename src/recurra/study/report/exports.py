"""Figures as SVG and numbers as CSV and LaTeX, in a study's folder, for a paper."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from recurra.core.files import read_json, write_json, write_text
from recurra.study.report import latex
from recurra.study.report.chart import Chart
from recurra.study.report.charts import Drawings
from recurra.study.report.formatting import slug
from recurra.study.report.numbers import KINDS, Row, all_rows
from recurra.study.report.standalone import standalone
from recurra.study.report.summary import Summary

FIGURES = "figures"
TABLES = "tables"
MANIFEST_NAME = "exports.json"
SHOWN_KINDS = ("trade-off", "isolation", "accuracy")


def write_exports(folder: Path, summary: Summary, drawn: Drawings) -> list[Path]:
    """Writes ``figures/*.svg``, ``tables/*.csv`` and ``tables/*.tex``; removes what only an earlier call wrote.

    Args:
        folder: The study's folder.
        summary: Of its runs.
        drawn: Its drawings.

    Returns:
        The files, relative to the folder.

    Raises:
        StorageError: If one cannot be written.
    """
    files = {**_figures(summary, drawn), **_numbers(summary), **_latex(summary)}
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


def _figures(summary: Summary, drawn: Drawings) -> dict[str, str]:
    slugs = table_slugs(summary)
    files = {f"{FIGURES}/{slug(chart.heading)[:120]}.svg": standalone(chart) for chart in drawn.study}
    for table in summary.tables:
        for chart in drawn.tables[table.key]:
            name = f"{FIGURES}/{slugs[table.key]}-{slug(chart.heading)[:60]}.svg"
            files[name] = standalone(chart, table.title)
    return files


def shown_figures(summary: Summary, drawn: Drawings) -> dict[str, tuple[Chart, str]]:
    """Drawings that a document shows, by file name, with their SVG: across tables, trade-offs, contrasts, curves."""
    slugs = table_slugs(summary)
    shown = {f"{slug(chart.heading)[:120]}.svg": (chart, standalone(chart)) for chart in drawn.study}
    for table in summary.tables:
        for chart in drawn.tables[table.key]:
            if chart.kind in SHOWN_KINDS:
                name = f"{slugs[table.key]}-{slug(chart.heading)[:60]}.svg"
                shown[name] = (chart, standalone(chart, table.title))
    return shown


def _numbers(summary: Summary) -> dict[str, str]:
    files = {}
    for kind in KINDS:
        rows = all_rows(summary, kind)
        if rows:
            files[f"{TABLES}/{kind}.csv"] = csv_text(rows)
    return files


def csv_text(rows: list[Row]) -> str:
    """Rows as CSV; columns in the order of their first use, an empty cell for what is not known."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue().encode("utf-8", "replace").decode("utf-8")


def _latex(summary: Summary) -> dict[str, str]:
    slugs = table_slugs(summary)
    files = {}
    for table in summary.tables:
        for kind, make in latex.KINDS.items():
            text = make(table)
            if text:
                files[f"{TABLES}/{slugs[table.key]}-{kind}.tex"] = text.encode("utf-8", "replace").decode("utf-8")
    return files
