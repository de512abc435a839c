"""The report: one HTML file that needs nothing else, from the runs on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from recurra.core import terminal as formatting
from recurra.core.configuration import write_yaml
from recurra.report.figures import Drawings, draw
from recurra.report.summary import reporting_of
from recurra.tasks.columns import Cell, Column, Table
from recurra.tasks.drawing import Chart
from recurra.tasks.loaded_runs import LoadedRun
from recurra.tasks.reporting import Reporting
from recurra.tasks.summary import Summary, TableSummary
from recurra.tasks.tables import RUNS_BEHIND, pooled_contrasts

TEMPLATES = Path(__file__).parent / "templates"
STATES = {
    "failed": "⚠ FAILED",
    "note": "▹ note",
    "passed": "✓ passed",
    "skipped": "○ skipped",
    "measured": "· measured",
}


@dataclass(frozen=True)
class Sheet:
    """A table as the page draws it: what stands above and below it, columns, and rows with their class and cells."""

    part: Table
    heading: str
    columns: Sequence[Column]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    alarms: Sequence[tuple[str, str]]
    note: str
    folded: bool

    @property
    def empty(self) -> str:
        """What stands there instead of rows."""
        return self.part.empty.get("html", "")


@dataclass(frozen=True)
class Section:
    """All that the page shows of one table of the summary."""

    table: TableSummary
    facts: Sequence[tuple[str, str]]
    splits: Sheet
    sheets: Sequence[Sheet]
    charts: Sequence[Chart]
    runs: Sheet


def sheet(part: Table, table: Any) -> Sheet:
    """A part of a table for the page."""
    columns, rows = part.shown(table, "html")
    cells = [(part.row_class(row), [column.cell(row) for column in columns]) for row in rows]
    note = (part.note or part.caption)(table) if rows else ""
    return Sheet(part, part.heading(table), columns, cells, part.alarms(table), note, part.folded(table))


def render_report(summary: Summary, runs: Sequence[LoadedRun], *, title: str, command: str = "") -> str:
    """Renders the report.

    Args:
        summary: Of the runs.
        runs: The runs themselves, for histories, lengths and configurations.
        title: Heading of the report.
        command: The command that makes these runs again.

    Returns:
        HTML. Every text that came from outside is escaped.
    """
    return render_page(summary, runs, draw(summary, runs), title=title, command=command)


def render_page(summary: Summary, runs: Sequence[LoadedRun], drawn: Drawings, *, title: str, command: str) -> str:
    """Renders the report with drawings that are made already; see `render_report`."""
    created = sorted(run.record.created for run in runs)
    page = (
        environment()
        .get_template("report.html.j2")
        .render(
            summary=summary,
            sections=_sections(summary, drawn),
            alarms=_alarms(summary),
            study_charts=drawn.study,
            pooled=sheet(pooled_contrasts(reporting_of(summary.task).judge), summary) if summary.pooled else None,
            first_chart=_first_chart(summary, drawn),
            title=title,
            command=command,
            first_created=created[0] if created else "",
            last_created=created[-1] if created else "",
            codes=_codes(runs),
            finished=len(runs),
            settings=_settings(summary, runs),
        )
    )
    # A lone surrogate from a broken file name or label cannot be written as UTF-8.
    return page.encode("utf-8", "replace").decode("utf-8")


@lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    """What renders the pages' templates; every text that came from outside is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(duration=formatting.duration, moment=formatting.moment, count=formatting.count)
    environment.globals.update(states=STATES)
    return environment


def _sections(summary: Summary, drawn: Drawings) -> list[Section]:
    if not summary.task:
        return []
    reporting, first = reporting_of(summary.task), _first_chart(summary, drawn)
    return [
        Section(
            table,
            _facts(table, reporting),
            sheet(reporting.splits, table),
            [
                found
                for part in reporting.tables
                if "html" in part.places and ((found := sheet(part, table)).rows or found.empty)
            ],
            [chart for chart in drawn.tables[table.key] if chart is not first],
            sheet(RUNS_BEHIND, table),
        )
        for table in summary.tables
    ]


def _first_chart(summary: Summary, drawn: Drawings) -> Chart | None:
    """What stands beside the answer: quality against time, or else against size, of the only table."""
    if len(summary.tables) != 1:
        return None
    charts = drawn.tables[summary.tables[0].key]
    return next((chart for kind in ("trade-off", "size") for chart in charts if chart.kind == kind), None)


def _alarms(summary: Summary) -> list[tuple[str, Sequence[tuple[str, str]]]]:
    """What the task raises beside failed audits: a heading and lines of a name and where it stands."""
    if not summary.task:
        return []
    found = [(alarm.heading, alarm.lines(summary.tables)) for alarm in reporting_of(summary.task).alarms]
    return [(heading, lines) for heading, lines in found if lines]


def _facts(table: TableSummary, reporting: Reporting) -> list[tuple[str, str]]:
    """What a table is about, in words; what is not known is left out."""
    unseeded = [model.label for model in table.models if model.kind == "linear" and len(model.seeds) == 1]
    models = [f"{model.label} ({model.description})" if model.description else model.label for model in table.models]
    seeds = [
        f"{model.label}: {'none' if model.label in unseeded else ', '.join(map(str, model.seeds))}"
        for model in table.models
    ]
    linear = any(model.kind == "linear" for model in table.models)
    fitted = "fitted, not trained by epochs"
    training = f"{table.training}{f' (the linear model is {fitted})' if linear else ''}" if table.training else fitted
    where = f"{table.data}{f', {table.variant}' if table.variant else ''}; fingerprint {table.fingerprint}"
    facts = [
        ("Models", "; ".join(models)),
        ("Seeds", "; ".join(seeds)),
        ("Data", where),
        ("Split protocol", table.protocol),
        ("Training protocol", training),
        ("Precision", table.precision),
        ("Tokenizer", ", ".join(f"{name} {value}" for name, value in table.tokenizer.items())),
        *reporting.facts(table),
        ("Notes on the data", " ".join(table.notes)),
    ]
    return [(name, said) for name, said in facts if said]


def _codes(runs: Sequence[LoadedRun]) -> list[dict[str, Any]]:
    """Versions of the code that ran, each once."""
    found: dict[tuple[str, str | None, bool | None], int] = {}
    for run in runs:
        code = run.record.code
        key = (code.version, code.commit, code.dirty)
        found[key] = found.get(key, 0) + 1
    return [
        {"version": version, "commit": commit, "dirty": dirty, "runs": number}
        for (version, commit, dirty), number in found.items()
    ]


def _settings(summary: Summary, runs: Sequence[LoadedRun]) -> dict[str, str]:
    """The configuration of each model without the seed, as YAML, by the identifier of its first run."""
    shown = {model.runs[0].run_id for table in summary.tables for model in table.models}
    return {run.record.run_id: write_yaml(run.settings) for run in runs if run.record.run_id in shown}
