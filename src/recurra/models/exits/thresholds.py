"""Chooses a rule's threshold on rows whose logits at every exit are known. Imports no torch.

A threshold that was chosen because it keeps 99 % of the labels of some rows keeps fewer on new rows: it was the
luckiest of many. With a confidence it is a promise instead. A list of thresholds that does not depend on the rows is
tested from the most careful one on, each by the binomial test that fewer labels are kept than asked, and the first
failure ends the list (fixed-sequence testing: Angelopoulos et al. 2021, "Learn then Test", section 3.2). Over the draw
of the rows, and for texts that are exchangeable with them, the chosen threshold then keeps too few labels with a
probability of at most one minus the confidence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recurra.core.errors import ConfigurationError
from recurra.models.exits.rules import CONFIDENCE, ENTROPY, ExitMeasure, ExitRule, threshold_rule

Floats = npt.NDArray[np.floating[Any]]

# Number of thresholds that are tried: quantiles of the exits' measures, or steps of a fixed list.
_CANDIDATES = 64
# Margin by which a row at the threshold stops even if another batch rounds its logits differently.
_SLACK = 1e-6


@dataclass(frozen=True)
class CalibratedExits:
    """The chosen rule, if any; its quality on the rows (nats a token, or share of equal labels) and its exits."""

    rule: ExitRule | None
    quality: float
    full: float
    exit_counts: Mapping[int, int]

    @property
    def mean_recurrences(self) -> float:
        """Mean recurrences of a row or token."""
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
    exit_logits: Mapping[int, Floats], agreement: float, *, kind: str = CONFIDENCE, confidence: float | None = None
) -> CalibratedExits:
    """Chooses the threshold with the fewest recurrences whose labels agree enough with those of the full model.

    With a ``confidence`` the agreement is promised for texts like these rows, over their draw; else for these alone.
    """
    rule_class = threshold_rule(kind)
    check_agreement(agreement, confidence)
    numbers = sorted(exit_logits)
    if len(numbers) < 2 or not len(exit_logits[numbers[-1]]):
        raise ConfigurationError("nothing to choose a threshold on: no exits, or no rows")
    logits = {number: np.asarray(exit_logits[number], dtype=np.float32) for number in numbers}
    labels = np.stack([logits[number].argmax(-1) for number in numbers])
    best = CalibratedExits(None, 1.0, 1.0, dict.fromkeys(numbers[:-1], 0) | {numbers[-1]: len(labels[-1])})
    if confidence is None:
        measured = np.concatenate([rule_class.measure.of(logits[number]) for number in numbers[:-1]])
        candidates = candidate_thresholds(measured, rule_class.measure, _CANDIDATES)
    else:
        check_enough_rows(len(labels[-1]), agreement, confidence)
        candidates = _fixed_thresholds(rule_class.measure, logits[numbers[-1]].shape[-1])
    # An entropy that every row reaches is no threshold; see `EntropyRule.check`.
    uniform_entropy = math.log(logits[numbers[-1]].shape[-1])
    highest = uniform_entropy * (1 - _SLACK) if rule_class.measure.name == ENTROPY else math.inf
    for threshold in dict.fromkeys(min(value, highest) for value in candidates):
        rule = rule_class.make(threshold=threshold)
        depths = depths_under(rule, logits)
        exit_labels = labels[np.searchsorted(numbers, depths), np.arange(len(depths))]
        share = float((exit_labels == labels[-1]).mean())
        result = CalibratedExits(rule, share, 1.0, {number: int((depths == number).sum()) for number in numbers})
        if confidence is not None and not keeps(share, len(depths), agreement, confidence):
            break
        if share >= agreement and result.mean_recurrences < best.mean_recurrences:
            best = result
    return best


def keeps(share: float, rows: int, agreement: float, confidence: float) -> bool:
    """Whether a share of agreeing rows proves an agreement with a confidence, by the exact binomial test."""
    from scipy.special import bdtr  # exports are predicted without it

    lost = rows - round(share * rows)
    return bool(bdtr(lost, rows, 1 - agreement) <= 1 - confidence)


def check_agreement(agreement: float, confidence: float | None = None) -> None:
    """Refuses an agreement or confidence outside its range, and a promise that no rows could prove."""
    if not 0 < agreement <= 1:
        raise ConfigurationError(f"agreement is {agreement:g}; allowed: above 0, at most 1")
    if confidence is None:
        return
    if not 0 < confidence < 1:
        raise ConfigurationError(f"confidence is {confidence:g}; allowed: above 0 and below 1, e.g. 0.95")
    if agreement == 1:
        raise ConfigurationError("no rows can promise an agreement of 1; ask for less, e.g. 0.99, or for no confidence")


def check_enough_rows(rows: int, agreement: float, confidence: float) -> None:
    """Refuses a promise that so few rows could not prove even if every label were kept."""
    least = math.ceil(math.log(1 - confidence) / math.log(agreement))
    if rows < least:
        raise ConfigurationError(
            f"to promise an agreement of {agreement:g} with a confidence of {confidence:g} takes at least {least:,} "
            f"rows, and there are {rows:,}; give more, or ask for less of either"
        )


def depths_under(rule: ExitRule, logits: Mapping[int, Floats]) -> npt.NDArray[np.int64]:
    """The recurrences ``(rows,)`` after which rows stop by their logits at all exits, as in `models/recurrence.py`."""
    *exits, last = sorted(logits)
    depths = np.full(len(logits[last]), last, dtype=np.int64)
    remaining = np.ones(len(depths), dtype=np.bool_)
    for number in exits:
        if rule.asks(number):
            stopping = remaining & rule.decide(logits[number], number, rows=np.arange(len(depths)))
            depths[stopping] = number
            remaining &= ~stopping
    return depths


def _fixed_thresholds(measure: ExitMeasure, labels: int) -> list[float]:
    """Thresholds that do not depend on rows, from one that hardly any row reaches to one that every row reaches."""
    if measure.name not in (CONFIDENCE, ENTROPY):
        raise ConfigurationError(
            f"no promise can be made for exits by '{measure.name}', whose scale is not known; allowed: {CONFIDENCE}, "
            f"{ENTROPY}, or no confidence"
        )
    if measure.rises:
        # Even steps in the log-odds of the largest probability, down to that of an even guess.
        odds = np.linspace(12, -math.log(max(labels - 1, 1)), _CANDIDATES)
        return (1 / (1 + np.exp(-odds))).tolist()
    return np.geomspace(1e-4, math.log(labels), _CANDIDATES).tolist()


def candidate_thresholds(measured: Floats, measure: ExitMeasure, count: int) -> list[float]:
    """Returns at most ``count`` thresholds, from one that lets few rows stop early to one that lets all."""
    quantiles = np.quantile(measured.astype(np.float64), np.linspace(0, 1, count))
    values = np.unique(np.clip(quantiles * (1 - _SLACK if measure.rises else 1 + _SLACK), _SLACK, None))
    return (values[::-1] if measure.rises else values).tolist()
