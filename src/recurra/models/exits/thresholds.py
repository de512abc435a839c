"""Choosing a rule's threshold on rows whose logits at every exit are known. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recurra.core.errors import ConfigurationError
from recurra.models.exits.rules import CONFIDENCE, ExitMeasure, ExitRule, threshold_rule

Floats = npt.NDArray[np.floating[Any]]

# Thresholds that are tried: so many quantiles of what the exits say.
_CANDIDATES = 64
# A row at the threshold stops, also if another batch rounds what its head says differently.
_SLACK = 1e-6


@dataclass(frozen=True)
class CalibratedExits:
    """A rule with the threshold that was chosen, and what it does on the rows that chose it.

    Attributes:
        rule: None if no threshold keeps what is asked for: then no row may stop early.
        quality: What is kept: nats a token of a language model, share of equal labels of a classifier.
    """

    rule: ExitRule | None
    quality: float
    full: float
    exit_counts: Mapping[int, int]

    @property
    def mean_recurrences(self) -> float:
        """Recurrences of a row or token."""
        return sum(number * count for number, count in self.exit_counts.items()) / sum(self.exit_counts.values())

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "rule": None if self.rule is None else self.rule.plain(),
            "quality": self.quality,
            "full": self.full,
            "mean_recurrences": self.mean_recurrences,
            "taken": {str(number): count for number, count in sorted(self.exit_counts.items()) if count},
        }


def calibrate_classifier(
    exit_logits: Mapping[int, Floats], agreement: float, *, kind: str = CONFIDENCE
) -> CalibratedExits:
    """Chooses the threshold that lets most rows stop early while enough labels stay those of the full model."""
    chosen = threshold_rule(kind)
    check_agreement(agreement)
    numbers = sorted(exit_logits)
    if len(numbers) < 2 or not len(exit_logits[numbers[-1]]):
        raise ConfigurationError("nothing to choose a threshold on: no exits, or no rows")
    logits = {number: np.asarray(exit_logits[number], dtype=np.float32) for number in numbers}
    measured = np.concatenate([chosen.measure.of(logits[number]) for number in numbers[:-1]])
    labels = np.stack([logits[number].argmax(-1) for number in numbers])
    best = CalibratedExits(None, 1.0, 1.0, dict.fromkeys(numbers[:-1], 0) | {numbers[-1]: len(labels[-1])})
    for threshold in candidate_thresholds(measured, chosen.measure, _CANDIDATES):
        rule = chosen.make(threshold=threshold)
        depths = depths_under(rule, logits)
        own = labels[np.searchsorted(numbers, depths), np.arange(len(depths))]
        share = float((own == labels[-1]).mean())
        found = CalibratedExits(rule, share, 1.0, {number: int((depths == number).sum()) for number in numbers})
        if share >= agreement and found.mean_recurrences < best.mean_recurrences:
            best = found
    return best


def check_agreement(agreement: float) -> None:
    """Refuses a share that is none."""
    if not 0 < agreement <= 1:
        raise ConfigurationError(f"agreement is {agreement:g}; allowed: above 0, at most 1")


def depths_under(rule: ExitRule, logits: Mapping[int, Floats]) -> npt.NDArray[np.int64]:
    """Returns the recurrences ``(rows,)`` after which rows stop, from their logits ``(rows, labels)`` at all exits.

    The same decisions as in `recurra.models.exits.loop`, where nothing is left to compute.
    """
    *exits, last = sorted(logits)
    depths = np.full(len(logits[last]), last, dtype=np.int64)
    remaining, state = np.ones(len(depths), dtype=np.bool_), None
    for number in exits:
        if rule.asks(number):
            decision = rule.decide(logits[number], number, state=state)
            depths[remaining & decision.exits] = number
            remaining, state = remaining & ~decision.exits, decision.state
    return depths


def candidate_thresholds(measured: Floats, measure: ExitMeasure, count: int) -> list[float]:
    """Returns at most ``count`` thresholds, from the one that lets few rows stop early to the one that lets all."""
    quantiles = np.quantile(measured.astype(np.float64), np.linspace(0, 1, count))
    values = np.unique(np.clip(quantiles * (1 - _SLACK if measure.rises else 1 + _SLACK), _SLACK, None))
    found: list[float] = values.tolist()
    return found[::-1] if measure.rises else found
