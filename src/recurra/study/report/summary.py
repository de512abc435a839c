"""What the report knows, as plain frozen values: everything shown anywhere is read from a `Summary`."""

from __future__ import annotations

from dataclasses import dataclass, field, is_dataclass
from typing import Any, Literal

from recurra.study.report.answers import ContrastLine, PublishedLine
from recurra.study.report.export_line import ExportLine

SUMMARY_VERSION = 2

Basis = Literal["seeds", "examples", "none"]


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval.

    Attributes:
        mean: Mean over seeds (with one seed: the figure).
        sd: Standard deviation over seeds, ``None`` for one seed.
        low: Lower end of the interval.
        high: Upper end of the interval.
        values: The figure of each seed, in the order of the seeds.
        basis: What the interval is over: ``seeds`` (Student's t), ``examples`` (Wilson for accuracy, bootstrap for F1)
            or ``none`` (no interval).
    """

    mean: float
    sd: float | None
    low: float | None
    high: float | None
    values: tuple[float, ...]
    basis: Basis


@dataclass(frozen=True)
class SplitScore:
    """Quality of a model on one split. ``confusion_matrix`` is the sum over seeds, ``[true][predicted]``."""

    split: str
    rows: int
    accuracy: Estimate
    f1: Estimate
    precision: float
    recall: float
    loss: float
    confusion_matrix: list[list[int]]


@dataclass(frozen=True)
class Timing:
    """Time a sample at one batch size, in milliseconds; medians over the runs that were timed."""

    batch_size: int
    samples: int
    median_ms: float
    p90_ms: float
    mean_ms: float
    scope: str
    device: str
    threads: int
    precision: str
    source: Literal["side by side", "own run"]


@dataclass(frozen=True)
class RunEntry:
    """One run behind a figure: enough to find it and to run it again."""

    run_id: str
    folder: str
    model: str
    seed: int
    config_hash: str
    created: str
    version: str
    commit: str | None
    dirty: bool | None
    best_epoch: int
    epochs: int
    training_wall_s: float
    peak_memory_mib: float


@dataclass(frozen=True)
class ModelSummary:
    """One model of a table, over its seeds.

    Attributes:
        label: Name in the table; unlike the preset it is unique there.
        color: Index of its colour and marker in every chart.
        scores: By split.
        latency: By batch size in samples, as text (a key of JSON).
        accuracy_per_million_parameters: Accuracy on the headline split by parameters in millions.
        accuracy_per_gflop: Accuracy on the headline split by GFLOP a token, ``None`` if no FLOPs are recorded.
        fronts: Costs (``latency 1``, ``size``) by which no model of the table is both cheaper and more accurate; see
            `recurra.study.report.pareto`.
        audited: Whether any audit was run on any of its runs.
        failed_audits: Names of the audits that failed for any of its runs.
        failed_groups: The same, by family and split: ``leakage on test``.
    """

    label: str
    preset: str
    kind: str
    description: str
    color: int
    runs: list[RunEntry]
    seeds: list[int]
    deterministic: bool
    scores: dict[str, SplitScore]
    parameters: int
    embedding_parameters: int
    non_embedding_parameters: int
    flops_per_token: float
    file_size_mib: float
    latency: dict[str, Timing]
    training_wall_s: float
    peak_memory_mib: float
    accuracy_per_million_parameters: float
    accuracy_per_gflop: float | None
    fronts: list[str]
    audited: bool
    failed_audits: list[str]
    failed_groups: list[str]


@dataclass(frozen=True)
class SeedTest:
    """McNemar's test of one seed: rows that only the first, or only the second, got right."""

    seeds: tuple[int, int]
    only_first: int
    only_second: int
    p: float
    p_holm: float


@dataclass(frozen=True)
class PairTest:
    """Two models on the same rows of one split.

    Attributes:
        first: Label of the first model.
        second: Label of the second.
        split: The split tested.
        rows: Rows compared; 0 if they could not be.
        gap: Mean accuracy of the first less that of the second.
        low: Lower end of the 95 % paired bootstrap interval of the gap, over rows.
        high: Upper end of it.
        p: Bootstrap p-value.
        p_holm: The same, corrected by Holm over the pairs of the table.
        mcnemar: One test a seed, corrected by Holm over all seeds and pairs of the table.
        odds_ratio: Rows that only the first gets right for each that only the second does, over those seeds (see
            `recurra.evaluation.significance.discordant_odds_ratio`); ``None`` without predictions.
        seeds_apart: Whether every seed of one lies above every seed of the other; ``None`` with one seed.
        supported: Whether a difference is supported: ``p_holm`` below 0.05 and the seeds do not contradict it.
        statement: The finding in words: the gap against what the seed alone moves.
        reason: Why there is no test, or an empty text.
    """

    first: str
    second: str
    split: str
    rows: int
    gap: float
    low: float | None
    high: float | None
    p: float | None
    p_holm: float | None
    mcnemar: list[SeedTest]
    odds_ratio: float | None
    seeds_apart: bool | None
    supported: bool
    statement: str
    reason: str = ""


@dataclass(frozen=True)
class AuditLine:
    """One finding of one audit and whom it concerns.

    Attributes:
        name: For example ``leakage.contained.test``.
        group: What it belongs to, for a reader: ``leakage on test``.
        status: ``passed``, ``failed`` or ``skipped``.
        summary: The finding, with the figure.
        meaning: What it means that it failed; empty otherwise.
        example: A row that shows the failure, or an empty text.
        value: The figure that was judged.
        threshold: What it was judged against.
        concerns: Which runs: ``every run``, or models and seeds.
        scope: ``data`` for audits of the data, ``model`` for audits of a trained model.
        split: The split that was judged, or an empty text.
    """

    name: str
    group: str
    status: str
    summary: str
    meaning: str
    example: str
    value: float | None
    threshold: float | None
    concerns: str
    scope: Literal["data", "model"]
    split: str


@dataclass(frozen=True)
class FailedGroup:
    """Failed audits of one family and split: the same trouble seen by several audits."""

    name: str
    meaning: str
    lines: list[AuditLine]


@dataclass(frozen=True)
class SplitLine:
    """One split as the runs saw it."""

    name: str
    role: str
    rows: int
    fingerprint: str
    label_counts: dict[str, int]
    mean_words: float
    median_words: float
    max_words: int


@dataclass(frozen=True)
class Advice:
    """What to choose for one priority, and why."""

    priority: str
    choice: str
    why: str


@dataclass(frozen=True)
class TableSummary:
    """Models that may be compared: same data, same splits, same training protocol, same precision."""

    key: str
    title: str
    data: str
    protocol: str
    variant: str
    training: str
    precision: str
    fingerprint: str
    tokenizer: dict[str, Any]
    label_names: list[str]
    splits: list[SplitLine]
    dropped: dict[str, int]
    notes: list[str]
    headline_split: str
    reported_splits: list[str]
    batch_sizes: list[int]
    models: list[ModelSummary]
    tests: list[PairTest]
    audits: list[AuditLine]
    contrasts: list[ContrastLine]
    published: list[PublishedLine]
    conclusion: str
    advice: list[Advice]
    warnings: list[str] = field(default_factory=list)
    exports: list[ExportLine] = field(default_factory=list)

    @property
    def failed_audits(self) -> list[AuditLine]:
        """The findings that failed."""
        return [line for line in self.audits if line.status == "failed"]

    @property
    def failed_groups(self) -> list[FailedGroup]:
        """The findings that failed, by family and split."""
        groups: dict[str, list[AuditLine]] = {}
        for line in self.failed_audits:
            groups.setdefault(line.group, []).append(line)
        return [FailedGroup(name, lines[0].meaning, lines) for name, lines in groups.items()]


@dataclass(frozen=True)
class Machine:
    """A machine and set of versions on which some of the runs took place."""

    cpu: str
    cores: int
    threads: int
    accelerator: str | None
    platform: str
    python: str
    packages: dict[str, str]
    runs: int


@dataclass(frozen=True)
class Summary:
    """Everything a report shows in words and tables."""

    tables: list[TableSummary]
    machines: list[Machine]
    failed_runs: list[dict[str, str]]
    warnings: list[str]
    schema_version: int = SUMMARY_VERSION

    def plain(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        values: dict[str, Any] = plain(self)
        return values


def plain(value: Any) -> Any:
    """Plain values of nested dataclasses; `dataclasses.asdict` copies every leaf as if it could change."""
    # Most values are leaves: asking what else they could be is what takes the time.
    if value is None or isinstance(value, (str, float, int)):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return {key: plain(item) for key, item in vars(value).items()} if is_dataclass(value) else value
