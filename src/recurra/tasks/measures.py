"""Measures of a task: name, unit and direction, and how a value is read, estimated and written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from recurra.core import terminal as form
from recurra.core.errors import RunError
from recurra.core.record import LatencyRecord
from recurra.evaluation.significance import ClassScore, mean_interval

Basis = Literal["seeds", "examples", "none"]
Latencies = Mapping[str, Mapping[str, LatencyRecord]]


class StudyLatency(BaseModel):
    """Content of a study's ``latency.json``: all models and exports, measured side by side in one process.

    Attributes:
        waited: Share of the time that threads were ready and other programs had the processors. It is below 0.01 on an
            idle machine, 0.5 where each core has other work.
        earlier: Runs that were timed before the others and have been packed since.
    """

    runs: Latencies = {}
    exports: Latencies = {}
    memory_mib: Mapping[str, Annotated[float, Field(strict=True, allow_inf_nan=False)]] = {}
    waited: Annotated[float, Field(strict=True, allow_inf_nan=False)] | None = None
    earlier: Sequence[str] = ()

    def times_of(self, runs: Collection[str]) -> dict[str, Any]:
        """The timings of some runs and their exports, as plain values; empty if there are none."""
        kinds = self.model_dump(mode="json", include={"runs", "exports", "memory_mib"})
        times = {
            kind: {name: value for name, value in values.items() if name.partition("/")[0] in runs}
            for kind, values in kinds.items()
        }
        return {**times, "waited": self.waited} if any(times.values()) else {}


@dataclass(frozen=True)
class Estimate:
    """A figure, its mean over seeds, with its 95 % interval.

    Attributes:
        sd: Standard deviation over seeds; ``None`` for one seed.
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
class Score:
    """Figures of a model on one split, by the key of their measure.

    Attributes:
        confusion_matrix: ``[true][predicted]``, the sum over seeds; empty for texts with several labels.
        labels: For several labels a text: mean precision, recall and F1 of each label, and the rows that have it.
    """

    split: str
    rows: int
    figures: dict[str, Estimate]
    confusion_matrix: list[list[int]] = field(default_factory=list)
    labels: dict[str, dict[str, float]] = field(default_factory=dict)


Interval = tuple[float, float]
RowScore = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[Any]]
# Computes a figure ``(...)`` from how often each row counts, ``(..., rows)``; None counts each row once.
WeightedScore = Callable[[NDArray[np.float64] | None], NDArray[np.float64]]
# The same from true labels ``(rows,)`` and calibrated logits ``(rows, labels)``.
LogitScore = Callable[[NDArray[np.int64], NDArray[np.floating[Any]]], WeightedScore]


