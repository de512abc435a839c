"""The one long table of a study: study's table, data, model, seed, split, measure, value, interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from typing import Any

from recurra.core.errors import UnavailableError
from recurra.core.record_parts import ANSWERS
from recurra.report.summary import reporting_of
from recurra.tasks.measures import Estimate
from recurra.tasks.summary import ModelSummary, Summary, TableSummary

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
    rows: list[Row] = []
    splits = {table.title: table.headline_split for table in summary.tables}
    models = {(table.title, model.label): model for table in summary.tables for model in table.models}
    by_model: dict[tuple[str, str], Row] = {}
    for row in long_table(summary):
        if row["seed"] == "" and row["split"] in ("", splits[row["table"]]):
            key = row["table"], row["model"]
            names = ("table", "data", "split_protocol", "part", "training", "precision", "model", "kind")
            of_model = by_model.setdefault(key, {name: row[name] for name in names} | {"seeds": len(models[key].seeds)})
            of_model[row["measure"]] = row["value"]
            if row["basis"] is not None:
                of_model |= {f"{row['measure']}_{part}": row[part] for part in ("sd", "low", "high", "basis")}
    for key, row in by_model.items():
        rows.append(row | {"failed_audits": "; ".join(models[key].failed_groups)})
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
