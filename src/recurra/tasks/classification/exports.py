"""The exports of a table's models: size, accuracy and time by precision; and the published tables."""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recurra.core.record import LatencyRecord
from recurra.deployment.export.formats import storage_order
from recurra.deployment.export_record import WITH_EXITS, ExportedExits, ExportRecord, fits
from recurra.evaluation.significance import mean_interval
from recurra.tasks.classification.measures import ACCURACY
from recurra.tasks.loaded_runs import LoadedRun, TableKey, TableRuns
from recurra.tasks.measures import Estimate, MeasuredExports, estimate
from recurra.tasks.questions import PublishedReference
from recurra.tasks.summary import ModelSummary


@dataclass(frozen=True)
class PublishedTable:
    """One table of the papers.

    Attributes:
        source: Its name in tables beside ours.
        what: The experiment, in words.
        corpora: Names of our corpora that hold the same data; on any other our figures are on other data.
        protocol: The split protocol of those corpora that the papers used.
        precision: Precision of the figures; empty if the papers do not say.
        figures: By preset: accuracy, F1, precision and recall as shares, and milliseconds a text.
        sizes_mib: Size of the weights by preset, where it was published. The papers give parameters times bytes.
    """

    source: str
    what: str
    corpora: list[str]
    protocol: str
    figures: dict[str, list[float | None]]
    precision: str = ""
    sizes_mib: dict[str, float] = field(default_factory=dict)


# The F1 of `recurrent` in table 11 is printed as .8721, which its precision and recall contradict.
PUBLISHED = {
    name: PublishedTable(**table)
    for name, table in json.loads((Path(__file__).parent / "published.json").read_bytes()).items()
}
# Unless a study file says otherwise: table 6 beside the whole of SST-2.
_WHOLE_SST2 = {"name": "sst2", "fraction": 1.0, "length_tail": None}
_DEFAULT = [PublishedReference(table=name, data=_WHOLE_SST2) for name in ("6", "6 early")]


@dataclass(frozen=True)
class PublishedLine:
    """Published figures beside those of one model of ours, ``model``.

    Attributes:
        protocol: The split that was published on.
        precision: None if it was not published; so is ``recall``.
        latency_ms: Milliseconds a text, on a machine that is not named.
        size_mib: Of the weights; none if it was not published.
        difference: Our mean accuracy less the published one; none if ours has no score.
        inside: Whether the published accuracy lies in our 95 % interval; none if we have none.
        basis: What our interval is over: ``seeds`` or ``examples``.
        differs: Conditions that differ between the two; empty if they are comparable.
    """

    model: str
    source: str
    what: str
    protocol: str
    accuracy: float
    f1: float
    precision: float | None
    recall: float | None
    latency_ms: float
    size_mib: float | None
    difference: float | None
    inside: bool | None
    basis: str
    differs: str


def published_lines(
    table: TableRuns, models: Sequence[ModelSummary], references: Sequence[PublishedReference] | None
) -> list[PublishedLine]:
    """The published figures for the models of a table."""
    fitting = _fitting(_DEFAULT if references is None else references, table.runs[0], table.key.precision)
    return [
        _line(model.label, model.preset, published, table.key, ACCURACY.of(model, table.headline))
        for model in models
        for published in fitting
        if model.preset in published.figures
    ]


def _fitting(references: Iterable[PublishedReference], run: LoadedRun, precision: str) -> list[PublishedTable]:
    return [PUBLISHED[reference.table] for reference in references if reference.fits(run.data_settings, precision)]


def _line(
    model: str, preset: str, published: PublishedTable, key: TableKey, accuracy: Estimate | None
) -> PublishedLine:
    names = ("accuracy", "f1", "precision", "recall", "latency_ms")
    figures: dict[str, Any] = dict(zip(names, published.figures[preset], strict=True))
    inside = None
    if accuracy is not None and accuracy.low is not None and accuracy.high is not None:
        inside = accuracy.low <= figures["accuracy"] <= accuracy.high
    differs = {
        "other data": key.data not in published.corpora,
        "another split": key.data in published.corpora and key.protocol != published.protocol,
        "another training": key.training not in ("", "paper"),
        "another precision": published.precision not in ("", key.precision),
    }
    return PublishedLine(
        model=model,
        source=published.source,
        what=published.what,
        protocol=published.protocol,
        **figures,
        size_mib=published.sizes_mib.get(preset),
        difference=None if accuracy is None else accuracy.mean - figures["accuracy"],
        inside=inside,
        basis="" if accuracy is None or inside is None else accuracy.basis,
        differs=", ".join(name for name, other in differs.items() if other),
    )


