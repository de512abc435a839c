"""From run records to a `Summary`: groups what may be compared, and summarises each group over its seeds."""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from recurra.core.errors import DataError
from recurra.core.record import LatencyRecord
from recurra.core.record_parts import ANSWERS
from recurra.deployment.export_record import ExportRecord
from recurra.report.load import group_tables, read_latency
from recurra.report.statistics import (
    KnownRows,
    ScoredModel,
    ScoredTables,
    answer_contrasts,
    compare_models,
    judge_leaks,
    pool_contrasts,
    scored_model,
)
from recurra.tasks.audits import audit_lines, group_of
from recurra.tasks.loaded_runs import LoadedRun, TableKey, TableRuns
from recurra.tasks.measures import Measure, MeasuredExports
from recurra.tasks.profile import part_of
from recurra.tasks.questions import NO_QUESTIONS, Questions
from recurra.tasks.reporting import Reporting
from recurra.tasks.summary import AuditLine, ModelSummary, RunEntry, Summary, TableSummary, Timing, uncollected

MIB = 2**20

Latencies = Mapping[str, Mapping[str, LatencyRecord]]


def summarise_model(
    label: str,
    color: int,
    runs: Sequence[LoadedRun],
    reporting: Reporting,
    *,
    headline: str,
    measure: Measure,
    measured: Latencies,
    base: Path | None,
    prices: Mapping[str, float],
) -> ModelSummary:
    """Summarises the runs of one model, one a seed.

    ``measured`` are latencies that were taken side by side, by run identifier. Folders of runs inside ``base`` are
    named relative to it.
    """
    model = runs[-1].record.model
    splits = [split for split in runs[0].record.metrics if all(split in run.record.metrics for run in runs)]
    failed = [audit.name for run in runs for audit in run.record.failed_audits()]
    common = ModelSummary(
        label=label,
        preset=model.preset,
        kind=model.kind,
        description=model.description,
        color=color,
        runs=[_entry(part, base) for run in runs for part in run.parts],
        seeds=[run.record.seed for run in runs],
        deterministic=len(runs) > 1 and all(_same_over_seeds(split, runs) for split in splits),
        scores={
            split: reporting.score(split, [run.record.metrics[split] for run in runs], measure) for split in splits
        },
        parameters=model.parameters,
        embedding_parameters=model.embedding_parameters,
        non_embedding_parameters=model.non_embedding_parameters,
        flops_per_token=model.flops_per_token,
        file_size_mib=statistics.median(run.record.model.file_size_bytes for run in runs) / MIB,
        latency=_timings([part for run in runs for part in run.parts], measured),
        training_wall_s=statistics.fmean(part.record.training.wall_s for run in runs for part in run.parts),
        peak_memory_mib=max(part.record.training.peak_memory_mib for run in runs for part in run.parts),
        fronts=[],
        audited=any(audit.status != "skipped" for run in runs for audit in run.record.audits),
        failed_audits=list(dict.fromkeys(failed)),
        failed_groups=list(dict.fromkeys(group_of(name, runs[0].record.data.splits)[0] for name in failed)),
        barred=reporting.barred(runs, headline, measure),
        price=prices.get(model.preset),
    )
    return reporting.model(common, runs, headline)


def _same_over_seeds(split: str, runs: Sequence[LoadedRun]) -> bool:
    first = runs[0].record.metrics[split]
    return all(run.record.metrics[split] == first for run in runs)


def _entry(run: LoadedRun, base: Path | None) -> RunEntry:
    record = run.record
    folder = run.folder
    if base is not None and (inside := os.path.relpath(folder, base)).partition(os.sep)[0] != os.pardir:
        folder = Path(inside)
    return RunEntry(
        run_id=record.run_id,
        folder=folder.as_posix(),
        model=record.model.preset,
        seed=record.seed,
        config_hash=record.config_hash,
        created=record.created,
        version=record.code.version,
        commit=record.code.commit,
        dirty=record.code.dirty,
        best_epoch=record.training.best_epoch,
        epochs=record.training.epochs,
        training_wall_s=record.training.wall_s,
        peak_memory_mib=record.training.peak_memory_mib,
    )


