"""The exports of a table's models by precision, and the published figures beside ours: as plain rows and as tables."""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from recurra.core import terminal as form
from recurra.core.record import LatencyRecord
from recurra.deployment.export.formats import storage_order
from recurra.deployment.export_record import WITH_EXITS, ExportedExits, ExportRecord, fits
from recurra.evaluation.significance import mean_interval
from recurra.tasks.classification.measures import ACCURACY, F1, PRECISION, RECALL
from recurra.tasks.labelling.reporting import LabellingTable
from recurra.tasks.loaded_runs import LoadedRun, TableKey, TableRuns
from recurra.tasks.measures import Estimate, StudyLatency, estimate
from recurra.tasks.questions import PublishedReference
from recurra.tasks.summary import ModelSummary
from recurra.tasks.tables import Cells, Table, interval

Row = dict[str, Any]

# Tables of the papers by name: the source and the experiment in words; our corpora that hold the same data, and their
# split protocol that was used; the precision, empty if the papers do not say; by preset the accuracy, F1, precision and
# recall as shares, and milliseconds a text; and the size of the weights by preset, which the papers give as parameters
# times bytes. The F1 of `recurrent` in table 11 is printed as .8721, which its precision and recall contradict.
PUBLISHED: Mapping[str, Mapping[str, Any]] = json.loads((Path(__file__).parent / "published.json").read_bytes())
_FIGURES = ("accuracy", "f1", "precision", "recall", "latency_ms")
# Unless a study file says otherwise: table 6 beside the whole of SST-2.
_WHOLE_SST2 = {"name": "sst2", "fraction": 1.0, "length_tail": None}
_DEFAULT = [PublishedReference(table=name, data=_WHOLE_SST2) for name in ("6", "6 early")]


def published_rows(
    table: TableRuns, models: Sequence[ModelSummary], references: Sequence[PublishedReference] | None
) -> list[Row]:
    """The published figures for the models of a table."""
    beside, run = _DEFAULT if references is None else references, table.runs[0]
    return [
        {"model": model.label, **row}
        for model in models
        for row in _published(model.preset, ACCURACY.of(model, table.headline), table.key, run, beside)
    ]


def _published(
    preset: str, ours: Estimate | None, key: TableKey, run: LoadedRun, references: Iterable[PublishedReference]
) -> list[Row]:
    """Figures of the published tables that stand beside a run in the precision of a key, and how far ours is from them.

    ``inside`` says whether the published accuracy lies in our 95 % interval, whose basis is ``basis``, and ``differs``
    which conditions differ. None is unknown: precision, recall and size were not always published.
    """
    rows = []
    for published in [PUBLISHED[item.table] for item in references if item.fits(run.data_settings, key.precision)]:
        if preset not in published["figures"]:
            continue
        figures = dict(zip(_FIGURES, published["figures"][preset], strict=True))
        inside = None
        if ours is not None and ours.low is not None and ours.high is not None:
            inside = ours.low <= figures["accuracy"] <= ours.high
        same_data = key.data in published["corpora"]
        differs = {
            "other data": not same_data,
            "another split": same_data and key.protocol != published["protocol"],
            "another training": key.training not in ("", "paper"),
            "another precision": published["precision"] not in ("", key.precision),
        }
        rows.append(
            {
                "source": published["source"],
                "what": published["what"],
                "protocol": published["protocol"],
                **figures,
                "size_mib": published["sizes_mib"].get(preset),
                "difference": None if ours is None else ours.mean - figures["accuracy"],
                "inside": inside,
                "basis": "" if ours is None or inside is None else ours.basis,
                "differs": ", ".join(name for name, other in differs.items() if other),
            }
        )
    return rows


def export_rows(
    table: TableRuns,
    records: Sequence[ExportRecord],
    measured: StudyLatency,
    references: Sequence[PublishedReference] | None,
) -> list[Row]:
    """Summarises the exports of each model over its seeds, models in the table's order.

    Records of runs outside the table, or of runs that were trained again since, are left out.
    """
    by_run: dict[str, list[ExportRecord]] = defaultdict(list)
    for record in records:
        by_run[record.run_id].append(record)
    rows = []
    for label, runs in table.groups.items():
        kinds: dict[tuple[str, str], list[tuple[LoadedRun, ExportRecord]]] = defaultdict(list)
        for run in runs:
            for record in by_run[run.record.run_id]:
                if table.headline in record.splits and fits(record, run.record):
                    kinds[record.format, record.precision].append((run, record))
        for kind in sorted(kinds, key=lambda item: storage_order(*item)):
            members = kinds[kind]
            rows.append(_export(label, table, members, measured, references))
            early = [(run, record) for run, record in members if record.exits and table.headline in record.exits.splits]
            if early:
                rows.append(_export(label, table, early, measured, None, exits=True))
    return rows


