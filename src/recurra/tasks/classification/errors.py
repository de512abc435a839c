"""Where the recommended classifier goes wrong: figures of each label, and which labels it takes for which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from recurra.core import terminal as form
from recurra.core.record import AnyDecisionRecord, LabelRunRecord, MetricsRecord, OneLabelRecord
from recurra.core.terminal import one_line
from recurra.deployment.decision import read_decision
from recurra.evaluation.metrics import evaluate_logits
from recurra.evaluation.predictions import Predictions, read_predictions
from recurra.tasks.classification.measures import ClassificationTable, label_figures
from recurra.tasks.columns import COUNT, EVERYWHERE, PAGE, Column, Table, numbers
from recurra.tasks.labelling.folds import Pooling, in_order
from recurra.tasks.labelling.mistakes import LONGEST_TEXT, SHARE, Mistake, recorded_mistakes, shown_model
from recurra.tasks.loaded_runs import LoadedRun


def predictions_of(run: LoadedRun, split: str) -> Predictions:
    """The predictions of a run on a split, of pooled folds all of them, in the order of the rows' identities.

    Probabilities are those that each fold's own temperature gives, so logits are divided by it.

    Raises:
        CheckpointError: If a file of them is missing or damaged.
    """
    if not run.folds:
        return read_predictions(run.folder, split)
    return _joined([_calibrated(each, split) for each in run.folds])


def _joined(parts: Sequence[Predictions]) -> Predictions:
    ids = [name for part in parts for name in part.ids]
    order = in_order(ids)
    labels, logits = (np.concatenate([getattr(part, name) for part in parts])[order] for name in ("labels", "logits"))
    return Predictions([ids[row] for row in order], labels, logits)


def _calibrated(run: LoadedRun, split: str) -> Predictions:
    found = read_predictions(run.folder, split)
    assert isinstance(run.record, LabelRunRecord)
    decision = run.record.decision
    temperature = decision.temperature if isinstance(decision, OneLabelRecord) else 1.0
    return replace(found, logits=(found.logits / np.float32(temperature)).astype(np.float32))


def _measure(records: Sequence[LabelRunRecord], parts: Sequence[Predictions]) -> MetricsRecord:
    said = [
        read_decision(record.data.label_names, record.decision).probabilities(part.logits)
        for record, part in zip(records, parts, strict=True)
    ]
    logits, labels = (np.concatenate([getattr(part, name) for part in parts]) for name in ("logits", "labels"))
    return evaluate_logits(logits, labels, np.concatenate(said))


POOLING = Pooling(
    lambda run, split: read_predictions(run.folder, split), _measure, lambda _: OneLabelRecord(temperature=1.0)
)


MOST_PAIRS = 12
MOST_MISTAKES = 15
# So many labels are read in the order of the file; more of them worst first.
FEW_LABELS = 8
_THREE = numbers(lambda value: form.decimal(value, 3))


@dataclass(frozen=True)
class OfLabel:
    """One label of a model; rows are counted over its seeds."""

    label: str
    rows: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Confused:
    """Rows of one label that a model takes for another's; counted over its seeds."""

    label: str
    said: str
    rows: int
    share: float


def label_rows(table: ClassificationTable) -> list[OfLabel]:
    """Precision, recall and F1 of every label; of many labels the worst first."""
    model = shown_model(table)
    if model is None:
        return []
    matrix = model.scores[table.headline_split].confusion_matrix
    figures = label_figures(np.asarray(matrix, dtype=np.float64))
    rows = [
        OfLabel(name, int(sum(matrix[index])), *(float(figure[index]) for figure in figures))
        for index, name in enumerate(table.label_names)
    ]
    return rows if len(rows) <= FEW_LABELS else sorted(rows, key=lambda row: row.f1)


