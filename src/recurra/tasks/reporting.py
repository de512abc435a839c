"""The part of a task that a report needs: meaning of its records, measures, tables and charts. It loads no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from recurra.core.errors import ConfigurationError, unknown
from recurra.core.record_parts import ANSWERS
from recurra.core.terminal import significant, words
from recurra.deployment.export_record import ExportRecord
from recurra.tasks.drawing import Chart
from recurra.tasks.loaded_runs import LoadedRun, TableKey, TableRuns
from recurra.tasks.measures import Measure, Score, StudyLatency
from recurra.tasks.questions import Limits, Questions
from recurra.tasks.summary import RECOMMENDED, Advice, Comparison, ModelSummary, TableSummary, unspoiled
from recurra.tasks.tables import Table


def nearest(models: Sequence[ModelSummary], limits: Limits) -> Advice:
    """Says that no model stays within the limits, and which comes nearest."""
    near = min(models, key=lambda model: limits.excess(model.file_size_mib, model.single_ms))
    time_text = "" if near.single_ms is None else f" and {significant(near.single_ms)} ms a text"
    cost = f"{significant(near.file_size_mib)} MiB on disk{time_text}"
    return Advice(RECOMMENDED, None, f"no model here stays within {limits}; the nearest is {near.label} with {cost}.")


def best_model(models: Sequence[ModelSummary], split: str, measure: Measure) -> ModelSummary:
    """The model with the best mean; ties go to a model of which more than answers are known, then to the smallest."""

    def rank(model: ModelSummary) -> tuple[float, bool, int]:
        return measure.merit(measure.mean(model, split)), model.kind != ANSWERS, -model.parameters

    return max(models, key=rank)


def find_test(tests: Sequence[Comparison], first: ModelSummary, second: ModelSummary) -> Comparison | None:
    """The test between two models, in either order."""
    labels = {first.label, second.label}
    return next((test for test in tests if {test.a, test.b} == labels), None)


def beside_best(best: ModelSummary, models: Sequence[ModelSummary], table: TableSummary) -> list[str]:
    """Sentences that say which models are behind the best one, level with it, or not tested against it."""
    split, measure = table.headline_split, table.judged_by
    behind, level, untested = [], [], []
    for model in models:
        if model is best:
            continue
        test = find_test(table.tests, best, model)
        interval = None if test is None or test.p_holm is None else test.ahead(model.label)
        if test is None or interval is None:
            gap = measure.gap(measure.mean(model, split) - measure.mean(best, split))
            untested.append(f"{model.label} ({gap})")
            continue
        # This gap, like its interval, is over the seeds that both models have.
        gap = measure.gap(test.gap if test.a == model.label else -test.gap)
        if test.supported:
            behind.append(f"{model.label} ({gap}, 95 % {measure.range(*interval)})")
        else:
            level.append(f"{model.label} ({gap})")
    sentences = {
        "Behind it, beyond chance:": behind,
        "No difference from it is supported for": level,
        "Not tested against it:": untested,
    }
    return [f"{start} {words(named)}." for start, named in sentences.items() if named]


class Reporting(ABC):
    """The interface of a task for reports. The methods that are not abstract suit most tasks."""

    measures: tuple[Measure, ...]
    # How a title calls the split protocol.
    protocol = "{} protocol"

    def measure_of(self, table: TableRuns, questions: Questions) -> Measure:
        """The measure by which the models of a table are compared: the one asked for, or the first."""
        return self.requested_measure(questions, ()) or self.measures[0]

    def requested_measure(self, questions: Questions, label_names: Sequence[str]) -> Measure | None:
        """The measure that was asked for; None if none was.

        Raises:
            ConfigurationError: If the task or the data do not have it.
        """
        if questions.measure is None:
            return None
        measures = {measure.key: measure for measure in self.measures}
        if questions.measure not in measures:
            raise ConfigurationError(unknown("measure", questions.measure, measures))
        return measures[questions.measure]

    # How runs become tables.

    def pooled(self, runs: Sequence[LoadedRun]) -> Sequence[LoadedRun]:
        """The runs, with parts of one run merged; see `LoadedRun.folds`."""
        return runs

    def key(self, run: LoadedRun) -> TableKey:
        """A key that is equal for runs that may be compared.

        It names corpus, split protocol, content and part of the data, training and precision.
        """
        record, data = run.record, run.record.data
        training, precision = record.training.protocol, record.environment.precision
        return TableKey(data.name, data.protocol, data.fingerprint, self.part(run), training, precision)

    def part(self, run: LoadedRun) -> str:
        """A property of the data that the fingerprint does not cover."""
        return ""

    @abstractmethod
    def key_text(self, key: TableKey) -> str:
        """The key as one text, unique to the table."""

    @abstractmethod
    def variant(self, run: LoadedRun) -> str:
        """The part of the data that was trained on, in words; empty for all of it."""

    def subset(self, run: LoadedRun) -> str:
        """The variant without the seed of its draw: tables that differ only in this seed are draws of the same part."""
        return self.variant(run)

    def title(self, key: TableKey, variant: str) -> str:
        """Heading of a table."""
        training = f"{key.training} training" if key.training else ""
        return " · ".join(
            filter(None, (key.data, self.protocol.format(key.protocol), variant, training, key.precision))
        )

    def label(self, run: LoadedRun) -> str:
        """Name of a run's model in tables."""
        return run.record.model.preset

    def stands_everywhere(self, run: LoadedRun) -> bool:
        """Whether a model depends on neither protocol nor precision, and so stands in every table of its data."""
        return False

    @abstractmethod
    def order(self, runs: Sequence[LoadedRun], headline: str) -> tuple[Any, ...]:
        """The sort key of a model in its table."""

    def barred(self, runs: Sequence[LoadedRun], split: str, measure: Measure) -> str:
        """Why a model's value of a measure on a split must not be compared; empty if it may be."""
        return ""

    def fault(self, table: TableSummary, model: ModelSummary) -> str:
        """Why a model of a table should not be used, whatever it scores; empty if it may be."""
        return model.barred

    # Summaries of models and tables.

    @abstractmethod
    def score(self, split: str, metrics: Sequence[Any], measure: Measure) -> Score:
        """The score of a model on one split, from the metrics of its seeds; it has an estimate of the measure."""

    def model(self, common: ModelSummary, runs: Sequence[LoadedRun], headline: str) -> ModelSummary:
        """Adds the parts of a model's summary that only this task has."""
        return common

    @abstractmethod
    def split_lines(self, run: LoadedRun) -> Any:
        """The splits of a table, from any of its runs."""

    @abstractmethod
    def conclude(self, table: TableSummary) -> str:
        """Sentences that the figures of a table support; at least one model was evaluated on its headline split."""

    def advise(self, table: TableSummary, limits: Limits) -> list[Advice]:
        """Advice by priority, the recommended model first.

        It is the best model within the limits of those that have no fault and failed no audit of their own. Without
        any such model there is no advice.
        """
        split, measure = table.headline_split, table.judged_by
        usable = [
            model
            for model in unspoiled(table.models, table.audits)
            if measure.of(model, split) is not None and not self.fault(table, model)
        ]
        models = [model for model in usable if limits.allow(model.file_size_mib, model.single_ms)]
        if not models:
            return [nearest(usable, limits)] if usable else []
        best = best_model(models, split, measure)
        if len(models) > 1:
            rivals = "the best of several; their sizes were not compared"
        else:
            rivals = "the only usable model" if len(usable) == 1 else f"the only one of {len(usable)} within {limits}"
        value = f"{measure.heading} {measure.value(measure.mean(best, split))} on {split}"
        return [Advice(RECOMMENDED, best.label, f"{value}; {rivals}.")]

    def exports(
        self, table: TableRuns, records: Sequence[ExportRecord], latency: StudyLatency, questions: Questions
    ) -> list[dict[str, Any]]:
        """A row for each kind of export of each model of a table, with its measurements."""
        return []

    def table(self, common: TableSummary, table: TableRuns, questions: Questions) -> TableSummary:
        """Adds the parts of a table's summary that only this task has."""
        return common

    def examined(self, made: TableSummary, table: TableRuns, questions: Questions) -> TableSummary:
        """Adds the parts of a table's summary that depend on the recommended model."""
        return made

    # Output.

    @abstractmethod
    def figures(self, table: Any) -> Sequence[Measure]:
        """The measures that are shown of the models of a table on a split, in their order."""

    @abstractmethod
    def tables(self, table: Any) -> Sequence[Table]:
        """Tables for readers, the results first."""

    @abstractmethod
    def splits(self, table: Any) -> Table:
        """The table of splits."""

    def facts(self, table: TableSummary) -> list[tuple[str, str]]:
        """Facts of a table beyond those that every table has: a name and a text each."""
        return []

    def charts(self, table: Any, key: str) -> list[Chart]:
        """Drawings of a table beside those that every task has."""
        return []

    def charts_across(self, tables: Sequence[Any]) -> list[Chart]:
        """Drawings across the tables of a study."""
        return []

    def alarms(self, tables: Sequence[Any]) -> list[tuple[str, list[tuple[str, str]]]]:
        """Alarms to read before any figure, beside failed audits: a heading, and a name and a table a line."""
        return []
