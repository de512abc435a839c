"""One model of a table, summarised over its seeds: quality, size, time."""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from recurra.core.record import LatencyRecord
from recurra.tasks.audits import group_of
from recurra.tasks.loaded_runs import LoadedRun
from recurra.tasks.measures import Measure
from recurra.tasks.reporting import Reporting
from recurra.tasks.summary import ModelSummary, RunEntry, Timing

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
) -> ModelSummary:
    """Summarises the runs of one model, one a seed.

    Args:
        label: Name in the table.
        color: Index of its colour and marker.
        runs: Its runs.
        reporting: What its task says.
        headline: The split that costs are held against.
        measure: What it is judged by.
        measured: Latencies that were taken side by side, by run identifier.
        base: Folders of runs inside this one are named relative to it.
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
    untimed = [model.label for model in models if not model.latency]
    if timings and untimed:
        warnings.append(f"Not timed: {', '.join(untimed)}.")
    return warnings