def _export(
    label: str,
    table: TableRuns,
    members: Sequence[tuple[LoadedRun, ExportRecord]],
    measured: StudyLatency,
    references: Sequence[PublishedReference] | None,
    *,
    exits: bool = False,
) -> Row:
    """One model in one format and precision, over its seeds, on the headline split.

    With ``exits`` it is of the same exports with texts leaving at the calibrated exits.
    """
    (run, first), records = members[0], [record for _, record in members]
    exit_records = [record.exits for record in records if record.exits] if exits else []
    splits = [source.splits[table.headline] for source in exit_records or records]
    names = [f"{record.run_id}/{record.format}-{record.precision}" for record in records]
    timings = [measured.exports.get(f"{name}{WITH_EXITS if exits else ''}", {}) for name in names]
    gaps = [split.metrics.accuracy - split.reference.accuracy for split in splits]
    accuracy = estimate(ACCURACY, [split.metrics for split in splits])
    computed = [record.computation for record in records]
    # Only references for which the study names the precision.
    precise = [item for item in references or () if item.precision is not None]
    preset, key = run.record.model.preset, table.key._replace(precision=first.precision)
    return {
        "model": label,
        "format": first.format,
        # Of the stored weights.
        "precision": first.precision,
        "computed": "; ".join(
            dict.fromkeys(f"{how.compute_precision}, {how.engine} on {how.device}" for how in computed)
        ),
        "exits": _exits_of_rows(exit_records, table.headline) if exits else None,
        "seeds": [run.record.seed for run, _ in members],
        "weights_mib": statistics.median(record.weights_bytes for record in records) / 2**20,
        "folder_mib": statistics.median(record.folder_bytes for record in records) / 2**20,
        "accuracy": accuracy,
        # To the run's own model computed in FP32: the mean over seeds, and half its 95 % interval (Student's t).
        "gap": statistics.fmean(gaps),
        "gap_half": mean_interval(gaps).half,
        # Rows of all seeds: with another label, and right in one of the two only.
        "labels_changed": sum(split.labels_changed for split in splits),
        "only_export": sum(split.only_export for split in splits),
        "only_reference": sum(split.only_reference for split in splits),
        "rows": sum(split.metrics.rows for split in splits),
        **{figure: _times(timings, figure) for figure in ("median_ms", "p90_ms", "p99_ms")},
        # Peak of a process that opens it and labels texts.
        "memory_mib": max(filter(None, map(measured.memory_mib.get, names)), default=None),
        "published": [{"model": preset, **row} for row in _published(preset, accuracy, key, run, precise)],
    }


def _exits_of_rows(records: Sequence[ExportedExits], split: str) -> str:
    """Where rows leave, over all seeds."""
    taken: Counter[int] = Counter()
    for record in records:
        taken.update(record.taken[split])
    total = max(1, taken.total())
    return ", ".join(f"{count / total:.0%} after {number}" for number, count in sorted(taken.items()))


def _times(timings: Iterable[Mapping[str, LatencyRecord]], field: str) -> dict[str, float]:
    """Median over seeds of one figure in milliseconds a text, by batch size; batches without it are left out."""
    by_batch: dict[int, list[float]] = defaultdict(list)
    for timing in (timing for export_timings in timings for timing in export_timings.values()):
        if (value := getattr(timing, field)) is not None:
            by_batch[timing.batch_size].append(value)
    return {str(batch): statistics.median(values) for batch, values in sorted(by_batch.items())}


_EXPORTS = (
    "The same trained weights, stored in each precision, read back from disk and evaluated. MiB are file sizes. "
    "Exits: rows stop at the threshold calibrated on validation rows, after the recurrences shown. "
    "The gap is to the run's own model, computed in FP32 on the same rows: mean ± half the 95 % interval over seeds. "
    "It comes from the rows that only one of the two gets right. "
    "Milliseconds a text: median / 90th / 99th percentile, all models and exports timed in turns. Memory is the peak "
    "of a process that only opens the export and labels the same texts."
)