def confused_pairs(table: ClassificationTable) -> list[Confused]:
    """The pairs of labels with the most errors, at most `MOST_PAIRS`; none of two labels, whose matrix says it all."""
    model = shown_model(table)
    if model is None or len(table.label_names) == 2:
        return []
    matrix = np.asarray(model.scores[table.headline_split].confusion_matrix)
    wrong = matrix * (1 - np.eye(len(matrix), dtype=np.int64))
    order = np.argsort(-wrong, axis=None, kind="stable")[:MOST_PAIRS]
    pairs = [divmod(int(place), len(matrix)) for place in order if wrong.flat[place] > 0]
    names = table.label_names
    return [
        Confused(names[true], names[said], int(matrix[true, said]), float(matrix[true, said] / matrix[true].sum()))
        for true, said in pairs
    ]


def find_mistakes(
    table: ClassificationTable, runs: Mapping[str, Sequence[LoadedRun]], texts: Mapping[str, str]
) -> list[Mistake]:
    """The rows of the headline split that the recommended model gets wrong and is surest of.

    Raises:
        CheckpointError: If predictions are damaged.
    """
    model, split = shown_model(table), table.headline_split
    if model is None or not texts:
        return []
    by_seed = [predictions_of(run, split) for run in runs[model.label]]
    first = by_seed[0]
    if not set(first.ids) <= set(texts):
        return []
    decisions = [read_decision(table.label_names, _decision(run)) for run in runs[model.label]]
    probabilities = np.mean(
        [decision.probabilities(rows.logits) for decision, rows in zip(decisions, by_seed, strict=True)], axis=0
    )
    answers, rows = probabilities.argmax(axis=1), np.arange(len(first))
    sure = np.where(answers != first.labels, probabilities[rows, answers], 0.0)
    others = {
        label: np.mean([found.correct for found in each], axis=0)
        for label, group in runs.items()
        if label != model.label
        and (each := [predictions_of(run, split) for run in group if split in run.record.metrics])
        and all(found.ids == first.ids for found in each)
    }
    names = table.label_names
    words = {(each.id, each.said): each.words for run in runs[model.label] for each in recorded_mistakes(run, split)}
    return [
        Mistake(
            one_line(texts[first.ids[row]], LONGEST_TEXT),
            names[first.labels[row]],
            names[answers[row]],
            float(sure[row]),
            [label for label, right in others.items() if right[row] > 0.5],
            words.get((first.ids[row], names[answers[row]])),
        )
        for row in np.argsort(-sure, kind="stable")[:MOST_MISTAKES].tolist()
        if sure[row] > 0
    ]


def _decision(run: LoadedRun) -> AnyDecisionRecord | None:
    return run.record.decision if isinstance(run.record, LabelRunRecord) else None


def _of(table: ClassificationTable) -> str:
    model = shown_model(table)
    return "" if model is None else model.label


def _summed(table: ClassificationTable) -> str:
    model = shown_model(table)
    seeds: Sequence[int] = [] if model is None else model.seeds
    return f" Rows are summed over {len(seeds)} seeds." if len(seeds) > 1 else ""


LABELS = Table(
    "labels",
    lambda table: f"Label by label: {_of(table)} on {table.headline_split}",
    lambda _: [
        Column("label", "Label", lambda row: row.label),
        Column("rows", "Rows", lambda row: row.rows, COUNT),
        Column("precision_of_label", "Precision", lambda row: row.precision, _THREE),
        Column("recall", "Recall", lambda row: row.recall, _THREE),
        Column("f1", "F1", lambda row: row.f1, _THREE),
    ],
    label_rows,
    note=lambda table: (
        "Precision is the share of right ones among the texts given this label, recall the share of its texts that are "
        f"given it.{'' if len(table.label_names) <= FEW_LABELS else ' The worst label first.'}{_summed(table)}"
    ),
    places=PAGE,
    sortable=True,
)
CONFUSED = Table(
    "confused",
    lambda table: f"Most confused: {_of(table)} on {table.headline_split}",
    lambda _: [
        Column("label", "A text of", lambda row: row.label),
        Column("said", "is taken for", lambda row: row.said, left=EVERYWHERE),
        Column("rows", "Rows", lambda row: row.rows, COUNT),
        Column("share", "Of its label", lambda row: row.share, SHARE),
    ],
    confused_pairs,
    note=lambda table: f"The {MOST_PAIRS} pairs with the most errors, or all.{_summed(table)}",
    places=PAGE,
)
