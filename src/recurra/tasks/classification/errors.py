"""Where the recommended classifier goes wrong: figures of each label, and which labels it takes for which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from recurra.core import terminal as form
from recurra.core.record import AnyDecisionRecord, LabelRunRecord, MetricsRecord, OneLabelRecord
from recurra.core.terminal import one_line
from recurra.deployment.decision import read_decision
from recurra.evaluation.metrics import evaluate_logits
from recurra.evaluation.predictions import Predictions, read_predictions
from recurra.tasks.classification.measures import ClassificationTable, label_figures
from recurra.tasks.labelling.folds import Pooling, in_order
from recurra.tasks.labelling.mistakes import LONGEST_TEXT, recorded_mistakes, shown_model
from recurra.tasks.labelling.reporting import Mistake
from recurra.tasks.loaded_runs import LoadedRun
from recurra.tasks.summary import ModelSummary
from recurra.tasks.tables import Table


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
    metrics = evaluate_logits(logits, labels, np.concatenate(said))
    return metrics.of_labels() if any(each.loss is None for each in records[0].metrics.values()) else metrics


POOLING = Pooling(
    lambda run, split: read_predictions(run.folder, split), _measure, lambda _: OneLabelRecord(temperature=1.0)
)


MOST_PAIRS = 12
MOST_MISTAKES = 15
# So many labels are read in the order of the file; more of them worst first.
FEW_LABELS = 8


def label_table(table: ClassificationTable) -> Table:
    """Precision, recall and F1 of every label; of many labels the worst first."""
    model = shown_model(table)
    if model is None:
        return Table("labels", "Label by label", [])
    matrix = model.scores[table.headline_split].confusion_matrix
    figures = np.transpose(label_figures(np.asarray(matrix, dtype=np.float64)))
    lines = list(zip(table.label_names, map(sum, matrix), figures.tolist(), strict=True))
    few = len(lines) <= FEW_LABELS
    rows = [
        {
            "Label": name,
            "Rows": form.count(count),
            "Precision": form.decimal(precision, 3),
            "Recall": form.decimal(recall, 3),
            "F1": form.decimal(f1, 3),
        }
        for name, count, (precision, recall, f1) in (lines if few else sorted(lines, key=lambda line: line[2][2]))
    ]
    note = (
        "Precision is the share of right ones among the texts given this label, recall the share of its texts that are "
        f"given it.{'' if few else ' The worst label first.'}{_summed(model)}"
    )
    return Table("labels", f"Label by label: {model.label} on {table.headline_split}", rows, note)


def confused_table(table: ClassificationTable) -> Table:
    """The pairs of labels with the most errors, at most `MOST_PAIRS`; none of two labels, whose matrix says it all."""
    model = shown_model(table)
    if model is None or len(table.label_names) == 2:
        return Table("confused", "Most confused", [])
    matrix = np.asarray(model.scores[table.headline_split].confusion_matrix)
    wrong = matrix * (1 - np.eye(len(matrix), dtype=np.int64))
    order = np.argsort(-wrong, axis=None, kind="stable")[:MOST_PAIRS]
    names = table.label_names
    rows = [
        {
            "A text of": names[true],
            "is taken for": names[predicted],
            "Rows": form.count(matrix[true, predicted]),
            "Of its label": f"{matrix[true, predicted] / matrix[true].sum() * 100:.1f} %",
        }
        for true, predicted in (divmod(int(position), len(matrix)) for position in order if wrong.flat[position] > 0)
    ]
    note = f"The {MOST_PAIRS} pairs with the most errors, or all.{_summed(model)}"
    heading = f"Most confused: {model.label} on {table.headline_split}"
    return Table("confused", heading, rows, note if rows else "")


def _summed(model: ModelSummary) -> str:
    return f" Rows are summed over {len(model.seeds)} seeds." if len(model.seeds) > 1 else ""


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
