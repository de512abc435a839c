"""The tables of classifiers, each column declared once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from recurra.core import terminal as form
from recurra.tasks.classification.errors import CONFUSED, LABELS
from recurra.tasks.classification.measures import (
    ACCURACY,
    ClassificationTable,
    ClassifierSummary,
    PublishedLine,
    SplitScore,
    judge,
)
from recurra.tasks.columns import (
    COUNT,
    DECIMAL,
    EVERYWHERE,
    NUMBERS,
    PAGE,
    READERS,
    SIGNIFICANT,
    TIMING,
    YES_NO,
    Cell,
    Column,
    Fields,
    Format,
    Place,
    Table,
    estimate_cell,
    estimates,
    interval,
    numbers,
    paper_estimate,
    timing_cell,
    with_interval,
)
from recurra.tasks.labelling.mistakes import MISTAKES
from recurra.tasks.labelling.reporting import BRIEF, CALIBRATION, ENDS, NAMES, SIZES, TELLING_WORDS, latency
from recurra.tasks.measures import Estimate, ExportLine, Measure, PublishedExport
from recurra.tasks.summary import Timing
from recurra.tasks.tables import ADVICE, AUDITS, contrasts, of_split, tests_by_rows

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


TEXTUAL: frozenset[Place] = frozenset(("terminal",))
NOT_IN_PAPERS = EVERYWHERE - {"latex"}


@dataclass(frozen=True)
class Scored:
    """A row of the results: a model on a split, and its score there if it has one."""

    model: ClassifierSummary
    split: str
    score: SplitScore | None


def _on(table: ClassificationTable, splits: Sequence[str]) -> list[Scored]:
    return [Scored(model, split, model.scores.get(split)) for model in table.models for split in splits]


def _fronts(model: ClassifierSummary) -> list[str] | None:
    return [form.front_name(front) for front in model.fronts] or None


def _joined(key: str, parts: list[str] | None) -> Fields:
    return {key: "; ".join(parts or ())}


# What accuracy costs. The ratios are for CSV alone: guessing earns much of any accuracy, so they favour the small.
_COSTS = [
    Column(
        "accuracy_per_million_parameters", "Accuracy a million parameters",
        lambda row: row.model.accuracy_per_million_parameters, SIGNIFICANT,
    ),
    Column("accuracy_per_gflop", "Accuracy a GFLOP a token", lambda row: row.model.accuracy_per_gflop, SIGNIFICANT),
    Column(
        "pareto_fronts", "On the Pareto front of", lambda row: _fronts(row.model),
        Format(form.words, spread=_joined), left=PAGE,
    ),
]  # fmt: skip


_NAME = Column("model", "Model", lambda row: row.model.label)


def _embedding(model: ClassifierSummary) -> Cell:
    share = f"{100 * model.embedding_parameters / model.parameters:.0f} % of all" if model.parameters else ""
    return Cell(form.count(model.embedding_parameters), below=(share,) if share else ())


_EMBEDDING = Format(lambda model: form.count(model.embedding_parameters), cell=_embedding)


def _judged(measure: Measure) -> Column:
    """What models are judged by, where that is not accuracy."""
    share = measure.limits[1] == 1
    headings: dict[Place, str] = {"latex": f"{measure.heading}, %"} if share else {}
    return Column(
        measure.key,
        measure.heading,
        lambda row: measure.of(row.model, row.split),
        estimates(percent=share),
        headings=headings,
        always=True,
    )


def _result_columns(table: ClassificationTable) -> list[Column]:
    shares, measure = estimates(percent=True), judge(table)
    return [
        *NAMES,
        Column(
            "accuracy", "Accuracy", lambda row: row.score.accuracy if row.score else None, shares,
            headings={"latex": "Accuracy, %"},
        ),
        *([] if measure.key == ACCURACY.key else [_judged(measure)]),
        Column(
            "interval", "95 % interval", lambda row: interval(row.score.accuracy) if row.score else None, places=TEXTUAL
        ),
        Column("f1", "F1", lambda row: row.score.f1 if row.score else None, shares, headings={"latex": "F1, %"}),
        Column("precision_of_positives", "", lambda row: row.score.precision if row.score else None, places=NUMBERS),
        Column("recall", "", lambda row: row.score.recall if row.score else None, places=NUMBERS),
        Column(
            "loss_nats", "Loss", lambda row: row.score.loss if row.score else None,
            numbers(lambda value: form.decimal(value, 3)), NOT_IN_PAPERS,
        ),
        CALIBRATION,
        *SIZES,
        *(column.only("csv") for column in _COSTS[:2]),
        *(latency(batch) for batch in table.batch_sizes),
        _COSTS[2].only("csv"),
        *ENDS,
    ]  # fmt: skip


def _results_caption(table: ClassificationTable) -> str:
    split = table.headline_split
    rows = {model.scores[split].rows for model in table.models if split in model.scores}
    counted = " or ".join(form.count(number) for number in sorted(rows))
    return (
        f"On the {split} split ({counted} rows). Accuracy and F1: mean ± standard deviation over seeds; "
        "95 % interval over seeds (Student's t) or, with one seed or a model that the seed does not change, over "
        "examples (Wilson). Milliseconds a text: median / 90th percentile."
    )


_CALIBRATION_NOTE = (
    "Calibration error is how far the probability of the given label lies from the share that is right, on average "
    "over 15 bins (Guo et al. 2017, equation 3), in brackets before the temperature that the selection split chose."
)


def _results_note(table: ClassificationTable) -> str:
    labels = table.label_names
    timings = [timing for model in table.models for timing in model.latency.values()]
    latency = "No latency was measured."
    if timings:
        threads = f"{timings[0].threads} {'thread' if timings[0].threads == 1 else 'threads'}"
        together = any(timing.source == "side by side" for timing in table.models[0].latency.values())
        latency = (
            "Milliseconds are median / 90th percentile over batches, each by its number of texts, after warm-up"
            f"{', all models side by side in one process' if together else ''}, on {timings[0].device} with {threads}."
        )
    calibrated = any(score.calibration for model in table.models for score in model.scores.values())
    calibration = f" {_CALIBRATION_NOTE}" if calibrated else ""
    return (
        "Accuracy and F1 are means over seeds, ± their standard deviation. Intervals are 95 %: “seeds” is Student's t "
        "over seeds and says how another training would differ; “examples” (Wilson for accuracy, bootstrap for F1) is "
        "used where there is one seed, or where the seed changes nothing, and says how another sample of texts would "
        f"differ. F1 is of label {labels[1] if len(labels) == 2 else 'by label, averaged'}; loss is mean cross-entropy "
        f"in nats.{calibration} {latency} Training time is the mean of a run."
    )


RESULTS = Table(
    "results",
    lambda table: f"Results on the {table.headline_split} split",
    _result_columns,
    lambda table: _on(table, [table.headline_split]),
    brief=BRIEF,
    caption=_results_caption,
    note=_results_note,
    paper_note=lambda _: "Mean ± half the 95 % interval over seeds (*: over examples).",
    numbers=lambda table: _on(table, table.reported_splits),
    row_class=lambda row: "spoiled" if row.model.failed_audits else "",
)

COSTS = Table(
    "costs",
    lambda _: "Accuracy for what it costs",
    lambda _: [
        _NAME, _COSTS[2],
        Column("embedding_parameters", "Embedding parameters", lambda row: row.model, _EMBEDDING, PAGE),
        Column("peak_memory_mib", "Peak memory, MiB", lambda row: row.model.peak_memory_mib, COUNT, PAGE),
    ],
    lambda table: _on(table, [table.headline_split]),
    caption=lambda _: (
        "On a Pareto front no other model is both cheaper and more accurate; fronts are of mean accuracies, whether or "
        "not a gap is supported."
    ),
    note=lambda _: (
        "Peak memory is that of the training process. On a Pareto front, no other model is both cheaper and more "
        "accurate; fronts are drawn through mean accuracies, whether or not a gap is supported."
    ),
    places=PAGE,
    folded=lambda _: True,
)  # fmt: skip


def _score_cell(score: SplitScore) -> Cell:
    cell = estimate_cell(score.accuracy)
    return replace(cell, below=(*cell.below, f"{form.count(score.rows)} rows"))


def _split_columns(table: ClassificationTable) -> list[Column]:
    format = Format(lambda score: with_interval().write(score.accuracy), cell=_score_cell)
    return [
        Column("model", "Model", lambda model: model.label),
        *(
            Column(split, split, lambda model, split=split: model.scores.get(split), format)  # type: ignore[misc]
            for split in table.reported_splits
        ),
    ]


REPORTED_SPLITS = Table(
    "splits",
    lambda _: "Accuracy on every reported split",
    _split_columns,
    lambda table: table.models if len(table.reported_splits) > 1 else [],
    note=lambda table: " ".join(
        f"The checkpoint was chosen on {split.name}: figures there are a little too good."
        for split in table.splits
        if "chose" in split.role
    ),
    places=PAGE,
    folded=lambda _: True,
)


TABLES = (
    RESULTS,
    ADVICE,
    COSTS,
    REPORTED_SPLITS,
    MISTAKES,
    CONFUSED,
    LABELS,
    TELLING_WORDS,
    contrasts(judge),
    tests_by_rows(judge),
    PUBLISHED_TABLE,
    EXPORTS,
    AUDITS,
)
