"""What a report is told of classifiers."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from recurra.core import terminal as form
from recurra.core.errors import CheckpointError
from recurra.core.record import MetricsRecord, RunRecord, are_unequal
from recurra.deployment.export_record import ExportRecord
from recurra.evaluation.predictions import Predictions
from recurra.tasks.classification.conclusions import (
    OVERVIEW_NOTE,
    advise,
    conclude,
    fault_of,
    level_models,
    only_class,
    overview,
    said_costs,
)
from recurra.tasks.classification.errors import (
    POOLING,
    confused_table,
    find_mistakes,
    label_table,
    predictions_of,
)
from recurra.tasks.classification.exports import PUBLISHED, advise_exports, export_lines, published_lines
from recurra.tasks.classification.figures import study_charts, table_charts
from recurra.tasks.classification.measures import (
    ACCURACY,
    F1,
    MACRO_F1,
    PRECISION,
    RECALL,
    ClassificationTable,
    PublishedLine,
    judge,
    named_measure,
)
from recurra.tasks.classification.tables import exports_table, published_table, results_table, splits_table
from recurra.tasks.drawing import Chart
from recurra.tasks.labelling.folds import pool_folds
from recurra.tasks.labelling.mistakes import mistakes_table
from recurra.tasks.labelling.reporting import (
    CALIBRATION,
    LOSS,
    UNCALIBRATED,
    LabellingReporting,
    more_rows,
    telling_words,
)
from recurra.tasks.loaded_runs import LoadedRun, TableRuns
from recurra.tasks.measures import ExportLine, Measure, MeasuredExports, Score, estimate
from recurra.tasks.questions import Judging, Limits, Questions, ordered_costs
from recurra.tasks.reporting import Records
from recurra.tasks.summary import Advice, ModelSummary, TableSummary
from recurra.tasks.tables import Cells, Table, advice, audits, contrasts, tests

# Of every classifier, beside what it is judged by.
FIGURES = (F1, PRECISION, RECALL, LOSS, CALIBRATION, UNCALIBRATED)


class ClassificationReporting(LabellingReporting):
    """One label a text: accuracy and F1 over rows and seeds, a linear control, the papers' tables 6 to 13."""

    task = "classification"
    measures = (ACCURACY, MACRO_F1)
    overview_note = OVERVIEW_NOTE
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
        """A model that has one answer for every text has learned nothing; unless texts are ranked, not answered.

        On rows of one class nobody can tell.
        """
        record = _record(runs[0])
        if split in record.metrics and only_class(record.metrics[split].confusion_matrix):
            return f"all rows of {split} are of one class"
        if measure.ranks:
            return ""
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

    def figures(self, table: Any) -> Sequence[Measure]:
        return self._figures(judge(table))

    def _figures(self, judged_by: Measure) -> list[Measure]:
        return list({measure.key: measure for measure in (ACCURACY, judged_by, MACRO_F1, *FIGURES)}.values())

    def score(self, split: str, metrics: Sequence[MetricsRecord], measure: Measure) -> Score:
        matrices = [item.confusion_matrix for item in metrics]
        by_macro_f1 = measure.key == MACRO_F1.key or are_unequal(map(sum, matrices[0]))
        measures = [part for part in self._figures(measure) if by_macro_f1 or part.key != MACRO_F1.key]
        return Score(
            split,
            metrics[0].rows,
            {part.key: value for part in measures if (value := estimate(part, metrics)) is not None},
            np.sum(matrices, axis=0).tolist(),
        )

    def tables(self, table: Any) -> Sequence[Table]:
        measure, figures = judge(table), self.figures(table)
        shown = {key for model in table.models for score in model.scores.values() for key in score.figures}
        if len(table.label_names) > 2 and MACRO_F1.key in shown:
            # Of more than two labels it is the same.
            figures = [figure for figure in figures if figure.key != F1.key]
        return (
            results_table(table, figures, measure),
            advice(table),
            splits_table(table),
            mistakes_table(table),
            confused_table(table),
            label_table(table),
            telling_words(table),
            contrasts(table, measure),
            tests(table, measure),
            published_table(table),
            exports_table(table),
            audits(table),
        )

    def overview(self, table: Any) -> Cells | None:
        return overview(table)

    def published(self, table: TableRuns, models: Sequence[ModelSummary], questions: Questions) -> list[PublishedLine]:
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
        items = [
            replace(item, details=[*item.details, *_of_one_fold(table), *more_rows(table)]) if item.details else item
            for item in advise(table, measure, limits)
        ]
        return [*items, *advise_exports(table.exports, level)]

    def table(self, common: TableSummary, table: TableRuns, questions: Questions) -> ClassificationTable:
        facts = {**self.data_facts(table), "form_accuracy": _form_accuracy(table)}
        if questions.judging.costs is not None:
            facts["costs"] = ordered_costs(questions.judging.costs, facts["label_names"])
        return ClassificationTable(**vars(common), **facts)

    def facts(self, table: Any) -> list[tuple[str, str]]:
        return [
            *super().facts(table),
            *([("Costs of a row", said_costs(table))] if table.costs is not None else []),
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