@dataclass(frozen=True)
class Measure:
    """One figure of quality.

    Attributes:
        key: Name in CSV and JSON.
        heading: Name in tables and drawings.
        unit: Of a difference of two values, in words: ``points``.
        higher_is_better: Whether more of it is better.
        read: Value of a run from its metrics of one split, as the record has them; None if it was not measured.
        over_rows: 95 % interval of one run over the rows of a split, from the metrics; absent where rows are not drawn.
        paired_by_rows: Whether predictions lie on disk row by row, so that two models are compared on the same
            rows; otherwise runs of equal seeds are compared.
        of_classes: Value from the counts of each class, where it is no mean over rows: rows are then resampled with
            their labels.
        of_logits: Value from calibrated logits, likewise, where it depends on more than the predicted labels.
        of_rows: Value of each row, ``(rows,)``, from true and predicted labels, likewise, where it is a mean over rows.
        limits: Lower and upper limit of all values; None where there is no limit.
        scale: What a difference is multiplied by to be in ``unit``.
        ahead: How a sentence says that one value lies above another.
        behind: How it says that it lies below.
        better: How a sentence describes a model with a better value: ``more accurate``.
        write: Writes a value, where ``digits`` do not suit all of them.
        average: Combines the values of several seeds where no interval is computed, such as by a geometric mean.
    """

    key: str
    heading: str
    unit: str
    higher_is_better: bool
    read: Callable[[Any], float | None]
    over_rows: Callable[[Any], Interval | None] | None = None
    paired_by_rows: bool = False
    of_classes: ClassScore | None = None
    of_logits: LogitScore | None = None
    of_rows: RowScore = np.equal
    limits: tuple[float | None, float | None] = (None, None)
    scale: float = 1.0
    digits: int = 4
    gap_digits: int = 4
    ahead: str = "above"
    behind: str = "below"
    better: str = "better"
    write: Callable[[float], str] | None = None
    average: Callable[[Sequence[float]], float] | None = None

    def of_run(self, metrics: Any) -> float:
        """Value of a run.

        Raises:
            RunError: If the record is older than the measure.
        """
        value = self.read(metrics)
        if value is None:
            raise RunError(f"the record has no {self.in_text}: an earlier version made it; train the model again")
        return value

    def of(self, model: Any, split: str) -> Estimate | None:
        """Estimate of a model on a split, from its summary; none if it was not evaluated there."""
        score = model.scores.get(split)
        return None if score is None else score.figures.get(self.key)

    def mean(self, model: Any, split: str) -> float:
        """Mean of a model that was evaluated on the split."""
        value = self.of(model, split)
        assert value is not None, f"{model.label} was not evaluated on {split}"
        return value.mean

    @property
    def in_text(self) -> str:
        """Its name within a sentence."""
        word = self.heading.split()[0]
        return self.heading if word.isupper() else self.heading[0].lower() + self.heading[1:]

    @property
    def ranks(self) -> bool:
        """Whether it depends on the order of the rows by score, and not on their predicted labels."""
        return self.of_logits is not None

    def merit(self, value: float) -> float:
        """A number that is higher for what is better."""
        return value if self.higher_is_better else -value

    def value(self, value: float) -> str:
        """A value as text."""
        return self.write(value) if self.write else f"{value:.{self.digits}f}"

    def text(self, estimate: Estimate | None) -> str:
        """Mean ± standard deviation, or a dash."""
        if estimate is None:
            return form.NONE
        return self.value(estimate.mean) + (f" ± {estimate.sd:.{self.digits}f}" if estimate.sd else "")

    def gap(self, difference: float, width: str = "", *, unit: bool = True) -> str:
        """A difference, signed: ``+1.2 points``, or with a width ``+1.2 ± 0.3``."""
        return f"{self.signed(difference)}{width}{f' {self.unit}' if unit else ''}"

    def size(self, difference: float, width: str = "") -> str:
        """The size of a difference: ``0.3 points``, ``0.3 ± 0.5 points``."""
        return f"{self.number(abs(difference))}{width} {self.unit}"

    def width(self, half: float | None) -> str:
        """Half an interval of a difference: `` ± 0.5``; empty if there is none."""
        return "" if half is None else f" ± {self.number(half)}"

    def signed(self, difference: float) -> str:
        """A difference without its unit; no sign stands before a zero."""
        return form.signed(difference * self.scale, self.gap_digits)

    def range(self, low: float, high: float) -> str:
        """An interval of a difference without its unit: ``−2.1 to +0.3``."""
        return f"{self.signed(low)} to {self.signed(high)}"

    def number(self, difference: float) -> str:
        """A difference without sign or unit."""
        return f"{difference * self.scale:.{self.gap_digits}f}"


def in_points(key: str, heading: str, **more: Any) -> Measure:
    """A share, more of which is better, that records have under the key of the measure; differences are in points."""
    read = attrgetter(key)
    return Measure(key, heading, "points", True, read, limits=(0.0, 1.0), scale=100.0, gap_digits=1, **more)


def estimate(measure: Measure, metrics: Sequence[Any]) -> Estimate | None:
    """A measure over the seeds of a model, with Student's t interval; with one seed, or equal ones, over rows.

    Seeds that all give the same figure (a deterministic model) would get an interval of no width. It would claim false
    certainty, since the rows are a sample too.

    Returns:
        None if the measure is missing for a seed.
    """
    values = tuple(value for seed_metrics in metrics if (value := measure.read(seed_metrics)) is not None)
    if len(values) < len(metrics):
        return None
    if measure.average is not None:
        return Estimate(measure.average(values), None, None, None, values, "none")
    if (seed_estimate := over_seeds(values, measure.limits)) is not None:
        return seed_estimate
    low, high = (measure.over_rows(metrics[0]) if measure.over_rows else None) or (None, None)
    basis: Basis = "none" if low is None else "examples"
    return Estimate(values[0], 0.0 if len(values) > 1 else None, low, high, values, basis)


def estimates(measures: Sequence[Measure], metrics: Sequence[Any]) -> dict[str, Estimate]:
    """Estimates of the measures that every seed has, by key."""
    return {measure.key: value for measure in measures if (value := estimate(measure, metrics)) is not None}


def over_seeds(values: tuple[float, ...], limits: tuple[float | None, float | None]) -> Estimate | None:
    """Student's t interval over seeds, within the limits; none without two seeds that differ by more than rounding."""
    mean, sd, low, high = mean_interval(values)
    if not sd or low is None or high is None:
        return None
    lowest, highest = limits
    low = low if lowest is None else max(lowest, low)
    high = high if highest is None else min(highest, high)
    return Estimate(mean, sd, low, high, values, "seeds")
