"""Renders a report as HTML, CSV, SVG files and text for a terminal, whatever its task and measures."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from recurra.core import terminal as formatting
from recurra.core.configuration import write_yaml
from recurra.core.files import read_json, write_json, write_text
from recurra.core.record_parts import ANSWERS
from recurra.core.terminal import slug
from recurra.report.figures import TEMPLATES, Charts, draw, standalone
from recurra.report.summary import reporting_of
from recurra.tasks.drawing import Chart
from recurra.tasks.loaded_runs import LoadedRun
from recurra.tasks.measures import Estimate, Measure
from recurra.tasks.reporting import Reporting
from recurra.tasks.summary import ModelSummary, Summary, TableSummary, plain
from recurra.tasks.tables import Table, pooled_contrasts, runs_behind

STATES = {
    "failed": "⚠ FAILED",
    "note": "▹ note",
    "passed": "✓ passed",
    "skipped": "○ skipped",
    "measured": "· measured",
}
FIGURES = "figures"
TABLES = "tables"
MANIFEST_NAME = "exports.json"
Row = dict[str, Any]


def table_identity(table: TableSummary) -> Row:
    """Values that identify a table, first in each of its rows."""
    return {
        "table": table.title,
        "data": table.data,
        "split_protocol": table.protocol,
        "part": table.variant,
        "training": table.training,
        "precision": table.precision,
    }


def long_table(summary: Summary) -> list[Row]:
    """A row for each model, seed, split and measure; where there are several seeds, also one over all (no seed).

    The costs of a model are measures too, without a split. Values are in full precision.
    """
    return [
        {**table_identity(table), "model": model.label, "kind": model.kind, **row}
        for table in summary.tables
        for figures in [reporting_of(summary.task).figures(table)]
        for model in table.models
        for row in (*_scores(model, figures), *_costs(model))
    ]


def _scores(model: ModelSummary, figures: Sequence[Measure]) -> Iterator[Row]:
    for split in model.scores:
        for measure in figures:
            if (value := measure.of(model, split)) is not None:
                interval = {part: getattr(value, part) for part in _INTERVAL}
                yield _row("", split, measure.key, value.mean) | interval
                for seed, seed_value in zip(model.seeds, value.values, strict=False):
                    yield _row(seed, split, measure.key, seed_value)


def _row(seed: int | str, split: str, measure: str, value: float) -> Row:
    return {"seed": seed, "split": split, "measure": measure, "value": value, **dict.fromkeys(_INTERVAL)}


_INTERVAL = ("sd", "low", "high", "basis")
_COSTS = (
    "parameters",
    "embedding_parameters",
    "non_embedding_parameters",
    "flops_per_token",
    "file_size_mib",
    "training_wall_s",
    "peak_memory_mib",
)


def _costs(model: ModelSummary) -> Iterator[Row]:
    if model.price is not None:
        yield _row("", "", "price", model.price)
    for name in _COSTS if model.kind != ANSWERS else ():
        yield _row("", "", name, getattr(model, name))
    for batch, timing in model.latency.items():
        for name in ("median_ms", "p90_ms"):
            yield _row("", "", f"{name}_batch_{batch}", getattr(timing, name))


def plain_line(line: Any, identity: Row, prefix: str) -> Row:
    """Plain values of a report line, after those of ``identity``; keys that are there already get the prefix."""
    row = dict(identity)
    for key, value in (line if isinstance(line, dict) else vars(line)).items():
        name = f"{prefix}_{key}" if key in identity else key
        if isinstance(value, Estimate):
            row[name] = value.mean
            row |= {f"{name}_{part}": getattr(value, part) for part in _INTERVAL}
        elif isinstance(value, dict):
            row |= {f"{name}_{f'batch_{inner}' if inner.isdigit() else inner}": part for inner, part in value.items()}
        elif isinstance(value, (list, tuple)):
            if not any(isinstance(part, dict) for part in value):
                row[name] = "; ".join(map(str, value))
        elif value is None or isinstance(value, (str, int, float)):
            row[name] = value
    return row


def results_frame(summary: Summary) -> Any:
    """A pandas ``DataFrame`` with a row a model: every measure on the headline split, and the costs of the model."""
    # The library datasets, on which we depend, brings it.
    import pandas as pd

    rows = []
    for table in summary.tables:
        figures = reporting_of(summary.task).figures(table)
        for model in table.models:
            identity = table_identity(table)
            # A measure is called precision too.
            identity["training_precision"] = identity.pop("precision")
            row = identity | {"model": model.label, "kind": model.kind, "seeds": len(model.seeds)}
            for figure in (*_scores(model, figures), *_costs(model)):
                if figure["seed"] == "" and figure["split"] in ("", table.headline_split):
                    name = figure["measure"]
                    row[name] = figure["value"]
                    if figure["basis"] is not None:
                        row |= {f"{name}_{part}": figure[part] for part in _INTERVAL}
            rows.append(row | {"failed_audits": "; ".join(model.failed_groups)})
    return pd.DataFrame(rows).set_index("model") if rows else pd.DataFrame()


def results_text(summary: Summary, lines: Sequence[str]) -> str:
    """The results in columns for a terminal of 120 characters, with lines under them."""
    blocks = []
    for table in summary.tables:
        part = reporting_of(summary.task).tables(table)[0]
        timed = next((name for name in part.headings() if name.startswith("ms, batch")), "")
        wanted = ("Model", "Seeds", table.judged_by.heading, "95 % interval", "Parameters", "MiB", timed, "Audits")
        headings = [name for name in part.headings() if name in wanted]
        rows, left = [headings, *part.cells(headings)], part.left(headings)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        blocks.append(table.title)
        for row in rows:
            cells = zip(row, widths, left, strict=True)
            blocks.append(
                "  ".join(f"{cell:{'<' if to_left else '>'}{width}}" for cell, width, to_left in cells).rstrip()
            )
    return "\n".join([*blocks, *lines])


def write_study_report(
    folder: Path, summary: Summary, runs: Sequence[LoadedRun], *, title: str, command: str = "", answer: Any = None
) -> Path:
    """Writes the report of a study into its folder: the page, its figures and tables, the plain values.

    ``answer`` adds to the recommendation on the page: ``ships``, and ``commands`` to type.

    Raises:
        StorageError: If a file cannot be written.
    """
    drawn = draw(summary)
    target = folder / "report.html"
    write_text(target, render_report(summary, runs, title=title, command=command, drawn=drawn, answer=answer))
    write_json(folder / "summary.json", plain(summary))
    write_files(folder, summary, drawn)
    return target


def write_files(folder: Path, summary: Summary, drawn: Charts) -> None:
    """Writes ``figures/*.svg`` and ``tables/*.csv``; removes files that only an earlier call wrote.

    Raises:
        StorageError: If a file cannot be written.
    """
    files = {f"{FIGURES}/{name}": standalone(chart) for name, chart in named_figures(summary, drawn).items()}
    files |= _tables(summary)
    for name, content in files.items():
        write_text(folder / name, content)
    earlier: set[str] = set()
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        earlier = {*map(str, read_json(folder / MANIFEST_NAME)["files"])}
    for name in earlier - {*files}:
        if Path(name).parent.as_posix() in (FIGURES, TABLES):
            (folder / name).unlink(missing_ok=True)
    write_json(folder / MANIFEST_NAME, {"files": sorted(files)})


def named_figures(summary: Summary, drawn: Charts) -> dict[str, Chart]:
    """Charts by file name; tables and charts are numbered where two titles or headings would give the same name."""
    named = [(slug(chart.heading)[:120], chart) for chart in drawn[""]]
    titles = [slug(table.title)[:80] for table in summary.tables]
    for index, (table, title) in enumerate(zip(summary.tables, titles, strict=True)):
        name = f"{title}-{index + 1}" if title in titles[:index] else title
        named += [(f"{name}-{slug(chart.heading)[:60]}", chart) for chart in drawn[table.key]]
    charts: dict[str, Chart] = {}
    for name, chart in named:
        files = (f"{name}{number}.svg" for number in itertools.chain([""], map("-{}".format, itertools.count(2))))
        charts[next(file for file in files if file not in charts)] = chart
    return charts


# Lines of a table that other programs get beside its results.
_LINES = ("contrasts", "tests", "audits", "exports", "published")


def _tables(summary: Summary) -> dict[str, str]:
    """CSV of the long table, and of the lines of a table."""
    rows = {
        key: [plain_line(line, table_identity(table), key) for table in summary.tables for line in getattr(table, key)]
        for key in _LINES
    }
    rows |= {"results": long_table(summary), "pooled": [plain_line(line, {}, "") for line in summary.pooled]}
    return {f"{TABLES}/{key}.csv": csv_text(part) for key, part in rows.items() if part}


def render_report(
    summary: Summary,
    runs: Sequence[LoadedRun],
    *,
    title: str,
    command: str = "",
    drawn: Charts | None = None,
    answer: Any = None,
) -> str:
    """Renders the report as one HTML file that needs nothing else."""
    drawn = drawn or draw(summary)
    first_chart = _first_chart(summary, drawn)
    created = sorted(run.record.created for run in runs)
    page = (
        environment()
        .get_template("report.html.j2")
        .render(
            summary=summary,
            sections=_sections(summary, drawn, first_chart),
            alarms=reporting_of(summary.task).alarms(summary.tables) if summary.task else [],
            study_charts=drawn[""],
            pooled=pooled_contrasts(summary),
            first_chart=first_chart,
            title=title,
            answer=answer,
            command=command,
            first_created=created[0] if created else "",
            last_created=created[-1] if created else "",
            codes=Counter(run.record.code for run in runs),
            finished=len(runs),
            settings=_settings(summary),
        )
    )
    # A lone surrogate from a broken file name or label cannot be written as UTF-8.
    return page.encode("utf-8", "replace").decode("utf-8")


@lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    """Environment of the pages' templates; every text from outside is escaped."""
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


def _sections(summary: Summary, drawn: Charts, first_chart: Chart | None) -> list[dict[str, Any]]:
    return [
        {
            "table": table,
            "facts": _facts(table, reporting),
            "splits": reporting.splits(table),
            "tables": [part for part in reporting.tables(table) if part.rows or part.note],
            "charts": [chart for chart in drawn[table.key] if chart is not first_chart],
            "runs": runs_behind(table),
        }
        for table in summary.tables
        for reporting in [reporting_of(summary.task)]
    ]


def _first_chart(summary: Summary, drawn: Charts) -> Chart | None:
    """Chart beside the answer: quality against time, or else against size, if there is only one table."""
    if len(summary.tables) != 1:
        return None
    return next((chart for chart in drawn[summary.tables[0].key] if chart.kind == "trade-off"), None)


def _facts(table: TableSummary, reporting: Reporting) -> list[tuple[str, str]]:
    """Facts about a table, in words; unknown facts are left out."""
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


def _settings(summary: Summary) -> dict[str, str]:
    """The configuration of each model without the seed, as YAML, by the identifier of its first run."""
    first_runs = {
        run.record.run_id: run for table in summary.tables for run, *_ in (model.runs for model in table.models)
    }
    return {run_id: write_yaml(run.settings) for run_id, run in first_runs.items()}


def terminal_tables(summary: Summary) -> Iterator[tuple[str, Table, list[str]]]:
    """Printed parts of a study: a title, a table and lines below it; a table without rows is its lines alone."""
    for table in summary.tables:
        results, *others = reporting_of(summary.task).tables(table)
        recommended = table.recommended
        lines = [
            *(f"FAILED: {name}. {failed[0].meaning}" for name, failed in table.failed_groups.items()),
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
    """Rows as CSV; columns in the order of their first use, an empty cell for an unknown value."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue().encode("utf-8", "replace").decode("utf-8")
