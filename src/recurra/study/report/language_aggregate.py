"""Runs of language models aggregated into tables: one for each text, way of reading it, protocol and precision."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from recurra.core.configuration import content_hash
from recurra.core.errors import CheckpointError, RecurraError
from recurra.core.exits_record import read_exits
from recurra.core.language_record import FINAL_HEAD, HeadRecord, LanguageRunRecord
from recurra.core.record import AuditResult, read_language_record
from recurra.models.names import LANGUAGE_PRESETS
from recurra.study.report.formatting import words
from recurra.study.report.language_conclusions import conclude_language
from recurra.study.report.language_differences import loss_differences
from recurra.study.report.language_summary import (
    HeadSummary,
    LanguageModelSummary,
    LanguageRun,
    LanguageSummary,
    LanguageTable,
)
from recurra.study.report.runs import PLACE_SETTINGS, FailedRun

MIB = 2**20
# Its exponential is still a number.
_LARGEST = 700.0


def load_language_runs(
    folders: Iterable[Path], failures: Mapping[str, str] | None = None
) -> tuple[list[LanguageRun], list[FailedRun]]:
    """Reads every record that can be read and names every one that cannot."""
    finished: list[LanguageRun] = []
    failed = dict(failures or {})
    for folder in folders:
        try:
            finished.append(_load(Path(folder)))
        except RecurraError as error:
            failed.setdefault(Path(folder).name, str(error))
    return finished, [FailedRun(name, " ".join(reason.split())) for name, reason in failed.items()]


def _load(folder: Path) -> LanguageRun:
    record, exits = read_language_record(folder), read_exits(folder)
    if exits is not None and exits.run_id != record.run_id:
        raise CheckpointError(
            f"the exits kept in '{folder}' are of run '{exits.run_id}', and its record is of '{record.run_id}'; "
            "measure them again: recurra exits RUN --keep"
        )
    return LanguageRun(folder, record, exits)


def summarise_language(runs: Sequence[LanguageRun], failed: Sequence[FailedRun] = ()) -> LanguageSummary:
    """Aggregates runs of language models."""
    tables: dict[tuple[str, ...], list[LanguageRun]] = defaultdict(list)
    for run in runs:
        record = run.record
        data = record.config.get("data", {})
        part = content_hash({key: value for key, value in data.items() if key not in ("name", "mode", "context")})
        key = (record.data.fingerprint, record.data.protocol, part)
        tables[*key, record.training.protocol, record.environment.precision].append(run)
    places = [run.record.environment for run in runs]
    machines = {f"{place.cpu or 'unknown processor'}, {place.threads} thread(s)" for place in places}
    made = [_table("-".join(key), members) for key, members in tables.items()]
    return LanguageSummary(made, list(failed), machines=sorted(machines))


def _table(key: str, runs: Sequence[LanguageRun]) -> LanguageTable:
    by_model: dict[str, list[LanguageRun]] = defaultdict(list)
    for run in runs:
        settings = {name: value for name, value in run.record.config.items() if name not in PLACE_SETTINGS}
        by_model[content_hash([run.record.label, settings])].append(run)
    first = runs[0].record
    headline = first.data.reported_splits[-1]
    models = [_model(sorted(members, key=lambda run: run.record.seed)) for members in by_model.values()]
    # What may be quoted first, then what leaks; each by quality.
    models.sort(key=lambda model: (model.leaks, model.scores[headline][FINAL_HEAD].loss))
    honest = [model for model in models if not model.leaks]
    differences = loss_differences(
        {
            model.label: dict(zip(model.seeds, model.scores[headline][FINAL_HEAD].losses, strict=True))
            for model in honest
        }
    )
    share = first.config.get("data", {}).get("fraction", 1)
    part = "" if share == 1 else f" · {share:.4g} of train"
    title = f"{first.data.name} · {first.data.protocol}{part} · {first.training.protocol} training"
    return LanguageTable(
        key=key,
        title=f"{title} · {first.environment.precision}",
        data=first.data.name,
        reading=first.data.protocol,
        protocol=first.training.protocol,
        precision=first.environment.precision,
        headline_split=headline,
        splits={
            name: {"tokens": split.tokens, "words": split.words, "bytes": split.bytes}
            for name, split in first.data.splits.items()
        },
        notes=first.data.notes,
        conclusion=conclude_language(models, differences, headline),
        models=models,
        differences=differences,
        audits=_audits(models, by_model.values()),
    )


def _model(runs: Sequence[LanguageRun]) -> LanguageModelSummary:
    records = [run.record for run in runs]
    first = records[0]
    leaking = [record for record in records if record.leaks]
    failed = sorted({audit.name for record in records for audit in record.failed_audits()})
    reaches = [
        int(audit.value)
        for record in leaking
        for audit in record.failed_audits()
        if audit.name.startswith("causality.") and audit.value is not None
    ]
    reach = max(reaches, default=None)
    return LanguageModelSummary(
        label=first.label,
        leaks=bool(leaking),
        reach_tokens=reach,
        verdict=_verdict(failed, reach, audited=bool(first.audits)),
        failed_audits=failed,
        seeds=[record.seed for record in records],
        runs=[{"run_id": run.record.run_id, "seed": run.record.seed, "folder": run.folder.as_posix()} for run in runs],
        parameters=first.model.parameters,
        non_embedding_parameters=first.model.non_embedding_parameters,
        flops_per_token=first.model.flops_per_token,
        file_size_mib=first.model.file_size_bytes / MIB,
        training_wall_s=statistics.fmean(record.training.wall_s for record in records),
        tokens_per_s=statistics.fmean(record.training.tokens_per_s for record in records),
        steps=first.training.steps,
        feed_forward=_cycle(first.config),
        as_trained=_head([_as_trained(record) for record in records]),
        scores={
            split: {name: _head([record.metrics[split].heads[name] for record in records]) for name in metrics.heads}
            for split, metrics in first.metrics.items()
        },
        history=[record.training.history for record in records],
        exits=[run.exits for run in runs if run.exits is not None],
    )


def _cycle(config: Mapping[str, Any]) -> str | None:
    """What a cycle is made of: by a change that the run names, else by its preset."""
    changes = config.get("model_overrides", {})
    _, shape = LANGUAGE_PRESETS.get(changes.get("preset", config.get("model")), ("", {}))
    return {**shape, **changes}.get("feed_forward")


def _as_trained(record: LanguageRunRecord) -> HeadRecord:
    kept = next(epoch for epoch in record.training.history if epoch.epoch == record.training.best_epoch)
    loss = kept.validation_heads[FINAL_HEAD]
    split = record.data.splits[record.data.selection_split]
    by_word = loss * split.tokens / split.words
    lossless = record.data.tokenizer.get("lossless", False)
    return HeadRecord(
        loss=loss,
        token_perplexity=math.exp(loss) if loss < _LARGEST else None,
        word_perplexity=math.exp(by_word) if lossless and by_word < _LARGEST else None,
        bits_per_byte=None,
    )


def _verdict(failed: Sequence[str], reach: int | None, *, audited: bool) -> str:
    if reach is not None:
        # Too good is what a leak looks like.
        others = [name for name in failed if not name.startswith(("causality.", "perplexity."))]
        return f"LEAKS: reads {reach} tokens ahead{f'; also failed: {words(others)}' if others else ''}"
    if failed:
        return f"FAILED: {words(list(failed))}"
    return "passed" if audited else "none run"


def _head(heads: Sequence[Any]) -> HeadSummary:
    losses = [head.loss for head in heads]
    return HeadSummary(
        loss=statistics.fmean(losses),
        losses=tuple(losses),
        sd=statistics.stdev(losses) if len(losses) > 1 else None,
        token_perplexity=_geometric([head.token_perplexity for head in heads]),
        word_perplexity=_geometric([head.word_perplexity for head in heads]),
        bits_per_byte=_mean([head.bits_per_byte for head in heads]),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def _geometric(values: Sequence[float | None]) -> float | None:
    known = [math.log(value) for value in values if value is not None]
    return math.exp(statistics.fmean(known)) if known and len(known) == len(values) else None


def _audits(models: Sequence[LanguageModelSummary], members: Iterable[Sequence[LanguageRun]]) -> list[dict[str, str]]:
    """Every audit once over the runs of a model, the failed first."""
    found: dict[tuple[str, str], list[AuditResult]] = defaultdict(list)
    for runs in members:
        for run in runs:
            for audit in run.record.audits:
                found[run.record.label, audit.name].append(audit)
    order = [model.label for model in models]
    lines = []
    for (label, name), audits in found.items():
        worst = next((audit for audit in audits if audit.status == "failed"), audits[0])
        lines.append({"status": worst.status, "name": name, "summary": worst.summary, "concerns": label})
    return sorted(lines, key=lambda line: (line["status"] != "failed", order.index(line["concerns"])))
