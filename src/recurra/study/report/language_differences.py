"""How far the losses of two language models lie apart, and what of it the seed alone may move."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from scipy import special

from recurra.evaluation.significance import MeanInterval, holm, mean_interval
from recurra.study.report.comparison import SIGNIFICANCE_LEVEL


@dataclass(frozen=True)
class LossDifference:
    """Loss of ``second`` less that of ``first`` in nats a token, seed by seed; 0 or above.

    Attributes:
        first: Label of the one with the lower mean loss on the seeds that both were trained with.
        second: Label of the other.
        seeds: Seeds that both were trained with.
        mean: Mean difference over them.
        low: Lower end of its 95 % interval (Student's t over seeds); none with one seed.
        high: Upper end.
        p: Of the paired t-test; none with one seed, or if every seed gives the same difference.
        p_holm: The same, corrected over the pairs of the table (Holm).
    """

    first: str
    second: str
    seeds: tuple[int, ...]
    mean: float
    low: float | None
    high: float | None
    p: float | None
    p_holm: float | None = None

    @property
    def supported(self) -> bool:
        """Whether the seeds support that the two differ."""
        return is_supported(self.p_holm)


def is_supported(p_holm: float | None) -> bool:
    """Whether a corrected p-value, if there is one, supports a difference."""
    return p_holm is not None and p_holm < SIGNIFICANCE_LEVEL


def loss_differences(losses: Mapping[str, Mapping[int, float]]) -> list[LossDifference]:
    """Holds every two models against each other on the seeds that they share.

    The seed sets the first weights and the order of the texts, so equal seeds are paired. What another text would give
    is not in it: losses are of whole splits.

    Args:
        losses: Of each model by seed, by label.

    Returns:
        A difference for each pair that shares a seed, in the order of the labels.
    """
    found = []
    for first, second in itertools.combinations(losses, 2):
        shared = tuple(sorted(set(losses[first]) & set(losses[second])))
        if shared:
            gaps = [losses[second][seed] - losses[first][seed] for seed in shared]
            found.append(_difference(first, second, shared, gaps))
    corrected = iter(holm([pair.p for pair in found if pair.p is not None]))
    return [pair if pair.p is None else replace(pair, p_holm=next(corrected)) for pair in found]


def _difference(first: str, second: str, seeds: tuple[int, ...], gaps: list[float]) -> LossDifference:
    interval = mean_interval(gaps)
    if interval.mean < 0:
        return _difference(second, first, seeds, [-gap for gap in gaps])
    ends = interval.mean, interval.low, interval.high
    return LossDifference(first, second, seeds, *ends, _p_value(interval, len(seeds)))


def _p_value(interval: MeanInterval, count: int) -> float | None:
    """Of a mean of ``count`` differences being 0, two-sided."""
    if not interval.sd:
        return None
    statistic = interval.mean / (interval.sd / math.sqrt(count))
    return float(2 * special.stdtr(count - 1, -abs(statistic)))
