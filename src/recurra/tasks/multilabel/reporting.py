"""Reporting of multi-label models: measures, tables and sentences. It loads no torch."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from recurra.core import terminal as form
from recurra.core.record import LabelFiguresRecord, LabelRunRecord, MultiLabelMetricsRecord
from recurra.deployment.decision import LabelDecision, read_decision, sigmoid
from recurra.evaluation.metrics import check_scores, expected_calibration_error, figures_by_class
from recurra.evaluation.predictions import Predictions
from recurra.tasks.audits import audit_sentences
from recurra.tasks.labelling.reporting import (
    CALIBRATION,
    CALIBRATION_NOTE,
    LOSS,
    UNCALIBRATED,
    LabellingReporting,
    LabellingTable,
    bootstrap_interval,
    mistakes_table,
    telling_words,
)
from recurra.tasks.measures import Measure, Score, estimates, in_points
from recurra.tasks.reporting import beside_best, best_model
from recurra.tasks.summary import TableSummary
from recurra.tasks.tables import Table, audits, contrasts, results, tests

DEFAULT_THRESHOLD = 0.5

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def as_two_labels(logits: npt.ArrayLike, labels: npt.ArrayLike) -> tuple[Floats, Integers]:
    """Every decision about one label of one text as a row of two labels, no and yes, whose softmax is the sigmoid.

    Returns:
        Logits ``(rows * labels, 2)``, the first 0, and labels ``(rows * labels,)``.
    """
    yes = np.asarray(logits, dtype=np.float64).ravel()
    return np.stack([np.zeros_like(yes), yes], axis=1), np.asarray(labels, dtype=np.int64).ravel()


def decision_error(probabilities: Floats, labels: Integers) -> float:
    """Expected calibration error of all decisions: how far the probability of a decision is from the share right."""
    yes = probabilities.ravel()
    return expected_calibration_error(np.stack([1 - yes, yes], axis=1), labels.ravel())


def choose_thresholds(probabilities: Floats, labels: Integers) -> list[float]:
    """Chooses for each label the threshold with the highest F1 on rows that are reported nowhere else.

    Thresholds between the same two occurring probabilities decide alike. Of such gaps with equal F1 the one nearest to
    0.5 is taken, then the higher one. Its threshold is 0.5 if that lies in the gap, else the middle of the gap. A label
    that no row has, so that every F1 is 0, gets 0.5.
    """
    return [_threshold(*columns) for columns in zip(probabilities.T, labels.T, strict=True)]


def _threshold(probabilities: Floats, truth: Integers) -> float:
    if not truth.any():
        return DEFAULT_THRESHOLD
    values, value_indices = np.unique(probabilities, return_inverse=True)
    # Rows at or above each value, and those of them that have the label.
    predicted, right = (np.bincount(value_indices, counts)[::-1].cumsum()[::-1] for counts in (None, truth))
    f1 = 2 * right / (predicted + truth.sum())
    below = np.concatenate([[0.0], values[:-1]])
    middle = (below + values) / 2
    # The middle of two neighbouring floats is one of them; a cut must stay above the lower one.
    cuts = np.where(middle > below, middle, values)
    cuts = np.where((below < DEFAULT_THRESHOLD) & (values >= DEFAULT_THRESHOLD), DEFAULT_THRESHOLD, cuts)
    best = np.flatnonzero(f1 >= f1.max() - 1e-12)
    return float(min(cuts[best].tolist(), key=lambda cut: (abs(cut - DEFAULT_THRESHOLD), -cut)))


def measure_labels(*parts: tuple[npt.ArrayLike, npt.ArrayLike, LabelDecision]) -> MultiLabelMetricsRecord:
    """Computes the figures of a split from logits, labels and decision of its rows, or of each fold of them.

    Raises `DataError` without rows, `RunError` if a logit is not finite.
    """
    by_part = [np.asarray(logits, dtype=np.float64) for logits, _, _ in parts]
    decisions = [decision for _, _, decision in parts]
    scores, truth = np.concatenate(by_part), np.concatenate([np.asarray(labels, np.int64) for _, labels, _ in parts])
    check_scores(scores)
    pairs = list(zip(decisions, by_part, strict=True))
    decided = np.concatenate([decision.of_logits(part) for decision, part in pairs]).astype(np.int64)
    probabilities = np.concatenate([decision.probabilities(part) for decision, part in pairs])
    correct = decided * truth
    right, predicted, support = correct.sum(axis=0), decided.sum(axis=0), truth.sum(axis=0)
    precision, recall, f1 = figures_by_class(right, support, predicted)
    # -log of the probability of what is true, without overflow.
    losses = np.logaddexp(0.0, np.where(truth == 1, -scores, scores))
    figures = {"precision": precision, "recall": recall, "f1": f1, "support": support, "predicted": predicted}
    by_label = {
        name: LabelFiguresRecord(**{key: values[index].item() for key, values in figures.items()})
        for index, name in enumerate(decisions[0].label_names)
    }
    return MultiLabelMetricsRecord(
        rows=len(scores),
        micro_f1=float(2 * right.sum() / max(predicted.sum() + support.sum(), 1)),
        micro_f1_interval=bootstrap_micro_f1(correct.sum(axis=1), decided.sum(axis=1) + truth.sum(axis=1)),
        macro_f1=float(f1.mean()),
        subset_accuracy=float((decided == truth).all(axis=1).mean()),
        hamming_loss=float((decided != truth).mean()),
        loss=float(losses.mean()),
        labels=by_label,
        calibration_error=decision_error(probabilities, truth),
        uncalibrated_error=decision_error(sigmoid(scores), truth),
    )


def bootstrap_micro_f1(right: Integers, total: Integers) -> tuple[float, float]:
    """95 % percentile interval of micro F1 over rows.

    Args:
        right: Labels of each row that were given and are true, ``(rows,)``.
        total: Labels that were given, and labels that are true, together, ``(rows,)``.
    """
    kinds, counts = np.unique(np.stack([right, total], axis=1), axis=0, return_counts=True)

    def micro_f1(draws: Floats) -> Floats:
        sums = draws @ kinds
        return np.asarray(2 * sums[:, 0] / np.maximum(sums[:, 1], 1))

    return bootstrap_interval(micro_f1, counts)


MICRO_F1 = in_points("micro_f1", "Micro F1", over_rows=attrgetter("micro_f1_interval"))
MACRO_F1 = in_points("macro_f1", "Macro F1")
SUBSET_ACCURACY = in_points("subset_accuracy", "All labels right")
HAMMING_LOSS = Measure("hamming_loss", "Hamming loss", "", False, attrgetter("hamming_loss"))
FIGURES = (MICRO_F1, MACRO_F1, SUBSET_ACCURACY, HAMMING_LOSS, LOSS, CALIBRATION, UNCALIBRATED)
_NOTE = (
    "Micro F1 counts pairs of a text and a label; macro F1 is the mean over labels. Figures are means ± standard "
    "deviation over seeds. Intervals are 95 %: over seeds (Student's t), or over examples (bootstrap) with one seed or "
    "where the seed changes nothing. The split that chose the weights also chose each label's threshold and one "
    f"temperature for all. {CALIBRATION_NOTE}"
)


def _label_table(table: LabellingTable) -> Table:
    rows = [
        {
            "Label": label,
            "Model": model.label,
            "Rows with it": form.count(figures["rows"]),
            "Precision": form.decimal(figures["precision"]),
            "Recall": form.decimal(figures["recall"]),
            "F1": form.decimal(figures["f1"]),
        }
        for model in table.models
        if (score := model.scores.get(table.headline_split))
        for label, figures in score.labels.items()
    ]
    heading = f"Labels on the {table.headline_split} split"
    return Table("labels", heading, rows, "Means over seeds." if rows else "", page_only=False)


class MultiLabelReporting(LabellingReporting):
    """Any number of labels a text: F1 over pairs and over labels, by seeds."""

    measures = (MICRO_F1, MACRO_F1, SUBSET_ACCURACY)

    def measure_folds(
        self, records: Sequence[LabelRunRecord], parts: Sequence[Predictions], split: str
    ) -> MultiLabelMetricsRecord:
        decisions = [read_decision(record.data.label_names, record.decision) for record in records]
        return measure_labels(
            *((part.logits, part.labels, decision) for part, decision in zip(parts, decisions, strict=True))
        )

    def figures(self, table: Any) -> Sequence[Measure]:
        return FIGURES

    def tables(self, table: Any) -> Sequence[Table]:
        return (
            results(table, self.figures(table), note=f"On the {table.headline_split} split. {_NOTE}"),
            _label_table(table),
            mistakes_table(table),
            telling_words(table),
            contrasts(table),
            tests(table),
            audits(table),
        )

    def score(self, split: str, metrics: Sequence[MultiLabelMetricsRecord], measure: Measure) -> Score:
        labels: dict[str, dict[str, float]] = {}
        for label, figures in metrics[0].labels.items():
            by_seed = [seed_metrics.labels[label] for seed_metrics in metrics]
            means = {key: statistics.fmean(map(attrgetter(key), by_seed)) for key in ("precision", "recall", "f1")}
            labels[label] = {**means, "rows": figures.support}
        return Score(split, metrics[0].rows, estimates(FIGURES, metrics), labels=labels)

    def conclude(self, table: TableSummary) -> str:
        scored = [model for model in table.models if table.headline_split in model.scores]
        measure, split = table.judged_by, table.headline_split
        best = best_model(scored, split, measure)
        value = measure.value(measure.mean(best, split))
        lead = (
            f"{best.label} scores highest: {measure.in_text} {value} on the {best.scores[split].rows:,} {split} rows."
        )
        return " ".join([lead, *beside_best(best, scored, table), *audit_sentences(table.audits, split)])


REPORTING = MultiLabelReporting()