def _timings(runs: Sequence[LoadedRun], measured: Latencies) -> dict[str, Timing]:
    """Latency by batch size; if the study timed any of the runs side by side, only those measurements count."""
    side_by_side = [measured[run.record.run_id] for run in runs if measured.get(run.record.run_id)]
    sources: Sequence[Mapping[str, LatencyRecord]] = side_by_side or [run.record.latency for run in runs]
    by_batch: dict[int, list[LatencyRecord]] = defaultdict(list)
    for source in sources:
        for timing in source.values():
            by_batch[timing.batch_size].append(timing)
    return {
        str(batch): Timing(
            batch_size=batch,
            samples=items[0].samples,
            median_ms=statistics.median(item.median_ms for item in items),
            p90_ms=statistics.median(item.p90_ms for item in items),
            mean_ms=statistics.median(item.mean_ms for item in items),
            scope=items[0].scope,
            device=items[0].device,
            threads=items[0].threads,
            precision=items[0].precision,
            source="side by side" if side_by_side else "own run",
        )
        for batch, items in sorted(by_batch.items())
    }


def latency_warnings(models: Sequence[ModelSummary], runs: Sequence[LoadedRun]) -> list[str]:
    """What keeps the latencies of a table from being compared."""
    timings = [timing for model in models for timing in model.latency.values()]
    warnings = []
    if len({timing.source for timing in timings}) > 1:
        warnings.append(
            "Some latencies were taken side by side and some in the models' own runs: do not compare the two."
        )
    elif len(models) > 1 and any(timing.source == "own run" for timing in timings):
        machines = {(run.record.environment.cpu, run.record.environment.accelerator) for run in runs}
        where = "on different machines" if len(machines) > 1 else "one after another"
        warnings.append(f"Latencies were taken in each model's own run, {where}: read ratios below 1.2 as noise.")
    if len({(timing.device, timing.threads) for timing in timings}) > 1:
        warnings.append("Latencies were taken on different devices or with different numbers of threads.")
    if len({timing.scope for timing in timings}) > 1:
        warnings.append("Some latencies are from text to label, others from tokens to logits (see the column).")
    untimed = [model.label for model in models if not model.latency and model.kind != ANSWERS]
    if timings and untimed:
        warnings.append(f"Not timed: {', '.join(untimed)}.")
    return warnings


SIZE, PRICE = "size", "price"


def latency_cost(batch: int | str) -> str:
    """Name of the cost "milliseconds a text at this batch size"."""
    return f"latency {batch}"


def pareto_front(merit: Mapping[str, float], cost: Mapping[str, float]) -> list[str]:
    """Names on the Pareto front of merit (more is better) and cost (less is better).

    A model is off the front if another is at least as good and at least as cheap, and better in one of the two.
    """
    front: list[str] = []
    best = float("-inf")
    names = [name for name in merit if name in cost]
    for name in sorted(names, key=lambda name: (cost[name], -merit[name])):
        equal = bool(front) and cost[front[-1]] == cost[name] and merit[name] == best
        if merit[name] > best or equal:
            front.append(name)
            best = merit[name]
    return front


def costs_of(models: Sequence[ModelSummary], batch_sizes: Sequence[int]) -> dict[str, dict[str, float]]:
    """Every measure of cost: milliseconds a text at each batch size, MiB on disk, and prices; by measure and label.

    What is known by its answers has no size, and the price of one model alone is held against nothing.
    """
    costs = {
        latency_cost(batch): {
            model.label: model.latency[str(batch)].median_ms for model in models if str(batch) in model.latency
        }
        for batch in batch_sizes
    }
    prices = {model.label: model.price for model in models if model.price is not None}
    sizes = {model.label: model.file_size_mib for model in models if model.kind != ANSWERS}
    return {**costs, SIZE: sizes, **({PRICE: prices} if len(prices) > 1 else {})}


