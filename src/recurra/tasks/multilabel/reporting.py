"""What a report is told of multi-label models: their measures, tables and sentences. No torch."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from recurra.core import formatting as form
from recurra.core.label_record import LabelRunRecord, MultiLabelMetricsRecord
from recurra.deployment.decision import read_decision
from recurra.evaluation.predictions import Predictions, read_several_labels
from recurra.tasks.audits import noted
from recurra.tasks.columns import EVERYWHERE, Cell, Column, Format, Table, estimates, interval, numbers
from recurra.tasks.estimates import Estimate
from recurra.tasks.labelling.columns import (
    BRIEF,
    CALIBRATION,
    ENDS,
    NAMES,
    NOT_IN_PAPERS,
    SIZES,
    TELLING_WORDS,
    TEXTUAL,
    calibration_errors,
    latency,
)
from recurra.tasks.labelling.folds import Pooling, pool_folds
from recurra.tasks.labelling.mistakes import MISTAKES, Mistake, shown_mistakes
from recurra.tasks.labelling.reporting import LabellingReporting, LabellingTable
from recurra.tasks.loaded_runs import LoadedRun, TableRuns
from recurra.tasks.measures import Measure, estimate
from recurra.tasks.multilabel.measures import MACRO_F1, MICRO_F1, SUBSET_ACCURACY, MultiLabelScore, measure_decided
from recurra.tasks.questions import Questions
from recurra.tasks.summary import ModelSummary, TableSummary
from recurra.tasks.tables import AUDITS, contrasts, tests_by_seeds

_FOUR = numbers(form.decimal)
_TESTED = (
    "Paired t-tests of micro F1 over seeds, in points; p corrected by Holm over all pairs of the table. A model "
    "without a seed is held against every seed of the other."
)


@dataclass(frozen=True, kw_only=True)
class MultiLabelTable(LabellingTable):
    """A table of multi-label models; ``mistakes`` is there where the data are a file of the user that can be read."""

    mistakes: list[Mistake] = field(default_factory=list)


@dataclass(frozen=True)
class _Scored:
    """A model on a split, and its score there if it has one."""

    model: ModelSummary
    split: str
    score: MultiLabelScore | None


@dataclass(frozen=True)
class _OfLabel:
    """One label of a model on the headline split."""

    model: ModelSummary
    label: str
    rows: int
    values: tuple[float, float, float]


def _on(table: LabellingTable, splits: Sequence[str]) -> list[_Scored]:
    return [_Scored(model, split, model.scores.get(split)) for model in table.models for split in splits]


def _by_label(table: LabellingTable) -> list[_OfLabel]:
    return [
        _OfLabel(row.model, label, row.score.support[label], values)
        for row in _on(table, [table.headline_split])
        if row.score
        for label, values in row.score.labels.items()
    ]


def _score(key: str) -> Any:
    return lambda row: getattr(row.score, key, None)


def _columns(table: LabellingTable) -> list[Column]:
    shares = estimates(percent=True)
    micro = _score("micro_f1")
    return [
        *NAMES,
        Column("micro_f1", "Micro F1", micro, shares, headings={"latex": "Micro F1, %"}),
        Column(
            "interval", "95 % interval", lambda row: interval(micro(row)) if micro(row) else None, places=TEXTUAL
        ),
        Column("macro_f1", "Macro F1", _score("macro_f1"), shares, headings={"latex": "Macro F1, %"}),
        Column(
            "subset_accuracy", "All labels right", _score("subset_accuracy"), shares,
            headings={"latex": "All labels right, %"},
        ),
        Column("hamming_loss", "Hamming loss", _score("hamming_loss"), _FOUR),
        Column("loss_nats", "Loss", _score("loss"), _FOUR, NOT_IN_PAPERS),
        CALIBRATION,
        *SIZES,
        *(latency(batch) for batch in table.batch_sizes),
        *ENDS,
    ]  # fmt: skip


RESULTS = Table(
    "results",
    lambda table: f"Results on the {table.headline_split} split",
    _columns,
    lambda table: _on(table, [table.headline_split]),
    brief=BRIEF,
    caption=lambda table: (
        f"On the {table.headline_split} split. Micro F1 counts pairs of a text and a label, macro F1 is the mean over "
        "labels: mean ± standard deviation over seeds; 95 % interval over seeds (Student's t) or, with one seed or a "
        "model that the seed does not change, over examples (bootstrap). Each label's threshold was chosen on the "
        "split that chose the weights; so was one temperature for all. Calibration error is how far the probability of "
        "what is said of a label lies from the share that is right, over 15 bins, in brackets before the temperature."
    ),
    paper_note=lambda _: "Mean ± half the 95 % interval over seeds (*: over examples).",
    numbers=lambda table: _on(table, table.reported_splits),
    row_class=lambda row: "spoiled" if row.model.failed_audits else "",
)

LABELS = Table(
    "labels",
    lambda table: f"Labels on the {table.headline_split} split",
    lambda _: [
        Column("label", "Label", lambda row: row.label),
        Column("model", "Model", lambda row: row.model.label, left=EVERYWHERE),
        Column("rows", "Rows with it", lambda row: row.rows, numbers(form.count)),
        Column("precision_of_positives", "Precision", lambda row: row.values[0], _FOUR),
        Column("recall", "Recall", lambda row: row.values[1], _FOUR),
        Column("f1", "F1", lambda row: row.values[2], _FOUR),
    ],
    _by_label,
    caption=lambda _: "Means over seeds.",
)


def _study(row: Any) -> Cell:
    return Cell(row.study, address=row.address)


def _best(table: TableSummary) -> ModelSummary:
    return max(table.models, key=lambda model: MICRO_F1.mean(model, table.headline_split))


def _headline(table: TableSummary) -> Estimate | None:
    return MICRO_F1.of(_best(table), table.headline_split)


OVERVIEW = Table(
    "overview",
    lambda _: "",
    lambda _: [
        Column("study", "Study", lambda row: row, Format(lambda row: row.study, cell=_study)),
        Column("data", "Data", lambda row: row.table.title, left=EVERYWHERE),
        Column("best", "Highest micro F1", lambda row: _best(row.table).label),
        Column("micro_f1", "Micro F1", lambda row: _headline(row.table), estimates()),
        Column("audits", "Failed audits", lambda row: form.words([g.name for g in row.table.failed_groups]) or None),
    ],
    lambda rows: rows,
    caption=lambda _: "Multi-label classifiers.",
    places=frozenset(("terminal",)),
)


def _measure(records: Sequence[LabelRunRecord], parts: Sequence[Predictions]) -> MultiLabelMetricsRecord:
    decisions = [read_decision(record.data.label_names, record.decision) for record in records]
    scores = [part.logits.astype(np.float64) for part in parts]
    pairs = list(zip(decisions, scores, strict=True))
    return measure_decided(
        np.concatenate(scores),
        np.concatenate([part.labels for part in parts]),
        np.concatenate([decision.of_logits(logits) for decision, logits in pairs]),
        np.concatenate([decision.probabilities(logits) for decision, logits in pairs]),
        records[0].data.label_names,
    )


# Thresholds of the first fold stand for all: what was decided is in the metrics.
_POOLING = Pooling(lambda run, split: read_several_labels(run.folder, split), _measure, lambda decision: decision)


class MultiLabelReporting(LabellingReporting):
    """Any number of labels a text: F1 over pairs and over labels, by seeds."""

    task = "multi-label classification"
    measures = (MICRO_F1, MACRO_F1, SUBSET_ACCURACY)
    tables = (
        RESULTS,
        LABELS,
        MISTAKES,
        TELLING_WORDS,
        contrasts(lambda _: MICRO_F1),
        tests_by_seeds(MICRO_F1, _TESTED),
        AUDITS,
    )
    overview = OVERVIEW

    def pooled(self, runs: Sequence[LoadedRun]) -> Sequence[LoadedRun]:
        """The folds of a cross-validation are one run, each decided by its own thresholds."""
        return pool_folds(runs, _POOLING)

    def score(self, split: str, metrics: Sequence[MultiLabelMetricsRecord], measure: Measure) -> MultiLabelScore:
        def mean(label: str, key: str) -> float:
            return statistics.fmean(getattr(item.labels[label], key) for item in metrics)

        labels = metrics[0].labels
        return MultiLabelScore(
            split=split,
            rows=metrics[0].rows,
            micro_f1=estimate(MICRO_F1, metrics),
            macro_f1=estimate(MACRO_F1, metrics),
            subset_accuracy=estimate(SUBSET_ACCURACY, metrics),
            hamming_loss=statistics.fmean(item.hamming_loss for item in metrics),
            loss=statistics.fmean(item.loss for item in metrics),
            calibration=calibration_errors(metrics),
            labels={name: (mean(name, "precision"), mean(name, "recall"), mean(name, "f1")) for name in labels},
            support={name: item.support for name, item in labels.items()},
        )

    def model(self, common: ModelSummary, runs: Sequence[LoadedRun], headline: str) -> ModelSummary:
        return common

    def table(self, common: TableSummary, table: TableRuns, questions: Questions) -> MultiLabelTable:
        return MultiLabelTable(**vars(common), **self.data_facts(table))

    def examined(self, made: Any, table: TableRuns, questions: Questions) -> TableSummary:
        found: MultiLabelTable = made
        texts = questions.texts_of(made.fingerprint, table.headline)
        return replace(found, mistakes=shown_mistakes(found, table.groups, texts))

    def conclude(self, table: TableSummary) -> str:
        scored = [model for model in table.models if table.headline_split in model.scores]
        if not scored:
            return "No model was evaluated on a common split: nothing can be concluded."
        best = max(scored, key=lambda model: MICRO_F1.mean(model, table.headline_split))
        said = f"{best.label} has the highest micro F1 on {table.headline_split}"
        sentences = [f"{said}: {MICRO_F1.value(MICRO_F1.mean(best, table.headline_split))}."]
        supported = [test.statement for test in table.tests if test.supported]
        if len(scored) > 1:
            sentences += supported or ["No difference between the models is supported by their seeds."]
        if table.failed_groups:
            sentences.append(f"Failed audits: {form.words([group.name for group in table.failed_groups])}.")
        sentences += noted(table.audits, table.headline_split)
        return " ".join(sentences)


REPORTING = MultiLabelReporting()
