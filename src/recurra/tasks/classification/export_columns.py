"""The tables of exports and of published figures beside ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from recurra.core import formatting as form
from recurra.tasks.classification.measures import ACCURACY
from recurra.tasks.classification.summary import ClassificationTable, ClassifierSummary, PublishedLine, SplitScore
from recurra.tasks.columns import (
    COUNT,
    DECIMAL,
    EVERYWHERE,
    NUMBERS,
    PAGE,
    READERS,
    TIMING,
    YES_NO,
    Cell,
    Column,
    Fields,
    Format,
    Table,
    estimate_cell,
    estimates,
    interval,
    numbers,
    paper_estimate,
    timing_cell,
    with_interval,
)
from recurra.tasks.estimates import Estimate, ExportLine, PublishedExport
from recurra.tasks.summary import Timing
from recurra.tasks.tables import of_split

CAPTION = (
    "The same trained weights, stored in each precision, read back from disk and evaluated. MiB are file sizes. "
    "Exits: rows leave by the threshold that was calibrated on validation rows, after so many recurrences. "
    "The gap is to the run's own model computed in FP32 on the same rows, mean ± half the 95 % interval over seeds; "
    "rows right by one alone say how many rows it rests on. "
    "Milliseconds a text: median / 90th / 99th percentile, all models and exports timed in turns; memory is the peak "
    "of a process that only opens the export and labels the same texts."
)
# A terminal has no room for every column.
_ROOMY = READERS - {"terminal"}


def _columns(table: ClassificationTable) -> list[Column]:
    batches = sorted({int(batch) for line in table.exports for batch in line.median_ms})
    mib = Format(lambda value: f"{value:.2f}")
    return [
        Column("model", "Model", lambda line: line.model),
        Column("stored_as", "Stored as", lambda line: line.stored_as, places=READERS, left=EVERYWHERE),
        Column("format", "", lambda line: line.format, places=NUMBERS),
        Column("storage_precision", "", lambda line: line.precision, places=NUMBERS),
        Column("computed", "Computed in", lambda line: line, _COMPUTED, left=EVERYWHERE),
        Column("seeds", "Seeds", lambda line: len(line.seeds)),
        Column("weights_mib", "Weights, MiB", lambda line: line.weights_mib, mib),
        Column("folder_mib", "Folder, MiB", lambda line: line.folder_mib, mib, EVERYWHERE - {"terminal"}),
        Column("accuracy", "Accuracy", lambda line: line.accuracy, _MEAN),
        Column("interval", "95 % interval", lambda line: interval(line.accuracy), places=_ROOMY),
        Column("f1", "", lambda line: line.f1, places=NUMBERS),
        Column("gap_to_fp32", "Gap to FP32, points", lambda line: line, Format(_gap, spread=_gap_fields)),
        Column(
            "labels_changed", "Labels changed", lambda line: line,
            Format(lambda line: f"{line.labels_changed:,} of {line.rows:,}", spread=_named("labels_changed")),
        ),
        Column(
            "alone", "Right alone: export : FP32", lambda line: line,
            Format(
                lambda line: f"{line.only_export:,} : {line.only_reference:,}",
                spread=_named("only_export", "only_reference", "rows", "largest_logit_difference"),
            ),
            EVERYWHERE - {"terminal"},
        ),
        *(column for batch in batches for column in _timings(batch)),
        Column("peak_memory_mib", "Memory, MiB", lambda line: line.memory_mib, COUNT, optional=True),
        Column(
            "published", "Published: accuracy, MiB, ms", lambda line: line.published or None,
            Format(_published, spread=_published_fields), EVERYWHERE - {"terminal"}, optional=True,
        ),
        Column(
            "difference", "Ours − published", lambda line: line.published or None,
            Format(lambda lines: "; ".join(ACCURACY.gap(line.difference) for line in lines)), _ROOMY, optional=True,
        ),
    ]  # fmt: skip


def _named(*names: str) -> Callable[[str, Any], Fields]:
    return lambda _key, line: {name: getattr(line, name, None) for name in names}


def _computed(line: ExportLine) -> str:
    return f"{line.computed}{'; rows leave: ' + line.exits if line.exits else ''}"


_COMPUTED = Format(_computed, spread=_named("computed", "exits"))
_MEAN = Format(lambda value: form.decimal(value.mean), spread=estimates().spread)


def _gap(line: ExportLine) -> str:
    text = f"{abs(line.gap) * 100:.2f}"
    sign = "" if text == "0.00" else "+" if line.gap > 0 else "−"
    half = f" ± {line.gap_half * 100:.2f}" if line.gap_half is not None else ""
    return f"{sign}{text}{half}"


def _gap_fields(key: str, line: Any) -> Fields:
    return {key: line.gap, "gap_half": line.gap_half, "largest_gap": line.largest_gap}


def _timings(batch: int) -> tuple[Column, Column]:
    key = str(batch)

    def known(line: ExportLine) -> list[float] | None:
        parts = [times.get(key) for times in (line.median_ms, line.p90_ms, line.p99_ms)]
        return [part for part in parts if part is not None] or None

    def fields(_key: str, line: Any) -> Fields:
        return {f"{name}_batch_{key}": getattr(line, name).get(key) for name in ("median_ms", "p90_ms", "p99_ms")}

    def times(line: ExportLine) -> str:
        return " / ".join(form.significant(part) for part in known(line) or ()) or form.NONE

    return (
        Column(f"batch_{key}", f"ms, batch {key}", lambda line: line, Format(times, spread=fields)),
        Column(
            f"texts_per_s_batch_{key}",
            f"Texts/s, batch {key}",
            lambda line: line.texts_per_s.get(key),
            COUNT,
        ),
    )


def _published(lines: list[PublishedExport]) -> str:
    shown = []
    for item in lines:
        size, latency = form.decimal(item.size_mib, 2), form.significant(item.latency_ms)
        shown.append(f"{form.decimal(item.accuracy)}, {size}, {latency} ({item.source}, {item.protocol})")
    return "; ".join(shown)


def _published_fields(_key: str, lines: list[PublishedExport] | None) -> Fields:
    first = lines[0] if lines else None
    return {
        "published_accuracy": first.accuracy if first else None,
        "published_size_mib": first.size_mib if first else None,
        "published_ms": first.latency_ms if first else None,
    }


EXPORTS = Table(
    "exports",
    lambda _: "The same weights, stored in each precision",
    _columns,
    lambda table: table.exports,
    caption=lambda _: CAPTION,
    note=of_split(CAPTION),
    paper_note=lambda _: CAPTION,
    short="exports",
)


@dataclass(frozen=True)
class Published:
    """A row beside the published figures: ours if there is no line."""

    model: ClassifierSummary
    protocol: str
    score: SplitScore
    split: str
    line: PublishedLine | None = None

    def figure(self, name: str) -> Any:
        """A figure of the line, or ours."""
        if self.line is not None:
            return getattr(self.line, name)
        found = getattr(self.score, name)
        return found.mean if name != "accuracy" and isinstance(found, Estimate) else found


def _published_rows(table: ClassificationTable) -> list[Published]:
    rows: list[Published] = []
    for model in table.models:
        lines = [line for line in table.published if line.model == model.label]
        score = model.scores.get(table.headline_split)
        if lines and score:
            rows.append(Published(model, table.protocol, score, table.headline_split))
            rows += [Published(model, line.protocol, score, table.headline_split, line) for line in lines]
    return rows


def _either(value: Estimate | float) -> str:
    return with_interval().write(value) if isinstance(value, Estimate) else form.decimal(value)


def _either_paper(value: Estimate | float) -> str:
    return paper_estimate(value, percent=True) if isinstance(value, Estimate) else f"{value * 100:.1f}"


def _either_cell(value: Estimate | float) -> Cell:
    return estimate_cell(value) if isinstance(value, Estimate) else Cell(form.decimal(value))


def _source(row: Published) -> str:
    return f"published, {row.line.source}" if row.line else "ours"


def _source_cell(row: Published) -> Cell:
    return Cell(_source(row), below=(row.line.what if row.line else row.split,))


def _source_fields(_key: str, row: Any) -> Fields:
    return {"source": row.line.source, "what": row.line.what}


def _of_line(name: str) -> Any:
    return lambda row: getattr(row.line, name) if row.line else None


def _published_note(table: ClassificationTable) -> str:
    differing = list(dict.fromkeys(line.differs for line in table.published if line.differs))
    text = (
        "The published figures are single runs; their milliseconds are from another machine. “pooled” means a random "
        "split of the pooled rows, where phrases of one sentence lie on both sides."
    )
    if differing:
        text += f" Where something differs ({'; '.join(differing)}), the two are not comparable."
    return text


def _time(row: Published) -> Timing | float | None:
    """Published milliseconds, or ours at the largest batch."""
    if row.line is not None:
        return row.line.latency_ms
    return row.model.latency[max(row.model.latency, key=int)] if row.model.latency else None


def _time_cell(value: Timing | float) -> Cell:
    if not isinstance(value, Timing):
        return Cell(form.decimal(value))
    return replace(timing_cell(value), below=(f"batch {value.batch_size}",))


def _time_text(value: Timing | float) -> str:
    return TIMING.write(value) if isinstance(value, Timing) else form.decimal(value)


PUBLISHED_TABLE = Table(
    "published",
    lambda _: "Beside the published figures",
    lambda _: [
        Column("model", "Model", lambda row: row.model.label),
        Column(
            "source", "Figures", lambda row: row, Format(_source, cell=_source_cell, spread=_source_fields),
            left=EVERYWHERE,
        ),
        Column("protocol", "Split protocol", lambda row: row.protocol, left=EVERYWHERE),
        Column(
            "accuracy", "Accuracy", lambda row: row.figure("accuracy"), Format(_either, _either_paper, _either_cell),
            headings={"latex": "Accuracy, %"},
        ),
        Column(
            "difference", "Ours − published", _of_line("difference"),
            numbers(ACCURACY.gap, lambda value: ACCURACY.gap(value, unit=False)), headings={"latex": "Difference"},
        ),
        Column("inside", "In our 95 % interval", _of_line("inside"), YES_NO),
        Column("basis", "", _of_line("basis"), places=NUMBERS),
        Column(
            "differs", "What differs", lambda row: row.line.differs if row.line else None,
            Format(lambda value: value or "nothing known"),
        ),
        Column("f1", "F1", lambda row: row.figure("f1"), DECIMAL),
        Column("precision_of_positives", "Precision", lambda row: row.figure("precision"), DECIMAL),
        Column("recall", "Recall", lambda row: row.figure("recall"), DECIMAL),
        Column("latency_ms", "ms a text", _time, Format(_time_text, cell=_time_cell), PAGE | NUMBERS),
        Column("our_accuracy", "", lambda row: row.score.accuracy, estimates(), NUMBERS),
    ],
    _published_rows,
    note=_published_note,
    numbers=lambda table: [row for row in _published_rows(table) if row.line],
    places=EVERYWHERE - {"terminal"},
    row_class=lambda row: "" if row.line else "ours",
)  # fmt: skip