def mark_fronts(
    models: Sequence[ModelSummary], split: str, batch_sizes: Sequence[int], measure: Measure
) -> list[ModelSummary]:
    """Notes on each model which fronts of its table it is on; by means, whether or not a gap is supported.

    A model whose figures are held against nobody's is on none and keeps none off.
    """
    merit = {
        model.label: measure.merit(found.mean)
        for model in models
        if not model.barred and (found := measure.of(model, split)) is not None
    }
    fronts = {name: pareto_front(merit, cost) for name, cost in costs_of(models, batch_sizes).items()}
    return [
        replace(model, fronts=[name for name, labels in fronts.items() if model.label in labels]) for model in models
    ]


def mark_failed(
    models: Sequence[ModelSummary], before: Sequence[AuditLine], after: Sequence[AuditLine]
) -> list[ModelSummary]:
    """The models, which carry what failed in their names' rows, with the lines that `judge_leaks` made fail."""
    new = [line for old, line in zip(before, after, strict=True) if old.status != line.status]
    names, groups = [line.name for line in new], [line.group for line in new]
    return [
        replace(
            model,
            failed_audits=list(dict.fromkeys([*model.failed_audits, *names])),
            failed_groups=list(dict.fromkeys([*model.failed_groups, *groups])),
        )
        for model in models
    ]


def reporting_of(task: str) -> Reporting:
    """What a task tells the report."""
    found: Reporting = part_of(task, "reporting")
    return found


@uncollected()
def summarise(
    runs: Sequence[LoadedRun],
    latency: Mapping[str, Any] | None = None,
    failed: Sequence[dict[str, str]] = (),
    base: Path | None = None,
    *,
    questions: Questions = NO_QUESTIONS,
    exports: Sequence[ExportRecord] = (),
) -> Summary:
    """Summarises runs into tables of models that may be compared; see `recurra.report.load`.

    Args:
        latency: Content of the study's ``latency.json``, if there is one; preferred to what a run measured alone.
        base: Folders of runs inside this one are named relative to it.

    Raises:
        ConfigurationError: If what the study wants its models judged by is nothing that the runs have.
        DataError: If the runs are of several tasks.
    """
    tasks = sorted({run.record.task for run in runs})
    if len(tasks) > 1:
        raise DataError(f"the runs are of several tasks ({', '.join(tasks)}); report those of each by themselves")
    measured, timed, warnings = read_latency(latency, runs)
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
                measured=measured, base=base, questions=questions, exports=replace(timed, records=exports),
            )
            for table in tables
        ]  # fmt: skip
    return Summary(
        tables=found,
        machines=_machines(runs),
        failed_runs=list(failed),
        warnings=warnings,
        task=tasks[0] if tasks else "",
        pooled=pool_contrasts(found, reporting_of(tasks[0]).judge) if tasks else [],
    )


def _table(
    table: TableRuns,
    scored: ScoredTables,
    reporting: Reporting,
    *,
    measured: Latencies,
    base: Path | None,
    questions: Questions,
    exports: MeasuredExports,
) -> TableSummary:
    key, headline, kept = table.key, table.headline, table.runs
    measure = reporting.measure_of(table, questions.judging)
    unmarked = [
        summarise_model(
            label, index, group, reporting,
            headline=headline, measure=measure, measured=measured, base=base, prices=questions.prices,
        )
        for index, (label, group) in enumerate(table.groups.items())
    ]  # fmt: skip
    batches = sorted({timing.batch_size for model in unmarked for timing in model.latency.values()})
    models = mark_fronts(unmarked, headline, batches, measure)
    tests = compare_models(scored[key], measure)
    lines = audit_lines(table.groups)
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
        warnings=[*table.warnings, *latency_warnings(models, kept)],
    )
    made = reporting.table(common, table, questions, exports)
    made = replace(made, conclusion=reporting.conclude(made), advice=reporting.advise(made, questions.limits))
    made = replace(made, recommended=reporting.recommend(made, questions.limits))
    return reporting.examined(made, table, questions)


def _machines(runs: Sequence[LoadedRun]) -> list[dict[str, Any]]:
    machines: dict[str, dict[str, Any]] = {}
    for run in runs:
        values = run.record.environment.model_dump(exclude={"precision"})
        machines.setdefault(str(values), {**values, "runs": 0})["runs"] += 1
    return list(machines.values())
