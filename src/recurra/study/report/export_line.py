"""What the report knows of exports, as plain frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recurra.study.report.summary import Estimate


@dataclass(frozen=True)
class PublishedExport:
    """Published figures of one preset in one precision; ``difference`` is our accuracy less the published one."""

    source: str
    protocol: str
    accuracy: float
    size_mib: float | None
    latency_ms: float
    difference: float


@dataclass(frozen=True)
class ExportLine:
    """One model of a table, exported in one format and precision, over its seeds, on the headline split.

    Attributes:
        model: Label of the model.
        format: For example ``safetensors``.
        precision: Precision of the stored weights.
        computed: Precision, engine and device of the computation.
        exits: With texts leaving at the calibrated exits: where they leave; none if all recurrences are computed.
        seeds: Seeds of the runs that were exported.
        weights_mib: Size of the file with the weights, median over seeds.
        folder_mib: Size of the whole export.
        accuracy: Of the export.
        f1: Of the export, mean over seeds.
        gap: Accuracy of the export less that of the run's model computed in FP32, mean over seeds.
        gap_half: Half the 95 % interval of the gap over seeds (Student's t); none with one seed.
        largest_gap: The gap of the seed where it is largest.
        labels_changed: Rows of all seeds that got another label.
        only_export: Rows that only the export got right.
        only_reference: Rows that only the run's model got right.
        rows: Rows of all seeds.
        largest_logit_difference: Over the rows of the exports' own checks.
        median_ms: Median milliseconds a text by batch size; empty if it was not timed.
        p90_ms: 90th percentile likewise.
        p99_ms: 99th percentile likewise.
        texts_per_s: Texts a second by batch size.
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
    f1: float
    gap: float
    gap_half: float | None
    largest_gap: float
    labels_changed: int
    only_export: int
    only_reference: int
    rows: int
    largest_logit_difference: float
    median_ms: dict[str, float]
    p90_ms: dict[str, float]
    p99_ms: dict[str, float]
    texts_per_s: dict[str, float]
    memory_mib: float | None
    published: list[PublishedExport]

    @property
    def stored_as(self) -> str:
        """Format and precision, in a table's words."""
        return f"{self.format} {self.precision}{', exits' if self.exits else ''}"
