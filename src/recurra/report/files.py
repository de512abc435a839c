"""The one long table of a study, and what a report writes into its folder: the page, figures as SVG, numbers as CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from recurra.core.errors import UnavailableError
from recurra.core.files import read_json, write_json, write_text
from recurra.core.record_parts import ANSWERS
from recurra.core.terminal import slug
from recurra.report.figures import Drawings, draw, standalone
from recurra.report.render import csv_text, render_report
from recurra.report.summary import reporting_of
from recurra.tasks.drawing import Chart
from recurra.tasks.loaded_runs import LoadedRun
from recurra.tasks.measures import Estimate
from recurra.tasks.summary import ModelSummary, Summary, TableSummary, plain

Row = dict[str, Any]


def of_table(table: TableSummary) -> Row:
    """What identifies a table, first in each of its rows."""
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

    What a model costs is a measure too, of no split. Values are in full precision.
    """
    return [
        {**of_table(table), "model": model.label, "kind": model.kind, **row}
        for table in summary.tables
        for model in table.models
        for row in (*_scores(table, model, summary), *_costs(model))
    ]


def _scores(table: TableSummary, model: ModelSummary, summary: Summary) -> Iterator[Row]:
    for split in model.scores:
        for measure in reporting_of(summary.task).figures(table):
            value = measure.of(model, split)
            if value is None:
                continue
            yield _row("", split, measure.key, value.mean) | {
                "sd": value.sd,
                "low": value.low,
                "high": value.high,
                "basis": value.basis,
            }
            for seed, of_seed in zip(model.seeds, value.values, strict=False):
                yield _row(seed, split, measure.key, of_seed)


def _row(seed: int | str, split: str, measure: str, value: float) -> Row:
    return dict.fromkeys(("seed", "split", "measure", "value", "sd", "low", "high", "basis")) | {
        "seed": seed,
        "split": split,
        "measure": measure,
        "value": value,
    }


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


def plain_line(line: Any, own: Row, prefix: str) -> Row:
    """The plain values of a line of a report, after those of ``own``; names that are there already get the prefix."""
    row = dict(own)
    for key, value in vars(line).items():
        name = f"{prefix}_{key}" if key in own else key
        if isinstance(value, Estimate):
            row[name] = value.mean
            row |= {f"{name}_{part}": getattr(value, part) for part in ("sd", "low", "high", "basis")}
        elif isinstance(value, dict):
            row |= {f"{name}_{f'batch_{of}' if of.isdigit() else of}": part for of, part in value.items()}
        elif isinstance(value, (list, tuple)):
            if not any(is_dataclass(part) for part in value):
                row[name] = "; ".join(map(str, value))
        elif value is None or isinstance(value, (str, int, float)):
            row[name] = value
    return row


def results_frame(summary: Summary) -> Any:
    """A pandas ``DataFrame`` with a row a model: every measure on the headline split, and what the model costs.

    Raises:
        UnavailableError: If pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise UnavailableError(
            "a table of results is a pandas DataFrame, and pandas is not installed; pip install pandas, or read "
            "result.summary, plain values"
        ) from error
    rows = []
    for table in summary.tables:
        for model in table.models:
            row = of_table(table) | {"model": model.label, "kind": model.kind, "seeds": len(model.seeds)}
            for figure in (*_scores(table, model, summary), *_costs(model)):
                if figure["seed"] == "" and figure["split"] in ("", table.headline_split):
                    name = figure["measure"]
                    row[name] = figure["value"]
                    if figure["basis"] is not None:
                        row |= {f"{name}_{part}": figure[part] for part in ("sd", "low", "high", "basis")}
            rows.append(row | {"failed_audits": "; ".join(model.failed_groups)})
    return pd.DataFrame(rows).set_index("model") if rows else pd.DataFrame()


def results_text(summary: Summary, lines: Sequence[str]) -> str:
    """The results in columns that a terminal of 120 has room for, and lines under them."""
    blocks = []
    for table in summary.tables:
        reporting = reporting_of(summary.task)
        part = reporting.tables(table)[0]
        judge = reporting.judge(table).heading
        timed = next((name for name in part.headings() if name.startswith("ms, batch")), "")
        wanted = ("Model", "Seeds", judge, "95 % interval", "Parameters", "MiB", timed, "Audits")
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


FIGURES = "figures"
TABLES = "tables"
MANIFEST_NAME = "exports.json"
REPORT_NAME = "report.html"
SUMMARY_NAME = "summary.json"


def write_study_report(
    folder: Path,
    summary: Summary,
    runs: Sequence[LoadedRun],
    *,
    title: str,
    command: str = "",
    answer: Any = None,
) -> Path:
    """Writes everything that a study shows into its folder: the page, its figures and tables, the plain values.

    ``answer`` has what the page says beside the recommendation: ``ships``, and ``commands`` to type.

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
