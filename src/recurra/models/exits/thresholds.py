"""Choosing a rule's threshold on rows whose logits at every exit are known. Imports no torch.

A threshold that was chosen because it keeps 99 % of the labels of some rows keeps fewer of the next: it was the
luckiest of many. With a confidence it is a promise instead. Thresholds of a list that no row has a say in are tested
from the most careful on, each by the binomial test that fewer labels are kept than asked, and the first that fails ends
the list (fixed-sequence testing: Angelopoulos et al. 2021, "Learn then Test", section 3.2). Over the draw of the rows,
and for texts that are exchangeable with them, the chosen one then keeps too few with at most the probability that is
left.
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

# Thresholds that are tried: so many quantiles of what the exits say.
_CANDIDATES = 64
# A row at the threshold stops, also if another batch rounds what its head says differently.
_SLACK = 1e-6


@dataclass(frozen=True)
class CalibratedExits:
    """The rule that was chosen, if any; what it keeps (nats a token, share of equal labels) and does on the rows."""

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
    exit_logits: Mapping[int, Floats], agreement: float, *, kind: str = CONFIDENCE, confidence: float | None = None
) -> CalibratedExits:
    """Chooses the threshold that lets most rows stop early while enough labels stay those of the full model.

    With a ``confidence`` the agreement is promised for texts like these rows, over their draw; else for these alone.
    """
    chosen = threshold_rule(kind)
    check_agreement(agreement, confidence)
    numbers = sorted(exit_logits)
    if len(numbers) < 2 or not len(exit_logits[numbers[-1]]):
        raise ConfigurationError("nothing to choose a threshold on: no exits, or no rows")
    logits = {number: np.asarray(exit_logits[number], dtype=np.float32) for number in numbers}
    labels = np.stack([logits[number].argmax(-1) for number in numbers])
    best = CalibratedExits(None, 1.0, 1.0, dict.fromkeys(numbers[:-1], 0) | {numbers[-1]: len(labels[-1])})
    if confidence is None:
        measured = np.concatenate([chosen.measure.of(logits[number]) for number in numbers[:-1]])
        candidates = candidate_thresholds(measured, chosen.measure, _CANDIDATES)
    else:
        check_enough_rows(len(labels[-1]), agreement, confidence)
        candidates = _fixed_thresholds(chosen.measure, logits[numbers[-1]].shape[-1])
    # An entropy that every row reaches is no threshold; see `EntropyRule.check`.
    even = math.log(logits[numbers[-1]].shape[-1])
    highest = even * (1 - _SLACK) if chosen.measure.name == ENTROPY else math.inf
    for threshold in dict.fromkeys(min(value, highest) for value in candidates):
        rule = chosen.make(threshold=threshold)
        depths = depths_under(rule, logits)
        own = labels[np.searchsorted(numbers, depths), np.arange(len(depths))]
        share = float((own == labels[-1]).mean())
        found = CalibratedExits(rule, share, 1.0, {number: int((depths == number).sum()) for number in numbers})
        if confidence is not None and not keeps(share, len(depths), agreement, confidence):
            break
        if share >= agreement and found.mean_recurrences < best.mean_recurrences:
            best = found
    return best


def keeps(share: float, rows: int, agreement: float, confidence: float) -> bool:
    """Whether a share of rows that agree shows an agreement with a confidence, by the exact binomial test."""
    from scipy.special import bdtr  # exports are predicted without it

    lost = rows - round(share * rows)
    return bool(bdtr(lost, rows, 1 - agreement) <= 1 - confidence)


def check_agreement(agreement: float, confidence: float | None = None) -> None:
    """Refuses a share that is none, and a promise that no rows could show."""
    if not 0 < agreement <= 1:
        raise ConfigurationError(f"agreement is {agreement:g}; allowed: above 0, at most 1")
    if confidence is None:
        return
    if not 0 < confidence < 1:
        raise ConfigurationError(f"confidence is {confidence:g}; allowed: above 0 and below 1, e.g. 0.95")
    if agreement == 1:
        raise ConfigurationError("no rows can promise an agreement of 1; ask for less, e.g. 0.99, or for no confidence")


def check_enough_rows(rows: int, agreement: float, confidence: float) -> None:
    """Refuses a promise that so few rows cannot show, were every label kept."""
    least = math.ceil(math.log(1 - confidence) / math.log(agreement))
    if rows < least:
        raise ConfigurationError(
            f"to promise an agreement of {agreement:g} with a confidence of {confidence:g} takes at least {least:,} "
            f"rows, and there are {rows:,}; give more, or ask for less of either"
        )


def depths_under(rule: ExitRule, logits: Mapping[int, Floats]) -> npt.NDArray[np.int64]:
    """The recurrences ``(rows,)`` after which rows stop by their logits at all exits, decided as in `exits/loop.py`."""
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
    """Thresholds that no row has a say in, from one that hardly any row reaches to one that every row does."""
    if measure.name not in (CONFIDENCE, ENTROPY):
        raise ConfigurationError(
            f"no promise can be made for exits by '{measure.name}', whose scale is not known; allowed: {CONFIDENCE}, "
            f"{ENTROPY}, or no confidence"
        )
    if measure.rises:
        # Even steps in the log-odds of the largest probability, down to that of an even guess.
        odds = np.linspace(12, -math.log(max(labels - 1, 1)), _CANDIDATES)
        values = 1 / (1 + np.exp(-odds))
    else:
        values = np.geomspace(1e-4, math.log(labels), _CANDIDATES)
    thresholds: list[float] = values.tolist()
    return thresholds


def candidate_thresholds(measured: Floats, measure: ExitMeasure, count: int) -> list[float]:
    """Returns at most ``count`` thresholds, from the one that lets few rows stop early to the one that lets all."""
    quantiles = np.quantile(measured.astype(np.float64), np.linspace(0, 1, count))
    values = np.unique(np.clip(quantiles * (1 - _SLACK if measure.rises else 1 + _SLACK), _SLACK, None))
    found: list[float] = values.tolist()
    return found[::-1] if measure.rises else found
