"""The tables of classifiers, each column declared once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from recurra.core import formatting as form
from recurra.tasks.classification.errors import CONFUSED, LABELS
from recurra.tasks.classification.export_columns import EXPORTS, PUBLISHED_TABLE
from recurra.tasks.classification.measures import ACCURACY, judge
from recurra.tasks.classification.summary import (
    ClassificationTable,
    ClassifierSummary,
    SplitScore,
)
from recurra.tasks.columns import (
    COUNT,
    EVERYWHERE,
    NUMBERS,
    PAGE,
    SIGNIFICANT,
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
    with_interval,
)
from recurra.tasks.labelling.columns import BRIEF, CALIBRATION, ENDS, NAMES, SIZES, TELLING_WORDS, latency
from recurra.tasks.labelling.mistakes import MISTAKES
from recurra.tasks.measures import Measure
from recurra.tasks.tables import ADVICE, AUDITS, contrasts, tests_by_rows

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
