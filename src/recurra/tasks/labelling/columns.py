"""Columns that the tables of all models share that label texts: names, sizes, times, audits; and their splits.

A row has a ``model``, a ``split``, and a ``score`` there or none.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from recurra.core import formatting as form
from recurra.tasks.columns import (
    COUNT,
    DURATION,
    EVERYWHERE,
    NUMBERS,
    PAGE,
    RUNS,
    SIGNIFICANT,
    TIMING,
    Cell,
    Column,
    Fields,
    Format,
    Place,
    Table,
    numbers,
)
from recurra.tasks.summary import ModelSummary

TEXTUAL: frozenset[Place] = frozenset(("terminal",))
NOT_IN_PAPERS = EVERYWHERE - {"latex"}


def _model(model: ModelSummary) -> Cell:
    fitted = model.kind == "linear" and len(model.seeds) == 1
    same = ", all the same" if model.deterministic else ""
    seeds = "fitted once, no seed" if fitted else f"{form.seeds(model.seeds)}{same}"
    failed = f"⚠ failed: {', '.join(model.failed_groups)}" if model.failed_audits else ""
    return Cell(model.label, below=(seeds,), alarm=failed)


def _label(_key: str, model: Any) -> Fields:
    return {"model": model.label}


def _audits(model: ModelSummary) -> str:
    if model.failed_groups:
        return f"FAILED: {', '.join(model.failed_groups)}"
    return "passed" if model.audited else "none run"


def _failed(key: str, model: Any) -> Fields:
    return {key: "; ".join(model.failed_groups)}


@dataclass(frozen=True)
class CalibrationErrors:
    """Expected calibration error, mean over seeds: of the probabilities that a model gives, and without temperature."""

    after: float
    before: float


def calibration_errors(metrics: Sequence[Any]) -> CalibrationErrors | None:
    """Of a model over its seeds, from their records' metrics; none if one of them is older than the temperature."""
    after = [item.calibration_error for item in metrics if item.calibration_error is not None]
    before = [item.uncalibrated_error for item in metrics if item.uncalibrated_error is not None]
    if min(len(after), len(before)) < len(metrics):
        return None
    return CalibrationErrors(statistics.fmean(after), statistics.fmean(before))


def _calibration_text(errors: CalibrationErrors) -> str:
    return f"{form.decimal(errors.after, 3)} ({form.decimal(errors.before, 3)})"


def _calibration_fields(key: str, errors: CalibrationErrors | None) -> Fields:
    return {key: getattr(errors, "after", None), "uncalibrated_error": getattr(errors, "before", None)}


CALIBRATION = Column(
    "calibration_error",
    "Calibration error (before)",
    lambda row: row.score.calibration if row.score else None,
    Format(_calibration_text, spread=_calibration_fields),
    NOT_IN_PAPERS,
    optional=True,
)


def _millions(value: float) -> str:
    return f"{value / 1e6:.2f}"


NAMES = (
    Column("model", "Model", lambda row: row.model, Format(lambda model: model.label, cell=_model, spread=_label)),
    Column("kind", "", lambda row: row.model.kind, places=NUMBERS),
    Column("split", "", lambda row: row.split, places=NUMBERS),
    Column("rows", "", lambda row: row.score.rows if row.score else None, places=NUMBERS),
    Column("seeds", "Seeds", lambda row: row.model.runs, RUNS, EVERYWHERE - PAGE),
)
SIZES = (
    Column(
        "parameters",
        "Parameters",
        lambda row: row.model.parameters,
        numbers(form.count, _millions),
        headings={"latex": "Parameters, M"},
    ),
    Column(
        "non_embedding_parameters",
        "Non-embedding",
        lambda row: row.model.non_embedding_parameters,
        numbers(form.count, _millions),
        headings={"latex": "Without embeddings, M"},
    ),
    Column("file_size_mib", "MiB", lambda row: row.model.file_size_mib, SIGNIFICANT, headings={"html": "File, MiB"}),
    Column(
        "flops_per_token",
        "FLOPs/token",
        lambda row: row.model.flops_per_token,
        numbers(form.amount, lambda value: form.significant(value / 1e6)),
        headings={"latex": "MFLOP/token"},
    ),
)
# More labels than a person reads one by one.
MANY_LABELS = 20
# Quality, then what it costs: fits 80 characters.
BRIEF = ("model", "accuracy", "macro_f1", "micro_f1", "file_size_mib", "batch_1", "training_wall_s")
ENDS = (
    Column("training_wall_s", "Training", lambda row: row.model.training_wall_s, DURATION, NOT_IN_PAPERS),
    Column("failed_audits", "Audits", lambda row: row.model, Format(_audits, spread=_failed), TEXTUAL | NUMBERS),
)


def latency(batch: int) -> Column:
    """Time a text at one batch size."""
    return Column(
        f"batch_{batch}",
        f"ms, batch {batch}",
        lambda row: row.model.latency.get(str(batch)),
        TIMING,
        headings={"html": f"ms a text, batch {batch}"},
    )


def _counted(counts: dict[str, int]) -> str:
    if len(counts) > MANY_LABELS:
        fewest, most = min(counts.values()), max(counts.values())
        return f"{len(counts)} labels, {form.count(fewest)} to {form.count(most)} rows each"
    return ", ".join(f"{label} {form.count(rows)}" for label, rows in counts.items())


def _words(split: Any) -> str:
    return f"{form.significant(split.mean_words)}, {form.significant(split.median_words)}, {split.max_words}"


TELLING_WORDS = Table(
    "telling-words",
    lambda _: "What words tell",
    lambda _: [
        Column("label", "Label", lambda row: row[0]),
        Column("words", "Words and pairs that speak for it", lambda row: ", ".join(row[1]), left=EVERYWHERE, wide=True),
    ],
    lambda table: list((table.telling_words or {}).items()),
    note=lambda _: (
        "Of linear-tuned, the strongest first: what adds most to the label's score in the training texts that have it. "
        "A word here that should not tell the label is a shortcut that every model may take."
    ),
    places=PAGE,
    folded=lambda _: True,
)
SPLITS = Table(
    "data",
    lambda _: "Splits",
    lambda _: [
        Column("split", "Split", lambda split: split.name),
        Column("use", "Use", lambda split: split.role, left=EVERYWHERE),
        Column("rows", "Rows", lambda split: split.rows, COUNT),
        Column("labels", "Rows a label", lambda split: _counted(split.label_counts), left=EVERYWHERE),
        Column("words", "Words: mean, median, longest", _words),
        Column("fingerprint", "Fingerprint", lambda split: split.fingerprint, left=EVERYWHERE, print=True),
    ],
    lambda table: table.splits,
    places=PAGE,
)