def exports_table(table: LabellingTable) -> Table:
    """The same weights, stored in each precision."""
    batches = sorted({int(batch) for row in table.exports for batch in row["median_ms"]})
    rows = [_export_cells(row, batches) for row in table.exports]
    note = f"On {table.headline_split}. {_EXPORTS}" if rows else ""
    return Table("exports", "The same weights, stored in each precision", rows, note, page_only=False)


def stored_as(row: Row) -> str:
    """Format and precision of an export, in a table's words."""
    return f"{row['format']} {row['precision']}{', exits' if row['exits'] else ''}"


def _export_cells(row: Row, batches: Sequence[int]) -> Cells:
    half = "" if row["gap_half"] is None else f" ± {row['gap_half'] * 100:.2f}"
    published = [
        f"{form.decimal(item['accuracy'])}, {form.decimal(item['size_mib'], 2)}, "
        f"{form.significant(item['latency_ms'])} ({item['source']}, {item['protocol']})"
        for item in row["published"]
    ]
    times = (row["median_ms"], row["p90_ms"], row["p99_ms"])
    return {
        "Model": row["model"],
        "Stored as": stored_as(row),
        "Computed in": f"{row['computed']}{'; rows stop: ' + row['exits'] if row['exits'] else ''}",
        "Seeds": str(len(row["seeds"])),
        "Weights, MiB": f"{row['weights_mib']:.2f}",
        "Folder, MiB": f"{row['folder_mib']:.2f}",
        "Accuracy": form.decimal(row["accuracy"].mean),
        "95 % interval": interval(row["accuracy"]),
        "Gap to FP32, points": f"{form.signed(row['gap'] * 100, 2)}{half}",
        "Labels changed": f"{row['labels_changed']:,} of {row['rows']:,}",
        "Right only in export : in FP32": f"{row['only_export']:,} : {row['only_reference']:,}",
        **{
            f"ms, batch {batch}": " / ".join(form.significant(ms[batch]) for ms in times if batch in ms) or form.NONE
            for batch in map(str, batches)
        },
        "Memory, MiB": form.count(row["memory_mib"]),
        "Published: accuracy, MiB, ms": "; ".join(published),
        "Ours − published": "; ".join(
            ACCURACY.gap(item["difference"]) for item in row["published"] if item["difference"] is not None
        ),
    }


def published_table(table: LabellingTable) -> Table:
    """The published figures below ours, model by model."""
    rows: list[Cells] = []
    classes: list[str] = []
    details = (F1, PRECISION, RECALL)
    for model in table.models:
        published = [row for row in table.published if row["model"] == model.label]
        score = model.scores.get(table.headline_split)
        if not published or score is None:
            continue
        timing = model.latency[max(model.latency, key=int)] if model.latency else None
        time_text = f"{form.significant(timing.median_ms)}, batch {timing.batch_size}" if timing else form.NONE
        accuracy: Estimate = score.figures[ACCURACY.key]
        rows.append(
            {
                "Model": model.label,
                "Figures": f"ours, {table.headline_split}",
                "Split protocol": table.protocol,
                "Accuracy": f"{form.decimal(accuracy.mean)} ({form.interval(accuracy.low, accuracy.high)})",
                **dict.fromkeys(("Ours − published", "In our 95 % interval", "What differs"), form.NONE),
                **{measure.heading: form.decimal(score.figures[measure.key].mean) for measure in details},
                "ms a text": time_text,
            }
        )
        rows += [
            {
                "Model": model.label,
                "Figures": f"published, {row['source']}: {row['what']}",
                "Split protocol": row["protocol"],
                "Accuracy": form.decimal(row["accuracy"]),
                "Ours − published": form.NONE if row["difference"] is None else ACCURACY.gap(row["difference"]),
                "In our 95 % interval": form.yes_no(row["inside"]),
                "What differs": row["differs"] or "nothing known",
                **{measure.heading: form.decimal(row[measure.key]) for measure in details},
                "ms a text": form.decimal(row["latency_ms"]),
            }
            for row in published
        ]
        classes += ["ours", *("" for _ in published)]
    note = (
        "The published figures are single runs; their milliseconds are from another machine. “pooled” means a random "
        "split of the pooled rows, where phrases of one sentence lie on both sides."
    )
    if differences := list(dict.fromkeys(row["differs"] for row in table.published if row["differs"])):
        note += f" Where something differs ({'; '.join(differences)}), the two are not comparable."
    return Table("published", "Beside the published figures", rows, note if rows else "", classes=classes)
