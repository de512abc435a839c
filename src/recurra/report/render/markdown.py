"""What documents show of a study, in Markdown: a conclusion, a table of results, what was asked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recurra.core.terminal import NONE, words
from recurra.report.summary import reporting_of
from recurra.tasks.columns import Cell, Column, estimates
from recurra.tasks.measures import Measure, over_seeds
from recurra.tasks.profile import PACKAGES
from recurra.tasks.reporting import Reporting
from recurra.tasks.summary import ContrastLine, PooledContrast, Summary, TableSummary

NO_RUN = "No finished run.\n"
# Conclusions of more tables than these are a list that nobody reads.
_MOST_CONCLUSIONS = 3
_MOST_COLUMNS = 6


def study_page(summary: Summary, folder: str) -> str:
    """What a page shows of a study, and the command that shows the rest.

    Args:
        summary: Of the study.
        folder: Where its records lie.
    """
    if not summary.tables:
        return NO_RUN
    reporting = reporting_of(summary.task)
    blocks: list[str] = []
    names = dict(zip((table.key for table in summary.tables), _short_names(summary.tables), strict=True))
    if len(summary.tables) > 1:
        if len(summary.tables) <= _MOST_CONCLUSIONS:
            blocks += [f"{text(names[table.key])}: {text(table.conclusion)}" for table in summary.tables]
        blocks.append(_across(summary.tables, reporting))
    else:
        (table,) = summary.tables
        columns, rows = reporting.tables[0].shown(table, "terminal", brief=True)
        blocks.append(text(table.conclusion))
        blocks += [rows_as_grid(columns, rows), f"On the {text(table.headline_split)} split of {text(table.title)}."]
    blocks.append(_asked(summary, reporting))
    several = len(summary.tables) > 1
    lines = [
        f"* failed audits{f' on {text(names[table.key])}' if several else ''}: {text(words(failed))}"
        for table in summary.tables
        if (failed := [group.name for group in table.failed_groups])
    ]
    lines += [f"* failed run: {text(run['run_id'])}: {text(run['reason'])}" for run in summary.failed_runs]
    blocks.append("\n".join(lines))
    blocks.append(f"Everything else, with figures and tests: `recurra study report {folder}`.")
    return "\n\n".join(filter(None, blocks)) + "\n"


def across(summary: Summary) -> str:
    """What each model of a study scores on each of its data."""
    return _across(summary.tables, reporting_of(summary.task)) + "\n" if summary.tables else NO_RUN


def _asked(summary: Summary, reporting: Reporting) -> str:
    """What the study asked, a line a contrast and a column for each of its data; nothing if it asked nothing."""
    tables = [table for table in summary.tables if table.contrasts]
    if not tables:
        return ""
    measure = reporting.judge(tables[0])
    columns: dict[str, Sequence[ContrastLine | PooledContrast]] = {"Over all data": summary.pooled}
    if not summary.pooled or len(tables) <= _MOST_COLUMNS:
        names = _short_names(tables) if len(tables) > 1 else ["Gap"]
        columns = {**{name: table.contrasts for name, table in zip(names, tables, strict=True)}, **columns}
    columns = {name: lines for name, lines in columns.items() if lines}
    asked = dict.fromkeys((line.name, line.a, line.b) for table in tables for line in table.contrasts)
    rows = []
    for name, a, b in asked:
        of_column = (
            next((line for line in lines if (line.name, line.a, line.b) == (name, a, b)), None)
            for lines in columns.values()
        )
        gaps = [NONE if line is None else _gap(line, measure) for line in of_column]
        rows.append([f"{text(name)}: {text(a)} − {text(b)}", *gaps])
    note = f"Gaps in {measure.unit} of {measure.in_text}, ± half the 95 % interval; bold where distinguishable"
    note += ", † by the rows of one seed alone." if any("†" in cell for row in rows for cell in row) else "."
    return "\n\n".join([grid(["Asked", *map(text, columns)], rows), note])


def _gap(line: ContrastLine | PooledContrast, measure: Measure) -> str:
    gap = text(measure.gap(line.gap, measure.width(line.half), unit=False))
    marks = {"distinguishable": f"**{gap}**", "by rows only": f"{gap} †"}
    return marks.get(line.verdict, gap)


def text(value: str) -> str:
    """Makes a text safe inside a Markdown table: no pipes, tags or line breaks take effect."""
    plain = " ".join(str(value).split()).replace("&", "&amp;").replace(">", "&gt;")
    # Before a space it begins no tag: "p < 0.001" stays as it is.
    plain = re.sub(r"<(?! )", "&lt;", plain)
    for character in "\\`*_[]|":
        plain = plain.replace(character, f"\\{character}")
    return plain


def grid(headings: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[bool] = (True,)) -> str:
    """A Markdown table of cells that are Markdown already; ``left`` says which columns are aligned left."""
    rule = ["---" if index < len(left) and left[index] else "---:" for index in range(len(headings))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, rule, *rows))


def rows_as_grid(columns: Sequence[Column], rows: Sequence[Any]) -> str:
    """Rows of any table as Markdown."""
    return grid(
        [text(column.heading_in("terminal")) for column in columns],
        [[_cell(column.cell(row)) for column in columns] for row in rows],
        [index == 0 or "terminal" in column.left for index, column in enumerate(columns)],
    )


def _cell(cell: Cell) -> str:
    if cell.status == "failed":
        return f"**failed**: {text(cell.text)}" if cell.text != "failed" else "**FAILED**"
    return f"[{text(cell.text)}]({cell.address})" if cell.address else text(cell.whole)


def _across(tables: Sequence[TableSummary], reporting: Reporting) -> str:
    """What each model of a study scores on each of its data: all tables in one, draws of the same rows in one line."""
    labels = list(dict.fromkeys(model.label for table in tables for model in table.models))
    draws: dict[tuple[str, ...], list[TableSummary]] = {}
    for table in tables:
        draws.setdefault((table.data, table.protocol, table.subset, table.training, table.precision), []).append(table)

    def score(drawn: Sequence[TableSummary], label: str) -> str:
        found = [
            estimate
            for table in drawn
            for model in table.models
            if model.label == label and (estimate := reporting.judge(table).of(model, table.headline_split))
        ]
        whole = over_seeds(tuple(each.mean for each in found), (None, None)) if len(found) > 1 else None
        return estimates(digits=3).write(whole or found[0]) if found else NONE

    names = _short_names([drawn[0] for drawn in draws.values()])
    scores = zip(names, ([score(drawn, label) for label in labels] for drawn in draws.values()), strict=True)
    rows = [[text(name), *cells] for name, cells in sorted(scores, key=lambda line: _natural(line[0]))]
    measures = dict.fromkeys(reporting.judge(table).heading for table in tables)
    seeds = max(len(model.seeds) for table in tables for model in table.models)
    spread = [f"{seeds} seeds"] if seeds > 1 else []
    spread += [f"{most} draws of the rows"] if (most := max(map(len, draws.values()))) > 1 else []
    over = f", mean ± standard deviation over {' and '.join(spread)}" if spread else ""
    caption = f"{' or '.join(measures)} on {words(sorted({table.headline_split for table in tables}))}{over}."
    return f"{grid(['Data', *map(text, labels)], rows)}\n\n{text(caption)}"


def _short_names(tables: Sequence[TableSummary]) -> list[str]:
    """The data of each table, or else what tells its title from the others."""
    parts = [table.title.split(" · ") for table in tables]
    common = set.intersection(*map(set, parts))
    levels = [
        [table.data for table in tables],
        [f"{table.data} · {table.subset}" for table in tables],
        [" · ".join(part for part in of_table if part not in common) for of_table in parts],
    ]
    return next((names for names in levels if len(set(names)) == len(tables)), [table.title for table in tables])


def _natural(name: str) -> list[tuple[float, str]]:
    """A key that sorts 64 behind 8."""
    parts = re.split(r"(\d+(?:[.,]\d+)*)", name)
    return [(float(part.replace(",", "")), "") if part[:1].isdigit() else (0.0, part) for part in parts]


@dataclass(frozen=True)
class OverviewRow:
    """A table of a study, and where the study's page lies."""

    study: str
    address: str
    table: TableSummary


def overview(summaries: Mapping[str, Summary], addresses: Mapping[str, str]) -> str:
    """Markdown of a line for each table of each study, as its task shows it.

    Args:
        summaries: By the study's name.
        addresses: Where the page of a study lies, by the study's name.
    """
    blocks = []
    for task in reversed(PACKAGES):
        reporting = reporting_of(task)
        found = [
            OverviewRow(name, addresses.get(name, ""), table)
            for name, summary in summaries.items()
            if summary.task == task
            for table in summary.tables
        ]
        rows: Any = found
        columns, shown = reporting.overview.shown(rows, "terminal")
        if shown:
            blocks.append(f"{rows_as_grid(columns, shown)}\n\n{reporting.overview.caption(rows)}\n")
    return "\n".join(blocks) or NO_RUN
