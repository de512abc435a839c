"""The tables that only classifiers have: exports, published figures, results with their notes."""

from __future__ import annotations

from collections.abc import Sequence

from recurra.core import terminal as form
from recurra.core.terminal import NONE
from recurra.tasks.classification.measures import ACCURACY, ClassificationTable
from recurra.tasks.labelling.reporting import CALIBRATION, CALIBRATION_NOTE
from recurra.tasks.measures import Estimate, ExportLine, Measure
from recurra.tasks.tables import Cells, Table, interval, results

_EXPORTS = (
    "The same trained weights, stored in each precision, read back from disk and evaluated. MiB are file sizes. "
    "Exits: rows leave by the threshold that was calibrated on validation rows, after so many recurrences. "
    "The gap is to the run's own model computed in FP32 on the same rows, mean ± half the 95 % interval over seeds; "
    "rows right by one alone say how many rows it rests on. "
    "Milliseconds a text: median / 90th / 99th percentile, all models and exports timed in turns; memory is the peak "
    "of a process that only opens the export and labels the same texts."
)


def exports_table(table: ClassificationTable) -> Table:
    """The same weights, stored in each precision."""
    batches = sorted({int(batch) for line in table.exports for batch in line.median_ms})
    rows = [_export(line, batches) for line in table.exports]
    note = f"On {table.headline_split}. {_EXPORTS}" if rows else ""
    return Table("exports", "The same weights, stored in each precision", rows, note, page_only=False)


def _export(line: ExportLine, batches: Sequence[int]) -> Cells:
    half = "" if line.gap_half is None else f" ± {line.gap_half * 100:.2f}"
    timed: Cells = {}
    for batch in map(str, batches):
        times = [part for times in (line.median_ms, line.p90_ms, line.p99_ms) if (part := times.get(batch)) is not None]
        timed[f"ms, batch {batch}"] = " / ".join(map(form.significant, times)) or NONE
        timed[f"Texts/s, batch {batch}"] = form.count(line.texts_per_s.get(batch))
    published = [
        f"{form.decimal(item.accuracy)}, {form.decimal(item.size_mib, 2)}, {form.significant(item.latency_ms)} "
        f"({item.source}, {item.protocol})"
        for item in line.published
    ]
    return {
        "Model": line.model,
        "Stored as": line.stored_as,
        "Computed in": f"{line.computed}{'; rows leave: ' + line.exits if line.exits else ''}",
        "Seeds": str(len(line.seeds)),
        "Weights, MiB": f"{line.weights_mib:.2f}",
        "Folder, MiB": f"{line.folder_mib:.2f}",
        "Accuracy": form.decimal(line.accuracy.mean),
        "95 % interval": interval(line.accuracy),
        "Gap to FP32, points": f"{form.signed(line.gap * 100, 2)}{half}",
        "Labels changed": f"{line.labels_changed:,} of {line.rows:,}",
        "Right alone: export : FP32": f"{line.only_export:,} : {line.only_reference:,}",
        **timed,
        "Memory, MiB": form.count(line.memory_mib),
        "Published: accuracy, MiB, ms": "; ".join(published),
        "Ours − published": "; ".join(ACCURACY.gap(item.difference) for item in line.published),
    }


