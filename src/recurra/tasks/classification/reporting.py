"""What a report is told of classifiers."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from recurra.core import terminal as form
from recurra.core.errors import CheckpointError
from recurra.core.record import MetricsRecord, RunRecord, are_unequal
from recurra.deployment.export_record import ExportRecord
from recurra.evaluation.predictions import Predictions
from recurra.tasks.classification import columns
from recurra.tasks.classification.conclusions import OVERVIEW, advise, conclude, fault_of, level_models, said_costs
from recurra.tasks.classification.errors import POOLING, find_mistakes, predictions_of
from recurra.tasks.classification.exports import PUBLISHED, advise_exports, export_lines, published_lines
from recurra.tasks.classification.figures import study_charts, table_charts
from recurra.tasks.classification.measures import (
    ACCURACY,
    F1,
    MACRO_F1,
    ClassificationTable,
    ClassifierSummary,
    CostTable,
    JudgedScore,
    PublishedLine,
    SplitScore,
    judge,
    named_measure,
)
from recurra.tasks.drawing import Chart
from recurra.tasks.labelling.folds import pool_folds
from recurra.tasks.labelling.reporting import LabellingReporting, calibration_errors, more_rows
from recurra.tasks.loaded_runs import LoadedRun, TableRuns
from recurra.tasks.measures import ExportLine, Measure, MeasuredExports, estimate
from recurra.tasks.questions import Judging, Limits, Questions, ordered_costs
from recurra.tasks.reporting import Records
from recurra.tasks.summary import Advice, ModelSummary, TableSummary


class ClassificationReporting(LabellingReporting):
    """One label a text: accuracy and F1 over rows and seeds, a linear control, the papers' tables 6 to 13."""

    task = "classification"
    measures = (ACCURACY, MACRO_F1)
    tables = columns.TABLES
    overview = OVERVIEW
    published_tables = tuple(PUBLISHED)

    def pooled(self, runs: Sequence[LoadedRun]) -> Sequence[LoadedRun]:
        """The folds of a cross-validation are one run."""
        return pool_folds(runs, POOLING)

    def predictions(self, run: LoadedRun, split: str) -> Predictions:
        """Of pooled folds, those of all."""
        return predictions_of(run, split)

    def measure_of(self, table: TableRuns, judging: Judging) -> Measure:
        """What was asked for, or accuracy, or where the classes of the headline split are unequal macro F1."""
        data = _record(table.runs[0]).data
        counts = data.splits[table.headline].label_counts if table.headline else {}
        default = MACRO_F1 if are_unequal(counts.values()) else ACCURACY
        return self.asked(judging, data.label_names) or default

    def asked(self, judging: Judging, label_names: Sequence[str]) -> Measure | None:
        """The measure that was asked for, which may be of one label or of costs; none if none was."""
        if judging.measure is None:
            return None
        costs = None if judging.costs is None else ordered_costs(judging.costs, label_names)
        return named_measure(judging.measure, label_names, costs)

    def judge(self, table: Any) -> Measure:
        return judge(table)

    def barred(self, runs: Sequence[LoadedRun], split: str, measure: Measure) -> str:
        """A model that has one answer for every text has learned nothing; unless texts are ranked, not answered."""
        if measure.ranks:
            return ""
        record = _record(runs[0])
        answers = {
            label
            for run in runs
            if split in (metrics := _record(run).metrics)
            for label in np.flatnonzero(np.sum(metrics[split].confusion_matrix, axis=0)).tolist()
        }
        if len(answers) != 1:
            return ""
        name = record.data.label_names[answers.pop()]
        return f"it says '{name}' of every text of {split}"

    def fault(self, table: Any, model: Any) -> str:
        return fault_of(table, model)

    def score(self, split: str, metrics: Sequence[MetricsRecord], measure: Measure) -> SplitScore:
        matrices = [item.confusion_matrix for item in metrics]
        by_macro_f1 = measure.key == MACRO_F1.key or are_unequal(map(sum, matrices[0]))
        found = SplitScore(
            split=split,
            rows=metrics[0].rows,
            accuracy=estimate(ACCURACY, metrics),
            f1=estimate(F1, metrics),
            macro_f1=estimate(MACRO_F1, metrics) if by_macro_f1 else None,
            precision=statistics.fmean(item.precision for item in metrics),
            recall=statistics.fmean(item.recall for item in metrics),
            loss=statistics.fmean(item.loss for item in metrics),
            confusion_matrix=[
                [sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)
            ],
            calibration=calibration_errors(metrics),
        )
        if measure.key in (ACCURACY.key, MACRO_F1.key):
            return found
        return JudgedScore(**vars(found), judged=estimate(measure, metrics))

    def model(self, common: ModelSummary, runs: Sequence[LoadedRun], headline: str) -> ClassifierSummary:
        score = common.scores.get(headline)
        accuracy = score.accuracy.mean if score else 0.0
        gflops = common.flops_per_token / 1e9
        return ClassifierSummary(
            **vars(common),
            accuracy_per_million_parameters=accuracy / (common.parameters / 1e6) if common.parameters else 0.0,
            accuracy_per_gflop=accuracy / gflops if gflops > 0 else None,
        )

    def published(
        self, table: TableRuns, models: Sequence[ClassifierSummary], questions: Questions
    ) -> list[PublishedLine]:
        return published_lines(table, models, questions.published)

    def export_lines(
        self, table: TableRuns, exports: Sequence[ExportRecord], measured: MeasuredExports, questions: Questions
    ) -> list[ExportLine]:
        return export_lines(table, exports, measured, questions.published)

    def conclude(self, table: Any) -> str:
        return conclude(table, self.judge(table))

    def advise(self, table: Any, limits: Limits) -> list[Advice]:
        measure = self.judge(table)
        level = level_models(table, measure)
        advice = [
            replace(item, details=[*item.details, *_of_one_fold(table), *more_rows(table)]) if item.details else item
            for item in advise(table, measure, limits)
        ]
        return [*advice, *advise_exports(table.exports, level)]

    def table(self, common: TableSummary, table: TableRuns, questions: Questions) -> ClassificationTable:
        facts = {**self.data_facts(table), "form_accuracy": _form_accuracy(table)}
        if questions.judging.costs is None:
            return ClassificationTable(**vars(common), **facts)
        return CostTable(**vars(common), **facts, costs=ordered_costs(questions.judging.costs, facts["label_names"]))

    def facts(self, table: Any) -> list[tuple[str, str]]:
        return [
            *super().facts(table),
            *([("Costs of a row", said_costs(table))] if isinstance(table, CostTable) else []),
        ]

    def examined(self, made: Any, table: TableRuns, questions: Questions) -> TableSummary:
        found: ClassificationTable = made
        texts = questions.texts_of(made.fingerprint, table.headline)
        with contextlib.suppress(CheckpointError):
            return replace(found, mistakes=find_mistakes(found, table.groups, texts))
        return found

    def charts(self, table: ClassificationTable, runs: Records, key: str) -> list[Chart]:
        return [*self.control_charts(table, key), *table_charts(table, _records(runs), key)]

    def charts_across(self, tables: Sequence[ClassificationTable], runs: Records) -> list[Chart]:
        return study_charts(tables, _records(runs))


def _of_one_fold(table: ClassificationTable) -> list[tuple[str, str]]:
    """What is shipped where the figures are of several trainings; nothing elsewhere."""
    folds = max(len(model.runs) // len(model.seeds) for model in table.models)
    if folds < 2:
        return []
    train = form.count(next(split.rows for split in table.splits if split.name == "train"))
    return [
        (
            "What is shipped",
            f"The model of one of {folds} folds, trained on {train} rows; the figures are of all folds.",
        )
    ]


def _form_accuracy(table: TableRuns) -> float | None:
    name = f"shortcuts.format.{table.headline}"
    found = (audit.details.get("accuracy") for audit in _record(table.runs[0]).audits if audit.name == name)
    return next((float(value) for value in found if isinstance(value, (int, float))), None)


def _record(run: LoadedRun) -> RunRecord:
    if not isinstance(run.record, RunRecord):
        raise TypeError(f"{run.folder} holds no run of a classifier")
    return run.record


def _records(runs: Records) -> dict[str, RunRecord]:
    return {name: _record(run) for name, run in runs.items()}


REPORTING = ClassificationReporting()
