"""The table of exports as text: one for the page, the documents and the papers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from recurra.study.report import formatting as form

EXPORTS_CAPTION = (
    "The same trained weights, stored in each precision, read back from disk and evaluated. MiB are file sizes. "
    "Exits: rows leave by the threshold that was calibrated on validation rows, after so many recurrences. "
    "The gap is to the run's own model computed in FP32 on the same rows, mean ± half the 95 % interval over seeds; "
    "rows right by one alone say how many rows it rests on. "
    "Milliseconds a text: median / 90th / 99th percentile, all models and exports timed in turns; memory is the peak "
    "of a process that only opens the export and labels the same texts."
)


def export_rows(lines: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows, as text, one row an export.

    Args:
        lines: The ``exports`` of a table of `recurra.study.report.tables.summarise_runs`.
    """
    batches = sorted({int(batch) for line in lines for batch in line["median_ms"]})
    known = any(line["published"] for line in lines)
    headings = [
        "Model",
        "Stored as",
        "Computed in",
        "Seeds",
        "Weights, MiB",
        "Folder, MiB",
        "Accuracy",
        "95 % interval",
    ]
    headings += ["Gap to FP32, points", "Labels changed", "Right alone: export : FP32"]
    headings += [heading for batch in batches for heading in (f"ms, batch {batch}", f"Texts/s, batch {batch}")]
    weighed = any(line["memory_mib"] is not None for line in lines)
    headings += ["Memory, MiB"] if weighed else []
    headings += ["Published: accuracy, MiB, ms", "Ours − published"] if known else []
    return headings, [_row(line, batches, known=known, weighed=weighed) for line in lines]


def _row(line: Mapping[str, Any], batches: Sequence[int], *, known: bool, weighed: bool) -> list[str]:
    accuracy = line["accuracy"]
    half = f" ± {line['gap_half'] * 100:.2f}" if line["gap_half"] is not None else ""
    interval = form.interval(accuracy["low"], accuracy["high"])
    row = [
        line["model"],
        f"{line['format']} {line['precision']}{', exits' if line['exits'] else ''}",
        f"{line['computed']}{'; rows leave: ' + line['exits'] if line['exits'] else ''}",
        str(len(line["seeds"])),
        f"{line['weights_mib']:.2f}",
        f"{line['folder_mib']:.2f}",
        form.decimal(accuracy["mean"]),
        f"{interval} ({accuracy['basis']})" if interval else form.NONE,
        f"{_signed(line['gap'])}{half}",
        f"{line['labels_changed']:,} of {line['rows']:,}",
        f"{line['only_export']:,} : {line['only_reference']:,}",
    ]
    for batch in map(str, batches):
        parts = [line[name].get(batch) for name in ("median_ms", "p90_ms", "p99_ms")]
        row.append(" / ".join(form.significant(part) for part in parts if part is not None) or form.NONE)
        row.append(form.count(line["texts_per_s"].get(batch)))
    if weighed:
        row.append(form.count(line["memory_mib"]))
    if known:
        row += _published(line["published"])
    return row


def _signed(gap: float) -> str:
    text = f"{abs(gap) * 100:.2f}"
    return text if text == "0.00" else f"{'+' if gap > 0 else '−'}{text}"


def _published(figures: Sequence[Mapping[str, Any]]) -> list[str]:
    shown = []
    for item in figures:
        values = (
            form.decimal(item["accuracy"]),
            form.decimal(item["size_mib"], 2),
            form.significant(item["latency_ms"]),
        )
        shown.append(f"{', '.join(values)} ({item['source']}, {item['protocol']})")
    gaps = [form.points(item["difference"]) for item in figures]
    return ["; ".join(shown) or form.NONE, "; ".join(gaps) or form.NONE]
