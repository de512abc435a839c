"""What a report is told of language models."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recurra.core.configuration import content_hash
from recurra.core.errors import CheckpointError
from recurra.core.exits_record import ExitsRecord, read_exits
from recurra.core.language_record import LanguageMetricsRecord, LanguageRunRecord
from recurra.core.record import AuditResult
from recurra.evaluation.audits.registry import meaning
from recurra.tasks.audits import group_of
from recurra.tasks.drawing import Chart
from recurra.tasks.language import columns
from recurra.tasks.language.conclusions import (
    OVERVIEW,
    as_trained,
    conclude_language,
    cycle,
    reach,
    summarise_head,
    verdict,
)
from recurra.tasks.language.figures import language_charts
from recurra.tasks.language.summary import LOSS, HeadSummary, LanguageModelSummary, LanguageTable
from recurra.tasks.loaded_runs import LoadedRun, TableKey, TableRuns
from recurra.tasks.measures import Measure
from recurra.tasks.questions import Questions
from recurra.tasks.reporting import Alarm, Records, Reporting
from recurra.tasks.summary import AuditLine, ModelSummary, Summary, TableSummary


def _leaking(tables: Sequence[Any]) -> list[tuple[str, str]]:
    return [(model.label, table.title) for table in tables for model in table.models if model.leaks]


class LanguageReporting(Reporting):
    """The next token of running text: nats a token, paired by seeds; what leaks is held against nobody."""

    task = "language modelling"
    measures = (LOSS,)
    tables = columns.TABLES
    splits = columns.SPLITS
    overview = OVERVIEW
    alarms = (Alarm("A model reads the future: do not quote its figures without the word leaks", _leaking),)
    figures_name_their_table = False

    def beside(self, folder: Path, record: LanguageRunRecord) -> ExitsRecord | None:
        """What was kept of the run's exits."""
        exits = read_exits(folder)
        if exits is not None and exits.run_id != record.run_id:
            raise CheckpointError(
                f"the exits kept in '{folder}' are of run '{exits.run_id}', and its record is of '{record.run_id}'; "
                "measure them again: recurra exits RUN --keep"
            )
        return exits

    def key(self, run: LoadedRun) -> TableKey:
        """Runs share a table if text, part of it, way of reading it, training and precision are the same."""
        record = run.record
        part = {name: value for name, value in run.data_settings.items() if name not in ("name", "mode", "context")}
        return TableKey(
            record.data.name,
            record.data.protocol,
            record.data.fingerprint,
            content_hash(part),
            record.training.protocol,
            record.environment.precision,
        )

    def key_text(self, key: TableKey) -> str:
        return "-".join((key.fingerprint, key.protocol, key.part, key.training, key.precision))

    def variant(self, run: LoadedRun) -> str:
        share = run.data_settings.get("fraction", 1)
        return "" if share == 1 else f"{share:.4g} of train"

    def title(self, key: TableKey, variant: str) -> str:
        parts = [key.data, key.protocol, variant, f"{key.training} training", key.precision]
        return " · ".join(part for part in parts if part)

    def label(self, run: LoadedRun) -> str:
        """That of a leaking model says so."""
        return _record(run).label

    def order(self, runs: Sequence[LoadedRun], headline: str) -> tuple[Any, ...]:
        """What may be quoted first, then what leaks; each by quality."""
        records = [_record(run) for run in runs]
        losses = [record.metrics[headline].final.loss for record in records if headline in record.metrics]
        return (any(record.leaks for record in records), statistics.fmean(losses) if losses else float("inf"))

    def barred(self, runs: Sequence[LoadedRun], split: str, measure: Measure) -> str:
        return "its figures leak" if any(_record(run).leaks for run in runs) else ""

    def score(self, split: str, metrics: Sequence[LanguageMetricsRecord], measure: Measure) -> dict[str, HeadSummary]:
        return {name: summarise_head([item.heads[name] for item in metrics]) for name in metrics[0].heads}

    def model(self, common: ModelSummary, runs: Sequence[LoadedRun], headline: str) -> LanguageModelSummary:
        records = [_record(run) for run in runs]
        ahead = reach(records)
        return LanguageModelSummary(
            **{**vars(common), "failed_audits": sorted(common.failed_audits)},
            leaks=any(record.leaks for record in records),
            reach_tokens=ahead,
            verdict=verdict(sorted(common.failed_audits), ahead, audited=bool(records[0].audits)),
            tokens_per_s=statistics.fmean(record.training.tokens_per_s for record in records),
            steps=records[0].training.steps,
            feed_forward=cycle(records[0]),
            as_trained=summarise_head([as_trained(record) for record in records]),
            history=[record.training.history for record in records],
            exits=[run.beside for run in runs if run.beside is not None],
        )

    def split_lines(self, run: LoadedRun) -> dict[str, dict[str, int]]:
        return {
            name: {"tokens": split.tokens, "words": split.words, "bytes": split.bytes}
            for name, split in _record(run).data.splits.items()
        }

    def audit_lines(self, groups: Mapping[str, Sequence[LoadedRun]]) -> list[AuditLine]:
        """Every audit once over the runs of a model: figures of different models are not one finding."""
        lines = []
        for label, runs in groups.items():
            found: dict[str, list[AuditResult]] = defaultdict(list)
            for run in runs:
                for audit in run.record.audits:
                    found[audit.name].append(audit)
            splits = list(runs[0].record.data.splits)
            lines += [_audit_line(label, name, audits, splits) for name, audits in found.items()]
        return sorted(lines, key=lambda line: line.status != "failed")

    def conclude(self, table: TableSummary) -> str:
        return conclude_language(table.models, table.tests, table.headline_split)

    def table(self, common: TableSummary, table: TableRuns, questions: Questions) -> LanguageTable:
        return LanguageTable(**vars(common))

    def charts(self, table: LanguageTable, runs: Records, key: str) -> list[Chart]:
        return language_charts(table, key)

    def as_before(self, summary: Summary, values: dict[str, Any]) -> dict[str, Any]:
        """Keeps the names of summaries of version 2, where ``protocol`` is that of training."""
        values["machines"] = sorted(
            {f"{item.cpu or 'unknown processor'}, {item.threads} thread(s)" for item in summary.machines}
        )
        for table, plain in zip(summary.tables, values["tables"], strict=True):
            plain["reading"], plain["protocol"] = table.protocol, table.training
            plain["differences"] = [
                {
                    **{name: getattr(test, name) for name in ("first", "second", "low", "high", "p", "p_holm")},
                    "seeds": list(test.seeds),
                    "mean": test.gap,
                }
                for test in table.tests
            ]
        return values


def _record(run: LoadedRun) -> LanguageRunRecord:
    if not isinstance(run.record, LanguageRunRecord):
        raise TypeError(f"{run.folder} holds no run of a language model")
    return run.record


def _audit_line(label: str, name: str, audits: Sequence[AuditResult], splits: Sequence[str]) -> AuditLine:
    worst = next((audit for audit in audits if audit.status == "failed"), audits[0])
    group, split = group_of(name, splits)
    return AuditLine(
        name=name,
        group=group,
        status=worst.status,
        summary=worst.summary,
        meaning=meaning(name) if worst.status == "failed" else "",
        example="",
        value=worst.value,
        threshold=worst.threshold,
        concerns=label,
        scope="model",
        split=split,
    )


REPORTING = LanguageReporting()
