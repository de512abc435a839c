"""Tables in Markdown, for the README and the documentation."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recurra.core.errors import ConfigurationError, unknown
from recurra.core.formatting import NONE, words
from recurra.report.summary import reporting_of
from recurra.tasks.columns import Cell, Column, Table, estimates
from recurra.tasks.measures import over_seeds
from recurra.tasks.registry import PACKAGES
from recurra.tasks.reporting import Reporting
from recurra.tasks.summary import RunEntry, Summary, TableSummary
from recurra.tasks.tables import pooled_contrasts

Link = Callable[[RunEntry], str]

ALL = "all"
CONCLUSION = "conclusion"
ACROSS = "across"
POOLED = "pooled"


def parts_of(reporting: Reporting) -> tuple[str, ...]:
    """Names of the parts that documents may ask for."""
    return (ALL, CONCLUSION, ACROSS, POOLED, *(part.key for part in reporting.tables if "markdown" in part.places))


def markdown_table(
    summary: Summary, *, part: str = ALL, without: Collection[str] = (), link: Link | None = None
) -> str:
    """Markdown of a summary, or of one part of it.

    Args:
        summary: Of a study.
        part: ``conclusion``, ``across`` (a line for each table with a figure of each model), ``pooled`` (contrasts
            over all data), the key of one of its task's tables (``results``, ``contrasts``, ...), or ``all``.
        without: Parts that ``all`` leaves out, as they stand somewhere else.
        link: Gives the address of a run's record; the seeds then link to the records.

    Raises:
        ConfigurationError: If there is no such part.
    """
    if not summary.task:
        return _ending([], summary, part)
    reporting = reporting_of(summary.task)
    if part not in parts_of(reporting):
        raise ConfigurationError(unknown("part of a results table", part, parts_of(reporting)))
    if part == ACROSS:
        return _ending([_across(summary.tables, reporting)] if summary.tables else [], summary, part)
    asked = {*parts_of(reporting)} - {*without} if part == ALL else {part}
    pooled = _part(summary, pooled_contrasts(reporting.judge), link) if POOLED in asked else ""
    blocks = [f"**Over all data**\n\n{pooled}"] if pooled else []
    for table in summary.tables:
        made = [_conclusion(table, reporting)] if CONCLUSION in asked else []
        made += [_part(table, found, link) for found in reporting.tables if found.key in asked]
        made = [block for block in made if block]
        if made:
            blocks.append("\n\n".join([f"**{text(table.title)}**", *made]))
    return _ending(blocks, summary, part)


def _ending(blocks: list[str], summary: Summary, part: str) -> str:
    failed = [f"- {text(run['run_id'])}: {text(run['reason'])}" for run in summary.failed_runs]
    if failed and part in (ALL, "results"):
        blocks = [*blocks, "Runs that failed:\n\n" + "\n".join(failed)]
    if blocks:
        return "\n\n".join(blocks) + "\n"
    return f"Nothing to show under '{part}' in this study.\n" if summary.tables else "No finished run.\n"


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


def rows_as_grid(columns: Sequence[Column], rows: Sequence[Any], link: Link | None = None) -> str:
    """Rows of any table as Markdown."""
    return grid(
        [text(column.heading_in("markdown")) for column in columns],
        [[_cell(column.cell(row), link) for column in columns] for row in rows],
        [index == 0 or "markdown" in column.left for index, column in enumerate(columns)],
    )


def _cell(cell: Cell, link: Link | None) -> str:
    if cell.runs and link is not None:
        return ", ".join(f"[{run.seed}]({link(run)})" for run in cell.runs)
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

    lines = [
        ([table.data, f"{table.data} · {table.subset}", table.title], [score(drawn, label) for label in labels])
        for drawn in draws.values()
        for table in drawn[:1]
    ]
    # The shortest name that no other line has too.
    whole = [names[-1] for names, _ in lines]
    level = next(level for level in range(3) if len({names[level] for names, _ in lines}) == len(set(whole)))
    lines.sort(key=lambda line: _natural(line[0][level]))
    rows = [[text(names[level]), *scores] for names, scores in lines]
    measures = dict.fromkeys(reporting.judge(table).heading for table in tables)
    seeds = max(len(model.seeds) for table in tables for model in table.models)
    spread = [f"{seeds} seeds"] if seeds > 1 else []
    spread += [f"{most} draws of the rows"] if (most := max(map(len, draws.values()))) > 1 else []
    over = f", mean ± standard deviation over {' and '.join(spread)}" if spread else ""
    caption = f"{' or '.join(measures)} on {words(sorted({table.headline_split for table in tables}))}{over}."
    return f"{grid(['Data', *map(text, labels)], rows)}\n\n{text(caption)}"


def _natural(name: str) -> list[tuple[float, str]]:
    """A key that sorts 64 behind 8."""
    parts = re.split(r"(\d+(?:[.,]\d+)*)", name)
    return [(float(part.replace(",", "")), "") if part[:1].isdigit() else (0.0, part) for part in parts]


def _conclusion(table: TableSummary, reporting: Reporting) -> str:
    answers = "\n".join(f"* {text(line.statement)}" for line in table.contrasts)
    return "\n\n".join(filter(None, [text(table.conclusion), answers, text(reporting.remarks(table))]))


def _part(table: Any, part: Table, link: Link | None) -> str:
    columns, rows = part.shown(table, "markdown")
    if not rows and "markdown" not in part.left_out:
        return part.empty.get("markdown", "") if "markdown" in part.places else ""
    drawn = [rows_as_grid(columns, rows, link)] if rows else []
    caption = part.caption(table)
    return "\n\n".join([*drawn, *([_caption(caption, table)] if caption else [])]) or part.empty.get("markdown", "")


def _caption(caption: str, table: Any) -> str:
    """A caption is ours but for the split that it begins with; what it marks as code stays code."""
    if not isinstance(table, TableSummary):
        return caption
    start = f"On {table.headline_split}"
    return caption.replace(start, f"On {text(table.headline_split)}", 1) if caption.startswith(start) else caption


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
        columns, shown = reporting.overview.shown(rows, "markdown")
        if shown:
            blocks.append(f"{rows_as_grid(columns, shown)}\n\n{reporting.overview.caption(rows)}\n")
    return "\n".join(blocks) if blocks else "No finished run.\n"
