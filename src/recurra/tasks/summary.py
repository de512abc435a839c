"""Content of a report as plain frozen values: everything that is shown is read from a `Summary`.

Tasks add their own values in subclasses of `ModelSummary` and `TableSummary`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, is_dataclass
from types import NoneType
from typing import Any, Literal

from recurra.core.exits_record import ExitsRecord
from recurra.core.record import LatencyRecord, matrix_as_written
from recurra.core.record_parts import ANSWERS
from recurra.tasks.loaded_runs import LoadedRun
from recurra.tasks.measures import Measure, Score

# The priority of the advice that names the model to take if nothing else matters.
RECOMMENDED = "Recommended"
# Limit of p, after correction for the number of tests.
SIGNIFICANCE_LEVEL = 0.05

Verdict = Literal["distinguishable", "by rows only", "not distinguishable", "untested"]


@dataclass(frozen=True)
class ModelSummary:
    """One model of a table, over its seeds.

    Attributes:
        runs: Those on disk, of every seed and fold; folders inside the study are relative to it.
        scores: By split, as its task has them; a `recurra.tasks.measures.Measure` reads its estimate from there.
        latency: By batch size in samples, as text (a key of JSON); medians over the runs that were timed.
        timed: Whether it was timed ``side by side`` with all models, ``earlier``, or by each ``own run`` alone.
        fronts: Costs (``latency 1``, ``size``) by which no model of the table is both cheaper and better; see
            `recurra.report.summary.pareto_front`.
        barred: Why its figures must not be compared; empty if they may be.
        exits: Records of early exit, for the runs that have one.
    """

    label: str
    preset: str
    kind: str
    description: str
    color: int
    runs: list[LoadedRun]
    seeds: list[int]
    scores: dict[str, Any]
    parameters: int
    embedding_parameters: int
    non_embedding_parameters: int
    flops_per_token: float
    file_size_mib: float
    latency: dict[str, LatencyRecord]
    timed: Literal["side by side", "earlier", "own run"]
    training_wall_s: float
    peak_memory_mib: float
    fronts: list[str]
    audited: bool
    failed_audits: list[str]
    failed_groups: list[str]
    barred: str
    price: float | None = field(default=None, kw_only=True)
    exits: list[ExitsRecord] = field(default_factory=list, kw_only=True)

    @property
    def single_ms(self) -> float | None:
        """Median milliseconds a text at batch 1; none if it was not timed."""
        return self.latency["1"].median_ms if "1" in self.latency else None


@dataclass(frozen=True)
class Comparison:
    """``a`` compared with ``b`` on one split: a contrast of the study file, or one of all pairs of a table.

    Attributes:
        name: Name of the contrast; empty for a pair.
        seeds: Pairs of runs compared, one a seed; a model that knows no seed meets every seed of the other.
        gap: The figure of ``a`` less that of ``b``, mean over the pairs.
        half: Half its 95 % interval over seeds (Student's t on the pairs); none with one pair.
        spread: The most that the seed alone moves either model: its best less its worst seed; none with one seed.
        seeds_apart: Whether every seed of one lies above every seed of the other; none with one seed.
        rows: Rows compared; 0 if they could not be, or if the test is by seeds.
        low: Lower end of its 95 % paired bootstrap interval over rows; none if it could not be tested so.
        p: Bootstrap p-value, or that of the paired t-test where there are no rows to draw.
        p_holm: Corrected by Holm over the contrasts, or the pairs, of the table; by seeds over the pairs if both
            are in it.
        odds_ratio: See `recurra.evaluation.significance.discordant_odds_ratio`, over all pairs of runs.
        reason: Why it is untested; or that no seed changes either model, so that only the rows leave uncertainty.
    """

    name: str
    a: str
    b: str
    split: str
    seeds: int
    gap: float
    half: float | None
    spread: float | None
    seeds_apart: bool | None
    rows: int = 0
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    odds_ratio: float | None = None
    verdict: Verdict = "untested"
    statement: str = ""
    reason: str = ""

    @property
    def supported(self) -> bool:
        """Whether the tests support a difference."""
        return self.verdict in ("distinguishable", "by rows only")

    def ahead(self, label: str) -> tuple[float, float] | None:
        """The interval of how far one of the two is ahead of the other: over rows, or else over seeds."""
        low, high = self.low, self.high
        if low is None and self.half is not None:
            low, high = self.gap - self.half, self.gap + self.half
        if low is None or high is None:
            return None
        return (low, high) if label == self.a else (-high, -low)

    @property
    def doubt(self) -> str:
        """Why a gap is not supported although its own interval leaves out 0; empty for any other gap."""
        interval = self.ahead(self.a)
        if self.supported or self.p_holm is None or interval is None or interval[0] <= 0 <= interval[1]:
            return ""
        by_chance = "among so many pairs one may differ by chance"
        return "the seeds overlap" if self.p_holm < SIGNIFICANCE_LEVEL else by_chance


@dataclass(frozen=True)
class LengthLine:
    """Accuracy of a model, or the gap of a contrast in it, by length of text.

    Attributes:
        values: Value on each quarter of the headline split, shortest texts first, by words of its longest text.
        change: For a contrast, the gap on the longest quarter less that on the shortest.
    """

    name: str
    values: dict[int, float]
    change: Comparison | None = None


@dataclass(frozen=True)
class PooledContrast:
    """One contrast over the data sets of a study, under one way of training: what to expect on new data.

    Attributes:
        gaps: By data set, the mean gap of its tables, `Comparison.gap`; each data set counts the same.
        half: Half the 95 % interval of the gap over data sets (Student's t).
        p_holm: Corrected by Holm over the pooled contrasts of the study.
    """

    name: str
    a: str
    b: str
    training: str
    precision: str
    gaps: dict[str, float]
    gap: float
    half: float
    ahead: int
    p: float | None
    p_holm: float | None
    verdict: Verdict
    statement: str = ""


@dataclass(frozen=True)
class AuditLine:
    """One finding of one audit.

    Attributes:
        status: ``passed``, ``note``, ``failed``, ``measured`` or ``skipped``.
        meaning: What a failure or a note means and what to do about it; empty otherwise.
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
class Advice:
    """The choice for one priority, and why.

    Attributes:
        details: The same at length, question by question: how sure, what it costs, what is given up, what would change
            it.
    """

    priority: str
    choice: str | None
    why: str
    details: Sequence[tuple[str, str]] = ()


def unspoiled(models: Sequence[Any], audits: Sequence[AuditLine]) -> list[Any]:
    """The models to choose between: those that failed no audit of their own. A failed data audit concerns all alike.

    A model of which only answers are known cannot be shipped and is left out.
    """
    spoiled = {line.name for line in audits if line.status == "failed" and line.scope == "model"}
    return [model for model in models if model.kind != ANSWERS and not spoiled.intersection(model.failed_audits)]


@dataclass(frozen=True)
class TableSummary:
    """Models that may be compared: same data, same splits, same training protocol, same precision.

    Attributes:
        judged_by: The measure that its tests, drawings and advice use; plain values have its key.
    """

    key: str
    title: str
    data: str
    protocol: str
    variant: str
    subset: str
    training: str
    precision: str
    fingerprint: str
    tokenizer: dict[str, Any]
    splits: Any
    notes: list[str]
    headline_split: str
    judged_by: Measure
    reported_splits: list[str]
    batch_sizes: list[int]
    models: Sequence[Any]
    tests: list[Comparison]
    audits: list[AuditLine]
    contrasts: list[Comparison]
    published: list[Any] = field(default_factory=list)
    conclusion: str = ""
    advice: list[Advice] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    exports: list[Any] = field(default_factory=list)
    by_length: list[LengthLine] = field(default_factory=list)

    @property
    def recommended(self) -> Advice | None:
        """The advice on the model to take if nothing else matters; None if no model can be recommended."""
        return next((item for item in self.advice if item.priority == RECOMMENDED), None)

    @property
    def failed_groups(self) -> dict[str, list[AuditLine]]:
        """The findings that failed, by family and split: the same trouble seen by several audits."""
        groups: dict[str, list[AuditLine]] = {}
        for line in self.audits:
            if line.status == "failed":
                groups.setdefault(line.group, []).append(line)
        return groups


@dataclass(frozen=True)
class Summary:
    """Everything a report shows."""

    tables: list[Any]
    machines: list[dict[str, Any]]
    failed_runs: list[dict[str, str]]
    warnings: list[str]
    task: str = ""
    schema_version: int = 5
    pooled: list[PooledContrast] = field(default_factory=list)


_LEAVES = str, float, int, NoneType


def plain(value: Any) -> Any:
    """Plain values of nested dataclasses and records."""
    if isinstance(value, _LEAVES):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Measure):
        return value.key
    if isinstance(value, Score):
        rest = {key: part for key, part in vars(value).items() if key != "figures" and part}
        if "confusion_matrix" in rest:
            rest["confusion_matrix"] = matrix_as_written(rest["confusion_matrix"])
        figures = {key: {**vars(estimate), "values": [*estimate.values]} for key, estimate in value.figures.items()}
        return {**rest, **figures}
    if isinstance(value, LoadedRun):
        value = _run(value)
    elif is_dataclass(value):
        value = vars(value)
    if isinstance(value, dict):
        return {key: item if isinstance(item, _LEAVES) else plain(item) for key, item in value.items()}
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def _run(run: LoadedRun) -> dict[str, Any]:
    """What it takes to find a run and to run it again."""
    record, code, training = run.record, run.record.code, run.record.training
    return {
        "run_id": record.run_id,
        "folder": run.folder.as_posix(),
        "model": record.model.preset,
        "seed": record.seed,
        "config_hash": record.config_hash,
        "created": record.created,
        "version": code.version,
        "commit": code.commit,
        "dirty": code.dirty,
        "best_epoch": training.best_epoch,
        "epochs": training.epochs,
        "training_wall_s": training.wall_s,
        "peak_memory_mib": training.peak_memory_mib,
    }
