"""Figures with their intervals, and what is known of exports, as plain frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from recurra.core.record import LatencyRecord
from recurra.deployment.export.formats.registry import storage_label

Basis = Literal["seeds", "examples", "none"]


# Of a study's ``latency.json``: the share of the time that threads were ready and others had the processors; and from
# which share on the milliseconds mean little. It is below 0.01 on an idle machine, 0.5 where each core has other work.
WAITED, MOST_WAITED = "waited", 0.05


def kept_waiting(latency: Mapping[str, Any] | None) -> float:
    """The share in a study's ``latency.json``; 0 where it was not measured."""
    share = (latency or {}).get(WAITED)
    return float(share) if isinstance(share, int | float) else 0.0


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval.

    Attributes:
        mean: Mean over seeds (with one seed: the figure).
        sd: Standard deviation over seeds, ``None`` for one seed.
        low: Lower end of the interval.
        high: Upper end of the interval.
        values: The figure of each seed, in the order of the seeds.
        basis: What the interval is over: ``seeds`` (Student's t), ``examples`` (for example Wilson for accuracy) or
            ``none`` (no interval).
    """

    mean: float
    sd: float | None
    low: float | None
    high: float | None
    values: tuple[float, ...]
    basis: Basis


@dataclass(frozen=True)
class MeasuredExports:
    """What was measured of a study's exports, by ``RUN/EXPORT``.

    Attributes:
        latency: By batch.
        memory_mib: Peak of a process that opens the export and labels texts.
    """

    latency: Mapping[str, Mapping[str, LatencyRecord]] = field(default_factory=dict)
    memory_mib: Mapping[str, float] = field(default_factory=dict)


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
        return f"{storage_label(self.format, self.precision)}{', exits' if self.exits else ''}"
