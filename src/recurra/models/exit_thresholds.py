"""A classifier's threshold: the least careful one that keeps what is asked for. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recurra.core.errors import ConfigurationError, unknown
from recurra.models.exit_rules import CONFIDENCE, ENTROPY, ConfidenceRule, EntropyRule, ExitRule

Floats = npt.NDArray[np.floating[Any]]

KINDS: dict[str, Callable[[float], ExitRule]] = {CONFIDENCE: ConfidenceRule.constant, ENTROPY: EntropyRule}
# Thresholds that are tried: so many quantiles of what the exits say.
_CANDIDATES = 64
# A row at the threshold leaves, also if another batch rounds what its head says differently.
_SLACK = 1e-6


@dataclass(frozen=True)
class CalibratedExits:
    """A rule with the threshold that was chosen, and what it does on the rows that chose it.

    Attributes:
        rule: None if no threshold keeps what is asked for: then no row may leave.
        quality: What is kept: nats a token of a language model, share of equal labels of a classifier.
        full: The same without the rule.
        taken: Rows or tokens by the recurrences that they take.
    """

    rule: ExitRule | None
    quality: float
    full: float
    taken: Mapping[int, int]

    @property
    def mean_recurrences(self) -> float:
        """Recurrences of a row or token."""
        return sum(number * count for number, count in self.taken.items()) / sum(self.taken.values())

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "rule": None if self.rule is None else self.rule.plain(),
            "quality": self.quality,
            "full": self.full,
            "mean_recurrences": self.mean_recurrences,
            "taken": {str(number): count for number, count in sorted(self.taken.items()) if count},
        }


def calibrate_classifier(
    exit_logits: Mapping[int, Floats], agreement: float, *, kind: str = CONFIDENCE
) -> CalibratedExits:
    """Chooses the threshold that lets most rows leave while enough labels stay those of the full model.

    Args:
        exit_logits: Logits ``(rows, labels)`` by recurrence, of all exits and of the last recurrence.
        agreement: Least share of rows whose label is the full model's, for example 0.99.
        kind: ``confidence`` or ``entropy``.

    Raises:
        ConfigurationError: For an impossible agreement or kind, or if there are no exits or no rows.
    """
    make = make_of(kind)
    check_agreement(agreement)
    numbers = sorted(exit_logits)
    if len(numbers) < 2 or not len(exit_logits[numbers[-1]]):
        raise ConfigurationError("nothing to choose a threshold on: no exits, or no rows")
    logits = {number: np.asarray(exit_logits[number], dtype=np.float32) for number in numbers}
    heard = np.concatenate([_read(kind, logits[number]) for number in numbers[:-1]])
    labels = np.stack([logits[number].argmax(-1) for number in numbers])
    best = CalibratedExits(None, 1.0, 1.0, dict.fromkeys(numbers[:-1], 0) | {numbers[-1]: len(labels[-1])})
    for value in thresholds(heard, kind, _CANDIDATES):
        rule = make(value)
        depths = depths_under(rule, logits)
        own = labels[np.searchsorted(numbers, depths), np.arange(len(depths))]
        share = float((own == labels[-1]).mean())
        found = CalibratedExits(rule, share, 1.0, {number: int((depths == number).sum()) for number in numbers})
        if share >= agreement and found.mean_recurrences < best.mean_recurrences:
            best = found
    return best


def check_agreement(agreement: float) -> None:
    """Refuses a share that is none.

    Raises:
        ConfigurationError: If it is not above 0 and at most 1.
    """
    if not 0 < agreement <= 1:
        raise ConfigurationError(f"agreement is {agreement:g}; allowed: above 0, at most 1")


def depths_under(rule: ExitRule, logits: Mapping[int, Floats]) -> npt.NDArray[np.int64]:
    """Returns the recurrences ``(rows,)`` that rows take, from their logits ``(rows, labels)`` at all exits."""
    *exits, last = sorted(logits)
    depths = np.full(len(logits[last]), last, dtype=np.int64)
    for number in reversed(exits):
        if rule.asks(number):
            depths[rule.decides(_read(rule.reads, logits[number]), number)] = number
    return depths


def make_of(kind: str) -> Callable[[float], ExitRule]:
    """What makes a rule of a threshold.

    Raises:
        ConfigurationError: If there is no such rule, or it has no threshold.
    """
    if kind not in KINDS:
        raise ConfigurationError(unknown("exit rule to calibrate", kind, KINDS))
    return KINDS[kind]


def thresholds(heard: Floats, kind: str, count: int) -> list[float]:
    """At most ``count`` thresholds from the one that lets few rows leave to the one that lets all."""
    quantiles = np.quantile(heard.astype(np.float64), np.linspace(0, 1, count))
    values = np.unique(np.clip(quantiles * (1 + (_SLACK if kind == ENTROPY else -_SLACK)), _SLACK, None))
    found: list[float] = values.tolist()
    return found if kind == ENTROPY else found[::-1]


def _read(what: str | None, logits: Floats) -> Floats:
    """Confidence or entropy of each row, ``(rows,)``, as `recurra.models.exits` has them."""
    scores = logits - logits.max(axis=-1, keepdims=True)
    powers = np.exp(scores)
    total = powers.sum(axis=-1)
    if what != ENTROPY:
        return np.asarray(1 / total)
    return np.asarray(np.log(total) - (powers * scores).sum(axis=-1) / total)
