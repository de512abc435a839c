"""Runs of language models aggregated into tables: one for each text, way of reading it, protocol and precision."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from recurra.core.configuration import content_hash
from recurra.core.errors import CheckpointError, RecurraError
from recurra.core.exits_record import ExitsRecord, read_exits
from recurra.core.language_record import FINAL_HEAD, HeadRecord, LanguageEpochRecord, LanguageRunRecord
from recurra.core.record import AuditResult, read_language_record
from recurra.study.report.formatting import words
from recurra.study.report.runs import PLACE_SETTINGS, FailedRun

TASK = "language modelling"
MIB = 2**20
# Its exponential is still a number.
_LARGEST = 700.0


@dataclass(frozen=True)
class LanguageRun:
    """A finished run: the folder it lies in, its record, and what was kept of its exits."""

    folder: Path
    record: LanguageRunRecord
    exits: ExitsRecord | None = None


@dataclass(frozen=True)
class HeadSummary:
    """One head on one split over seeds: the mean loss, and the perplexities and bits that belong to it.

    Perplexities are means of their logarithms over seeds, as losses are; ``sd`` is the loss's, none with one seed.
    """

    loss: float
    sd: float | None
    token_perplexity: float | None
    word_perplexity: float | None
    bits_per_byte: float | None


@dataclass(frozen=True)
class LanguageModelSummary:
    """One model of a table.

    Attributes:
        label: Its name; that of a leaking one says so.
        leaks: Whether the causality audit failed for any seed.
        reach_tokens: How far ahead a prediction reads, at most.
        verdict: What the audits say, in a few words.
        feed_forward: What a cycle is made of, where the run says so.
        as_trained: The final head on the selection split in the kept epoch, cut in blocks as in training: there the
            last position of a block predicts nothing, because its token lies outside. An honest model scores the same
            with it; one that reads ahead can read all that is counted, and not the token that is left out.
        scores: By split and head.
        history: Epochs of each seed.
        exits: What leaving early gave, of the seeds of which it was kept.
    """

    label: str
    leaks: bool
    reach_tokens: int | None
    verdict: str
    failed_audits: list[str]
    seeds: list[int]
    runs: list[dict[str, Any]]
    parameters: int
    non_embedding_parameters: int
    flops_per_token: float
    file_size_mib: float
    training_wall_s: float
    tokens_per_s: float
    steps: int
    feed_forward: str | None
    as_trained: HeadSummary
    scores: dict[str, dict[str, HeadSummary]]
    history: list[list[LanguageEpochRecord]]
    exits: list[ExitsRecord] = field(default_factory=list)


@dataclass(frozen=True)
class LanguageTable:
    """All models on one text, read in one way."""

    key: str
    title: str
    data: str
    reading: str
    protocol: str
    precision: str
    headline_split: str
    splits: dict[str, dict[str, int]]
    notes: list[str]
    conclusion: str
    models: list[LanguageModelSummary]
    audits: list[dict[str, str]]


@dataclass(frozen=True)
class LanguageSummary:
    """Everything that a report of language models shows."""

    tables: list[LanguageTable]
    failed_runs: list[FailedRun]
    task: str = TASK
    machines: list[str] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        values = asdict(self)
        for table, shown in zip(self.tables, values["tables"], strict=True):
            for model, of_model in zip(table.models, shown["models"], strict=True):
                of_model["history"] = [[epoch.model_dump(mode="json") for epoch in run] for run in model.history]
                of_model["exits"] = [exits.model_dump(mode="json") for exits in model.exits]
        return values


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
        conclusion=_conclusion(models, headline),
        models=models,
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
    overrides = first.config.get("model_overrides", {})
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
        feed_forward=overrides.get("feed_forward"),
        as_trained=_head([_as_trained(record) for record in records]),
        scores={
            split: {name: _head([record.metrics[split].heads[name] for record in records]) for name in metrics.heads}
            for split, metrics in first.metrics.items()
        },
        history=[record.training.history for record in records],
        exits=[run.exits for run in runs if run.exits is not None],
    )


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


def _conclusion(models: Sequence[LanguageModelSummary], split: str) -> str:
    """One or two sentences: the best that may be quoted, and what leaks."""
    honest = [model for model in models if not model.leaks]
    parts = []
    if honest:
        best = honest[0]
        score = best.scores[split][FINAL_HEAD]
        by_word = "" if score.word_perplexity is None else f", {score.word_perplexity:,.1f} a word"
        token = "beyond numbers" if score.token_perplexity is None else f"{score.token_perplexity:,.1f}"
        lead = f"Best on {split}" if len(honest) > 1 else f"On {split}"
        parts.append(f"{lead}: {best.label}, perplexity {token} a token{by_word}.")
    for model in models:
        if model.leaks:
            score = model.scores[split][FINAL_HEAD]
            value = score.word_perplexity if score.word_perplexity is not None else score.token_perplexity
            figure = "" if value is None else f" shows {value:,.2f} a word because it"
            parts.append(f"{model.label}{figure} leaks: its predictions read up to {model.reach_tokens} tokens ahead.")
    return " ".join(parts)


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
