"""From run records to a `Summary`: groups what may be compared, and summarises each group over its seeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from recurra.core.errors import DataError
from recurra.core.record import EnvironmentRecord
from recurra.deployment.export_record import ExportRecord
from recurra.report.compare import KnownRows, ScoredModel, compare_models, scored_model
from recurra.report.contrasts import ScoredTables, answer_contrasts, pool_contrasts
from recurra.report.leaks import judge_leaks, mark_failed
from recurra.report.load import FailedRun, group_tables, load_runs, read_latency, read_measured_exports, uncollected
from recurra.report.models import Latencies, latency_warnings, summarise_model
from recurra.report.pareto import mark_fronts
from recurra.tasks.estimates import MeasuredExports
from recurra.tasks.loaded_runs import LoadedRun, TableKey, TableRuns
from recurra.tasks.questions import NO_QUESTIONS, Questions
from recurra.tasks.registry import part_of
from recurra.tasks.reporting import Reporting
from recurra.tasks.summary import Hardware, Summary, TableSummary, plain


def reporting_of(task: str) -> Reporting:
    """What a task tells the report."""
    found: Reporting = part_of(task, "reporting")
    return found


@uncollected()
def summarise(
    runs: Sequence[LoadedRun],
    latency: Mapping[str, Any] | None = None,
    failed: Sequence[FailedRun] = (),
    base: Path | None = None,
    *,
    questions: Questions = NO_QUESTIONS,
    exports: Sequence[ExportRecord] = (),
) -> Summary:
    """Summarises runs into tables of models that may be compared; see `recurra.report.load`.

    Args:
        runs: Finished runs, in any order.
        latency: Content of the study's ``latency.json``, if there is one; preferred to what a run measured alone.
        failed: Runs without a record, to be listed.
        base: Folders of runs inside this one are named relative to it.
        questions: What the study asks.
        exports: Records of exports of these runs.

    Raises:
        ConfigurationError: If what the study wants its models judged by is nothing that the runs have.
        DataError: If the runs are of several tasks.
    """
    tasks = sorted({run.record.task for run in runs})
    if len(tasks) > 1:
        raise DataError(f"the runs are of several tasks ({', '.join(tasks)}); report those of each by themselves")
    measured, warnings = read_latency(latency, runs)
    timed, more = read_measured_exports(latency)
    found: list[TableSummary] = []
    if tasks:
        reporting = reporting_of(tasks[0])
        tables = group_tables(reporting.pooled(runs), reporting)
        known: KnownRows = {}
        scored: dict[TableKey, Mapping[str, ScoredModel]] = {}
        for table in tables:
            measure = reporting.measure_of(table, questions.judging)
            scored[table.key] = {
                label: scored_model(label, group, table.headline, reporting, measure=measure, known=known)
                for label, group in table.groups.items()
            }
        found = [
            _table(
                table, scored, reporting,
                measured=measured, base=base, questions=questions, exports=exports, timed=timed,
            )
            for table in tables
        ]  # fmt: skip
    return Summary(
        tables=found,
        machines=_machines(runs),
        failed_runs=[{"run_id": item.run_id, "reason": item.reason} for item in failed],
        warnings=[*warnings, *more],
        task=tasks[0] if tasks else "",
        pooled=pool_contrasts(found, reporting_of(tasks[0]).judge) if tasks else [],
    )


def summarise_folders(
    runs: Sequence[Path],
    latency: Mapping[str, Any] | None = None,
    *,
    failures: Mapping[str, str] | None = None,
    questions: Questions = NO_QUESTIONS,
    exports: Sequence[ExportRecord] = (),
) -> Summary:
    """Summarises run folders.

    Args:
        runs: Run folders. One without a readable record is listed under ``failed_runs``.
        latency: Content of the study's ``latency.json``, if there is one.
        failures: Reasons of failed runs that the caller knows, by run identifier.
        questions: Contrasts and published tables that the study names.
        exports: Records of exports of these runs.
    """
    finished, failed = load_runs(runs, failures)
    return summarise(finished, latency, failed, questions=questions, exports=exports)


@uncollected()
def summarise_runs(
    runs: Sequence[Path],
    latency: Mapping[str, Any] | None = None,
    *,
    failures: Mapping[str, str] | None = None,
    questions: Questions = NO_QUESTIONS,
    exports: Sequence[ExportRecord] = (),
) -> dict[str, Any]:
    """Summarises run folders into plain JSON values: what ``--json`` prints; see `summarise_folders`."""
    return plain_summary(summarise_folders(runs, latency, failures=failures, questions=questions, exports=exports))


def plain_summary(summary: Summary) -> dict[str, Any]:
    """Plain JSON values of a summary."""
    values: dict[str, Any] = plain(summary)
    if not summary.pooled:
        # As it was before contrasts were pooled.
        del values["pooled"]
    return reporting_of(summary.task).as_before(summary, values) if summary.task else values


def _table(
    table: TableRuns,
    scored: ScoredTables,
    reporting: Reporting,
    *,
    measured: Latencies,
    base: Path | None,
    questions: Questions,
    exports: Sequence[ExportRecord],
    timed: MeasuredExports,
) -> TableSummary:
    key, headline, kept = table.key, table.headline, table.runs
    measure = reporting.measure_of(table, questions.judging)
    unmarked = [
        summarise_model(
            label, index, group, reporting, headline=headline, measure=measure, measured=measured, base=base
        )
        for index, (label, group) in enumerate(table.groups.items())
    ]
    batches = sorted({timing.batch_size for model in unmarked for timing in model.latency.values()})
    models = mark_fronts(unmarked, headline, batches, measure)
    tests = compare_models(scored[key], measure)
    lines = reporting.audit_lines(table.groups)
    audits = judge_leaks(lines, kept, scored[key], tests, measure)
    models = mark_failed(models, lines, audits)
    tokenizer = next((run.record.data.tokenizer for run in kept if run.record.data.tokenizer), {})
    common = TableSummary(
        key=reporting.key_text(key),
        title=table.title,
        data=key.data,
        protocol=key.protocol,
        variant=table.variant,
        subset=reporting.subset(kept[0]),
        training=key.training,
        precision=key.precision,
        fingerprint=key.fingerprint,
        tokenizer=dict(tokenizer),
        splits=reporting.split_lines(kept[0]),
        notes=list(dict.fromkeys(note for run in kept for note in run.record.data.notes)),
        headline_split=headline,
        judged_by=measure.key,
        reported_splits=list(dict.fromkeys(split for model in models for split in model.scores)),
        batch_sizes=batches,
        models=models,
        tests=tests,
        audits=audits,
        contrasts=answer_contrasts(questions.contrasts, key, scored, measure, tests),
        published=reporting.published(table, models, questions),
        warnings=[*table.warnings, *latency_warnings(models, kept)],
        exports=reporting.export_lines(table, exports, timed, questions),
    )
    made = reporting.table(common, table, questions)
    made = replace(made, conclusion=reporting.conclude(made), advice=reporting.advise(made, questions.limits))
    made = replace(made, recommended=reporting.recommend(made, questions.limits))
    return reporting.examined(made, table, questions)


def _machines(runs: Sequence[LoadedRun]) -> list[Hardware]:
    counts: dict[str, int] = defaultdict(int)
    first: dict[str, EnvironmentRecord] = {}
    for run in runs:
        environment = run.record.environment.model_copy(update={"precision": ""})
        key = environment.model_dump_json()
        counts[key] += 1
        first.setdefault(key, environment)
    return [
        Hardware(
            cpu=item.cpu,
            cores=item.cores,
            threads=item.threads,
            accelerator=item.accelerator,
            platform=item.platform,
            python=item.python,
            packages=dict(item.packages),
            runs=counts[key],
        )
        for key, item in first.items()
    ]
