"""From run records to a `Summary`: groups what may be compared, and summarises each group over its seeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from recurra.core.record import EnvironmentRecord
from recurra.study.export_record import ExportRecord
from recurra.study.questions import Contrast, PublishedReference
from recurra.study.report.advice import advise, level_models
from recurra.study.report.audits import audit_lines
from recurra.study.report.comparison import compare_models
from recurra.study.report.conclusions import conclude
from recurra.study.report.contrasts import Judgements, answer_contrasts
from recurra.study.report.export_advice import advise_exports
from recurra.study.report.export_line import ExportLine
from recurra.study.report.exported import export_lines
from recurra.study.report.grouping import TableRuns, group_tables
from recurra.study.report.judging import KnownRows, judge
from recurra.study.report.model_summaries import Latencies, latency_warnings, summarise_model
from recurra.study.report.pareto import mark_fronts
from recurra.study.report.published import published_lines
from recurra.study.report.runs import FailedRun, LoadedRun, read_latency, read_measured_exports, uncollected
from recurra.study.report.summary import Machine, SplitLine, Summary, TableSummary


@dataclass(frozen=True)
class Questions:
    """What a study asks of its records.

    Attributes:
        contrasts: Pairs of models to hold against each other.
        published: Published tables to stand beside ours; none stands for table 6 beside the whole of SST-2.
    """

    contrasts: Sequence[Contrast] = field(default_factory=tuple)
    published: Sequence[PublishedReference] | None = None


NO_QUESTIONS = Questions()


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
    """Summarises runs into tables of models that may be compared; see `recurra.study.report.grouping`.

    Args:
        runs: Finished runs, in any order.
        latency: Content of the study's ``latency.json``, if there is one; preferred to what a run measured alone.
        failed: Runs without a record, to be listed.
        base: Folders of runs inside this one are named relative to it.
        questions: What the study asks.
        exports: Records of exports of these runs.
    """
    measured, warnings = read_latency(latency, runs)
    timed, more = read_measured_exports(latency)
    tables = group_tables(runs)
    known: KnownRows = {}
    judged: Judgements = {
        table.key: {label: judge(label, group, table.headline, known) for label, group in table.groups.items()}
        for table in tables
    }
    return Summary(
        tables=[
            _with_exports(
                _table(table, judged, measured, base, questions),
                export_lines(table, exports, timed, questions.published),
            )
            for table in tables
        ],
        machines=_machines(runs),
        failed_runs=[{"run_id": item.run_id, "reason": item.reason} for item in failed],
        warnings=[*warnings, *more],
    )


def _with_exports(table: TableSummary, lines: list[ExportLine]) -> TableSummary:
    level = level_models(table.models, table.tests, table.headline_split)
    return replace(table, exports=lines, advice=[*table.advice, *advise_exports(lines, level)])


def _table(
    table: TableRuns, judged: Judgements, measured: Latencies, base: Path | None, questions: Questions
) -> TableSummary:
    name, protocol, fingerprint, training, precision = table.key
    headline, kept = table.headline, table.runs
    first = kept[0].record.data
    unmarked = [
        summarise_model(label, index, group, headline=headline, measured=measured, base=base)
        for index, (label, group) in enumerate(table.groups.items())
    ]
    batches = sorted({timing.batch_size for model in unmarked for timing in model.latency.values()})
    models = mark_fronts(unmarked, headline, batches)
    tests = compare_models(judged[table.key])
    audits = audit_lines(table.groups)
    tokenizer = next((run.record.data.tokenizer for run in kept if run.record.data.tokenizer), {})
    return TableSummary(
        key=f"{name}/{protocol}/{training}/{precision}/{fingerprint}",
        title=table.title,
        data=name,
        protocol=protocol,
        variant=table.variant,
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
        contrasts=answer_contrasts(questions.contrasts, table.key, judged),
        published=published_lines(table, models, questions.published),
        conclusion=conclude(models, tests, audits, headline),
        advice=advise(models, tests, audits, headline),
        warnings=[*table.warnings, *latency_warnings(models, kept)],
    )


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
