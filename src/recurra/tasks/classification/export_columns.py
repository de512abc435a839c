"""The table of exports: the same weights, stored in each precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from recurra.core import formatting as form
from recurra.tasks.classification.measures import ACCURACY
from recurra.tasks.classification.summary import ClassificationTable
from recurra.tasks.columns import (
    COUNT,
    EVERYWHERE,
    NUMBERS,
    READERS,
    Column,
    Fields,
    Format,
    Table,
    estimates,
    interval,
)
from recurra.tasks.estimates import ExportLine, PublishedExport
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
