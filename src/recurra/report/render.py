"""Tables as HTML, CSV and blocks of a terminal. None of them knows a task or a measure."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from recurra.core import terminal as formatting
from recurra.core.configuration import write_yaml
from recurra.report.figures import Drawings, draw
from recurra.report.summary import reporting_of
from recurra.tasks.drawing import Chart
from recurra.tasks.loaded_runs import LoadedRun
from recurra.tasks.reporting import Reporting
from recurra.tasks.summary import RECOMMENDED, Summary, TableSummary
from recurra.tasks.tables import Table, pooled_contrasts, runs_behind

TEMPLATES = Path(__file__).parent / "templates"
STATES = {
    "failed": "⚠ FAILED",
    "note": "▹ note",
    "passed": "✓ passed",
    "skipped": "○ skipped",
    "measured": "· measured",
}


def render_report(
    summary: Summary,
    runs: Sequence[LoadedRun],
    *,
    title: str,
    command: str = "",
    drawn: Drawings | None = None,
    answer: Any = None,
) -> str:
    """Renders the report as one HTML file that needs nothing else."""
    drawn = drawn or draw(summary, runs)
    created = sorted(run.record.created for run in runs)
    page = (
        environment()
        .get_template("report.html.j2")
        .render(
            summary=summary,
            sections=_sections(summary, drawn),
            alarms=reporting_of(summary.task).alarms(summary.tables) if summary.task else [],
            study_charts=drawn.study,
            pooled=_pooled(summary) if summary.pooled else None,
            first_chart=_first_chart(summary, drawn),
            title=title,
            answer=answer,
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


def _pooled(summary: Summary) -> Table:
    return pooled_contrasts(summary, reporting_of(summary.task).judge(summary.tables[0]))


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


def _sections(summary: Summary, drawn: Drawings) -> list[dict[str, Any]]:
    if not summary.task:
        return []
    reporting, first = reporting_of(summary.task), _first_chart(summary, drawn)
    return [
        {
            "table": table,
            "facts": _facts(table, reporting),
            "splits": reporting.splits(table),
            "tables": [part for part in reporting.tables(table) if part.rows or part.note],
            "charts": [chart for chart in drawn.tables[table.key] if chart is not first],
            "runs": runs_behind(table),
        }
        for table in summary.tables
    ]


def _first_chart(summary: Summary, drawn: Drawings) -> Chart | None:
    """What stands beside the answer: quality against time, or else against size, of the only table."""
    if len(summary.tables) != 1:
        return None
    charts = drawn.tables[summary.tables[0].key]
    return next((chart for kind in ("trade-off", "size") for chart in charts if chart.kind == kind), None)


def _facts(table: TableSummary, reporting: Reporting) -> list[tuple[str, str]]:
    """What a table is about, in words; what is not known is left out."""
    unseeded = [model.label for model in table.models if model.kind != "transformer" and len(model.seeds) == 1]
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
    return [(name, text) for name, text in facts if text]


def _codes(runs: Sequence[LoadedRun]) -> list[dict[str, Any]]:
    """Versions of the code that ran, each once."""
    codes = Counter((run.record.code.version, run.record.code.commit, run.record.code.dirty) for run in runs)
    return [
        {"version": version, "commit": commit, "dirty": dirty, "runs": number}
        for (version, commit, dirty), number in codes.items()
    ]


def _settings(summary: Summary, runs: Sequence[LoadedRun]) -> dict[str, str]:
    """The configuration of each model without the seed, as YAML, by the identifier of its first run."""
    shown = {model.runs[0].run_id for table in summary.tables for model in table.models}
    return {run.record.run_id: write_yaml(run.settings) for run in runs if run.record.run_id in shown}


def terminal_tables(summary: Summary) -> Iterator[tuple[str, Table, list[str]]]:
    """What is printed of a study: a title, a table and lines below it; a table without rows is its lines alone."""
    for table in summary.tables:
        results, *others = reporting_of(summary.task).tables(table)
        recommended = next((advice for advice in table.advice if advice.priority == RECOMMENDED), None)
        lines = [
            *(f"FAILED: {group.name}. {group.meaning}" for group in table.failed_groups),
            *((f"Recommended: {recommended.choice or 'none'}, {recommended.why}",) if recommended else ()),
            table.conclusion,
            *(f"- {line.statement}" for line in table.contrasts),
        ]
        yield table.title, results, lines
        for part in others:
            if part.rows and not part.page_only:
                yield part.heading, part, [part.note] if part.note else []
    if summary.pooled:
        yield "", Table("pooled", "", []), [f"- {line.statement}" for line in summary.pooled]


def csv_text(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as CSV; columns in the order of their first use, an empty cell for what is not known."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue().encode("utf-8", "replace").decode("utf-8")