def published_table(table: ClassificationTable) -> Table:
    """The published figures below ours, model by model."""
    rows: list[Cells] = []
    classes: list[str] = []
    for model in table.models:
        lines = [line for line in table.published if line.model == model.label]
        score = model.scores.get(table.headline_split)
        if not lines or score is None:
            continue
        timing = model.latency[max(model.latency, key=int)] if model.latency else None
        means = {key: form.decimal(score.figures[key].mean) for key in ("f1", "precision", "recall")}
        accuracy: Estimate = score.figures[ACCURACY.key]
        rows.append(
            {
                "Model": model.label,
                "Figures": f"ours, {table.headline_split}",
                "Split protocol": table.protocol,
                "Accuracy": f"{form.decimal(accuracy.mean)} ({form.interval(accuracy.low, accuracy.high)})",
                "Ours − published": NONE,
                "In our 95 % interval": NONE,
                "What differs": NONE,
                "F1": means["f1"],
                "Precision": means["precision"],
                "Recall": means["recall"],
                "ms a text": f"{form.significant(timing.median_ms)}, batch {timing.batch_size}" if timing else NONE,
            }
        )
        rows += [
            {
                "Model": model.label,
                "Figures": f"published, {line.source}: {line.what}",
                "Split protocol": line.protocol,
                "Accuracy": form.decimal(line.accuracy),
                "Ours − published": NONE if line.difference is None else ACCURACY.gap(line.difference),
                "In our 95 % interval": form.yes_no(line.inside),
                "What differs": line.differs or "nothing known",
                "F1": form.decimal(line.f1),
                "Precision": form.decimal(line.precision),
                "Recall": form.decimal(line.recall),
                "ms a text": form.decimal(line.latency_ms),
            }
            for line in lines
        ]
        classes += ["ours", *("" for _ in lines)]
    note = (
        "The published figures are single runs; their milliseconds are from another machine. “pooled” means a random "
        "split of the pooled rows, where phrases of one sentence lie on both sides."
    )
    if differing := list(dict.fromkeys(line.differs for line in table.published if line.differs)):
        note += f" Where something differs ({'; '.join(differing)}), the two are not comparable."
    return Table("published", "Beside the published figures", rows, note if rows else "", classes=classes)


def results_table(table: ClassificationTable, figures: Sequence[Measure], judge: Measure) -> Table:
    """What each classifier scores and costs."""
    split, labels = table.headline_split, table.label_names
    counts = sorted({model.scores[split].rows for model in table.models if split in model.scores})
    timings = [timing for model in table.models for timing in model.latency.values()]
    latency = "No latency was measured."
    if timings:
        threads = f"{timings[0].threads} {'thread' if timings[0].threads == 1 else 'threads'}"
        together = any(timing.source == "side by side" for timing in table.models[0].latency.values())
        latency = (
            "Milliseconds a text are median / 90th percentile over batches after warm-up"
            f"{', all models side by side in one process' if together else ''}, on {timings[0].device} with {threads}."
        )
    calibrated = any(CALIBRATION.of(model, split) for model in table.models)
    note = (
        f"On the {split} split ({' or '.join(map(form.count, counts))} rows). Figures are means over seeds, ± their "
        "standard deviation. Intervals are 95 %: “seeds” is Student's t over seeds and says how another training would "
        "differ; “examples” (Wilson for accuracy, bootstrap for F1) is used where there is one seed, or where the seed "
        "changes nothing, and says how another sample of texts would differ. F1 is of label "
        f"{labels[1] if len(labels) == 2 else 'by label, averaged'}; loss is mean cross-entropy in nats."
        f"{f' {CALIBRATION_NOTE}' if calibrated else ''} {latency} On a Pareto front no other model is both cheaper "
        "and more accurate; fronts are of means, whether or not a gap is supported."
    )
    return results(table, figures, judge, note=note)


def splits_table(table: ClassificationTable) -> Table:
    """Accuracy on every reported split, where there are several."""
    rows = []
    for model in table.models if len(table.reported_splits) > 1 else ():
        cells = {"Model": model.label}
        for split in table.reported_splits:
            score = model.scores.get(split)
            value = None if score is None else score.figures[ACCURACY.key]
            cells[split] = NONE if value is None else f"{ACCURACY.text(value)}, {interval(value)}"
        rows.append(cells)
    chosen = [split.name for split in table.splits if "chose" in split.role]
    note = " ".join(f"The checkpoint was chosen on {name}: figures there are a little too good." for name in chosen)
    return Table("splits", "Accuracy on every reported split", rows, note if rows else "", folded=True)