@dataclass(frozen=True)
class ExportLine:
    """One model of a table, exported in one format and precision, over its seeds, on the headline split.

    Attributes:
        precision: Of the stored weights.
        computed: Precision, engine and device of the computation.
        exits: With texts leaving at the calibrated exits: where they leave; none if all recurrences are computed.
        weights_mib: Size of the file with the weights, median over seeds; ``folder_mib`` that of the whole export.
        gap: Accuracy of the export less that of the run's model computed in FP32, mean over seeds.
        gap_half: Half the 95 % interval of the gap over seeds (Student's t); none with one seed.
        labels_changed: Rows of all seeds that got another label.
        only_export: Rows that only the export got right, and ``only_reference`` those of the run's model alone.
        median_ms: Milliseconds a text by batch size; empty if it was not timed.
        memory_mib: Peak of a process that opens it and labels texts; none if it was not measured.
        published: Published figures of the same preset in this precision.
    """

    model: str
    format: str
    precision: str
    computed: str
    exits: str | None
    seeds: list[int]
    weights_mib: float
    folder_mib: float
    accuracy: Estimate
    gap: float
    gap_half: float | None
    labels_changed: int
    only_export: int
    only_reference: int
    rows: int
    median_ms: dict[str, float]
    p90_ms: dict[str, float]
    p99_ms: dict[str, float]
    memory_mib: float | None
    published: list[PublishedLine]

    @property
    def stored_as(self) -> str:
        """Format and precision, in a table's words."""
        return f"{self.format} {self.precision}{', exits' if self.exits else ''}"


def export_lines(
    table: TableRuns, measured: MeasuredExports, references: Sequence[PublishedReference] | None
) -> list[ExportLine]:
    """Summarises the exports of each model over its seeds, models in the table's order.

    Records of runs outside the table, or of runs that were trained again since, are left out.
    """
    by_run: dict[str, list[ExportRecord]] = defaultdict(list)
    for record in measured.records:
        by_run[record.run_id].append(record)
    lines = []
    for label, runs in table.groups.items():
        kinds: dict[tuple[str, str], list[tuple[LoadedRun, ExportRecord]]] = defaultdict(list)
        for run in runs:
            for record in by_run[run.record.run_id]:
                if table.headline in record.splits and fits(record, run.record):
                    kinds[record.format, record.precision].append((run, record))
        for kind in sorted(kinds, key=lambda item: storage_order(*item)):
            members = kinds[kind]
            lines.append(_export_line(label, table, members, measured, references))
            early = [(run, record) for run, record in members if record.exits and table.headline in record.exits.splits]
            if early:
                lines.append(_export_line(label, table, early, measured, None, exits=True))
    return lines


def _export_line(
    label: str,
    table: TableRuns,
    members: Sequence[tuple[LoadedRun, ExportRecord]],
    measured: MeasuredExports,
    references: Sequence[PublishedReference] | None,
    *,
    exits: bool = False,
) -> ExportLine:
    """One line; with ``exits`` it is of the same exports with texts leaving early."""
    (run, first), records = members[0], [record for _, record in members]
    exit_records = [record.exits for record in records if record.exits] if exits else []
    splits = [source.splits[table.headline] for source in exit_records or records]
    names = [f"{record.run_id}/{record.format}-{record.precision}" for record in records]
    timings = [measured.latency.get(f"{name}{WITH_EXITS if exits else ''}", {}) for name in names]
    gaps = [split.metrics.accuracy - split.reference.accuracy for split in splits]
    accuracy = estimate(ACCURACY, [split.metrics for split in splits])
    assert accuracy is not None
    computed = [record.computation for record in records]
    # Only references for which the study names the precision.
    fitting = _fitting([item for item in references or () if item.precision is not None], run, first.precision)
    preset, key = run.record.model.preset, table.key._replace(precision=first.precision)
    return ExportLine(
        model=label,
        format=first.format,
        precision=first.precision,
        computed="; ".join(dict.fromkeys(f"{how.compute_precision}, {how.engine} on {how.device}" for how in computed)),
        exits=_exits_of_rows(exit_records, table.headline) if exits else None,
        seeds=[run.record.seed for run, _ in members],
        weights_mib=statistics.median(record.weights_bytes for record in records) / 2**20,
        folder_mib=statistics.median(record.folder_bytes for record in records) / 2**20,
        accuracy=accuracy,
        gap=statistics.fmean(gaps),
        gap_half=mean_interval(gaps).half,
        labels_changed=sum(split.labels_changed for split in splits),
        only_export=sum(split.only_export for split in splits),
        only_reference=sum(split.only_reference for split in splits),
        rows=sum(split.metrics.rows for split in splits),
        median_ms=_times(timings, "median_ms"),
        p90_ms=_times(timings, "p90_ms"),
        p99_ms=_times(timings, "p99_ms"),
        memory_mib=max(filter(None, map(measured.memory_mib.get, names)), default=None),
        published=[_line(preset, preset, item, key, accuracy) for item in fitting if preset in item.figures],
    )


def _exits_of_rows(records: Sequence[ExportedExits], split: str) -> str:
    """Where rows leave, over all seeds."""
    taken: Counter[int] = Counter()
    for record in records:
        taken.update(record.taken[split])
    total = max(1, taken.total())
    return ", ".join(f"{count / total:.0%} after {number}" for number, count in sorted(taken.items()))


def _times(timings: Iterable[Mapping[str, LatencyRecord]], field: str) -> dict[str, float]:
    """Median over seeds of one figure, by batch size; batches without it are left out."""
    by_batch: dict[int, list[float]] = defaultdict(list)
    for timing in (timing for export_timings in timings for timing in export_timings.values()):
        if (value := getattr(timing, field)) is not None:
            by_batch[timing.batch_size].append(value)
    return {str(batch): statistics.median(values) for batch, values in sorted(by_batch.items())}
