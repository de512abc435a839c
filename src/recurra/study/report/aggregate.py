"""From run records to a `Summary`: groups what may be compared, and summarises each group over its seeds."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recurra.core.record import EnvironmentRecord, LatencyRecord
from recurra.study.report.advice import advise
from recurra.study.report.audits import audit_lines, group_of
from recurra.study.report.comparison import compare_models
from recurra.study.report.conclusions import conclude
from recurra.study.report.estimates import accuracy_estimate, f1_estimate
from recurra.study.report.published import published_lines
from recurra.study.report.runs import FailedRun, LoadedRun, read_latency
from recurra.study.report.summary import (
    Machine,
    ModelSummary,
    RunEntry,
    SplitLine,
    SplitScore,
    Summary,
    TableSummary,
    Timing,
)

MIB = 2**20

TableKey = tuple[str, str, str, str, str]
Latencies = Mapping[str, Mapping[str, LatencyRecord]]


def summarise(
    runs: Sequence[LoadedRun],
    latency: Mapping[str, Any] | None = None,
    failed: Sequence[FailedRun] = (),
    base: Path | None = None,
) -> Summary:
    """Summarises runs into tables of models that may be compared.

    Runs share a table if corpus, split protocol, content of the splits, training protocol and precision are the same.
    A linear model knows neither training protocol nor precision and stands in every table of its data.

    Args:
        runs: Finished runs, in any order.
        latency: Content of the study's ``latency.json``, if there is one; preferred to what a run measured alone.
        failed: Runs without a record, to be listed.
        base: Folders of runs inside this one are named relative to it.
    """
    measured, warnings = read_latency(latency, runs)
    groups: dict[TableKey, list[LoadedRun]] = defaultdict(list)
    linear: list[LoadedRun] = []
    for run in runs:
        if run.record.model.kind == "linear":
            linear.append(run)
        else:
            groups[_table_key(run)].append(run)
    for run in linear:
        matching = [key for key in groups if key[:3] == _table_key(run)[:3]]
        for key in matching or [(*_table_key(run)[:3], "", "")]:
            groups[key].append(run)
    titles = [_title(key, members[0]) for key, members in sorted(groups.items())]
    tables = [
        _table(key, title if titles.count(title) == 1 else f"{title} · data {key[2]}", members, measured, base)
        for title, (key, members) in zip(titles, sorted(groups.items()), strict=True)
    ]
    return Summary(
        tables=tables,
        machines=_machines(runs),
        failed_runs=[{"run_id": item.run_id, "reason": item.reason} for item in failed],
        warnings=warnings,
    )


def _table_key(run: LoadedRun) -> TableKey:
    record = run.record
    return (record.data.name, record.data.protocol, record.data.fingerprint, run.protocol, record.environment.precision)


def _variant(run: LoadedRun) -> str:
    """What part of the corpus was trained on, in words; empty for all of it."""
    data = run.record.config.get("data")
    if not isinstance(data, dict):
        return ""
    parts = []
    fraction = data.get("fraction")
    if isinstance(fraction, (int, float)) and fraction != 1:
        parts.append(f"{fraction:.3g} of train")
    if data.get("length_tail"):
        parts.append(f"{data['length_tail']} {data.get('tail_fraction', '')} by words".replace("  ", " "))
    return ", ".join(parts)


def _title(key: TableKey, run: LoadedRun) -> str:
    name, protocol, _, training, precision = key
    parts = [name, f"{protocol} protocol", _variant(run), f"{training} training" if training else "", precision]
    return " · ".join(part for part in parts if part)


def _table(
    key: TableKey, title: str, members: Sequence[LoadedRun], measured: Latencies, base: Path | None
) -> TableSummary:
    name, protocol, fingerprint, training, precision = key
    warnings: list[str] = []
    groups = _group_models(members, warnings)
    first = next(iter(groups.values()))[0].record.data
    headline = _headline_split(members)
    models = [
        _model(label, index, group, headline=headline, measured=measured, base=base)
        for index, (label, group) in enumerate(groups.items())
    ]
    if "test" in first.splits and headline != "test":
        warnings.append(f"The test split was not evaluated for every model: the '{headline}' split is shown first.")
    kept = [run for group in groups.values() for run in group]
    warnings.extend(_latency_warnings(models, kept))
    tests = compare_models(groups, headline)
    audits = audit_lines(groups)
    tokenizer = next((run.record.data.tokenizer for run in kept if run.record.data.tokenizer), {})
    batches = sorted({timing.batch_size for model in models for timing in model.latency.values()})
    return TableSummary(
        key=f"{name}/{protocol}/{training}/{precision}/{fingerprint}",
        title=title,
        data=name,
        protocol=protocol,
        variant=_variant(members[0]),
        training=training,
        precision=precision,
        fingerprint=fingerprint,
        tokenizer=dict(tokenizer),
        label_names=list(first.label_names),
        splits=_split_lines(kept[0]),
        dropped=dict(first.dropped),
        notes=list(dict.fromkeys(note for run in kept for note in run.record.data.notes)),
        headline_split=headline,
        reported_splits=list(dict.fromkeys(split for model in models for split in model.scores)),
        batch_sizes=batches,
        models=models,
        tests=tests,
        audits=audits,
        published=published_lines(kept, models),
        conclusion=conclude(models, tests, audits, headline),
        advice=advise(models, tests, audits, headline),
        warnings=warnings,
    )


def _group_models(members: Sequence[LoadedRun], warnings: list[str]) -> dict[str, list[LoadedRun]]:
    """Groups runs by model, one run a seed: linear first, then by falling number of parameters."""
    by_settings: dict[tuple[str, str], dict[int, LoadedRun]] = defaultdict(dict)
    for run in sorted(members, key=lambda run: (run.record.created, run.record.run_id)):
        seeds = by_settings[(run.record.model.preset, run.settings_hash)]
        if run.record.seed in seeds:
            warnings.append(
                f"{run.record.model.preset}, seed {run.record.seed} was run more than once with the same settings: "
                f"the latest ({run.record.run_id}) is shown."
            )
        seeds[run.record.seed] = run
    ordered = sorted(by_settings, key=lambda key: _model_order(key, by_settings[key]))
    presets = [preset for preset, _ in ordered]
    labels = [preset if presets.count(preset) == 1 else f"{preset} ({digest[:6]})" for preset, digest in ordered]
    if len(set(presets)) < len(presets):
        warnings.append(
            "Some models were run with more than one set of settings; the letters after the name tell them apart, "
            "and the configurations are listed under 'How to reproduce'."
        )
    return {
        label: [by_settings[key][seed] for seed in sorted(by_settings[key])]
        for label, key in zip(labels, ordered, strict=True)
    }


def _model_order(key: tuple[str, str], seeds: Mapping[int, LoadedRun]) -> tuple[bool, int, str, str]:
    model = next(iter(seeds.values())).record.model
    return (model.kind != "linear", -model.parameters, *key)


def _headline_split(members: Sequence[LoadedRun]) -> str:
    """The split that the comparison is judged on: test if every run has it, else one that selected no checkpoint."""
    common = [split for split in members[0].record.metrics if all(split in run.record.metrics for run in members)]
    selection = members[0].record.data.selection_split
    unused = [split for split in common if split != selection]
    if "test" in common:
        return "test"
    candidates = unused or common or list(members[0].record.metrics)
    return candidates[-1] if candidates else ""


def _model(
    label: str, color: int, runs: Sequence[LoadedRun], *, headline: str, measured: Latencies, base: Path | None
) -> ModelSummary:
    model = runs[-1].record.model
    splits = [split for split in runs[0].record.metrics if all(split in run.record.metrics for run in runs)]
    scores = {split: _score(split, runs) for split in splits}
    accuracy = scores[headline].accuracy.mean if headline in scores else 0.0
    failed = [audit.name for run in runs for audit in run.record.failed_audits()]
    gflops = model.flops_per_token / 1e9
    return ModelSummary(
        label=label,
        preset=model.preset,
        kind=model.kind,
        description=model.description,
        color=color,
        runs=[_entry(run, base) for run in runs],
        seeds=[run.record.seed for run in runs],
        deterministic=len(runs) > 1 and all(_same_over_seeds(split, runs) for split in scores),
        scores=scores,
        parameters=model.parameters,
        embedding_parameters=model.embedding_parameters,
        non_embedding_parameters=model.non_embedding_parameters,
        flops_per_token=model.flops_per_token,
        file_size_mib=statistics.median(run.record.model.file_size_bytes for run in runs) / MIB,
        latency=_timings(runs, measured),
        training_wall_s=statistics.fmean(run.record.training.wall_s for run in runs),
        peak_memory_mib=max(run.record.training.peak_memory_mib for run in runs),
        accuracy_per_million_parameters=accuracy / (model.parameters / 1e6) if model.parameters else 0.0,
        accuracy_per_gflop=accuracy / gflops if gflops > 0 else None,
        audited=any(audit.status != "skipped" for run in runs for audit in run.record.audits),
        failed_audits=list(dict.fromkeys(failed)),
        failed_groups=list(dict.fromkeys(group_of(name, runs[0].record.data.splits)[0] for name in failed)),
    )


def _same_over_seeds(split: str, runs: Sequence[LoadedRun]) -> bool:
    first = runs[0].record.metrics[split]
    return all(run.record.metrics[split] == first for run in runs)


def _score(split: str, runs: Sequence[LoadedRun]) -> SplitScore:
    metrics = [run.record.metrics[split] for run in runs]
    matrices = [item.confusion_matrix for item in metrics]
    return SplitScore(
        split=split,
        rows=metrics[0].rows,
        accuracy=accuracy_estimate(metrics),
        f1=f1_estimate(metrics),
        precision=statistics.fmean(item.precision for item in metrics),
        recall=statistics.fmean(item.recall for item in metrics),
        loss=statistics.fmean(item.loss for item in metrics),
        confusion_matrix=[[sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)],
    )


def _entry(run: LoadedRun, base: Path | None) -> RunEntry:
    record = run.record
    inside = base is not None and run.folder.resolve().is_relative_to(base.resolve())
    folder = run.folder.resolve().relative_to(base.resolve()) if base is not None and inside else run.folder
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


def _latency_warnings(models: Sequence[ModelSummary], runs: Sequence[LoadedRun]) -> list[str]:
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


def _split_lines(run: LoadedRun) -> list[SplitLine]:
    data = run.record.data

    def role(name: str) -> str:
        if name == "train":
            return "trained on"
        reported = "reported" if name in data.reported_splits else "not reported"
        return f"chose the checkpoint, {reported}" if name == data.selection_split else reported

    return [
        SplitLine(
            name=name,
            role=role(name),
            rows=split.rows,
            fingerprint=split.fingerprint,
            label_counts=dict(split.label_counts),
            mean_words=split.words.mean,
            median_words=split.words.median,
            max_words=split.words.max,
        )
        for name, split in data.splits.items()
    ]


def _machines(runs: Sequence[LoadedRun]) -> list[Machine]:
    counts: dict[str, int] = defaultdict(int)
    first: dict[str, EnvironmentRecord] = {}
    for run in runs:
        environment = run.record.environment.model_copy(update={"precision": ""})
        key = environment.model_dump_json()
        counts[key] += 1
        first.setdefault(key, environment)
    return [
        Machine(
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
