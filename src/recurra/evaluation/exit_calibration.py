"""Thresholds chosen on validation rows: the least careful one that keeps what is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recurra.core.errors import ConfigurationError, unknown
from recurra.evaluation.scoring import BATCH_POSITIONS
from recurra.evaluation.token_exits import ExitScores, score_token_exits
from recurra.models.exits import CONFIDENCE, ENTROPY, ConfidenceRule, EntropyRule, ExitRule, confidence, entropy
from recurra.models.language_modeling import RecurraForCausalLM

KINDS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[float], ExitRule]]] = {
    CONFIDENCE: (confidence, ConfidenceRule.constant),
    ENTROPY: (entropy, EntropyRule),
}
# Thresholds that are tried: so many quantiles of what the exits say. A language model is scored anew with each.
_CANDIDATES = 64
_LANGUAGE_CANDIDATES = 16
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


def calibrate_language(
    model: RecurraForCausalLM,
    texts: Sequence[npt.NDArray[np.integer[Any]]],
    bound: float,
    *,
    first_read: int,
    context: int,
    kind: str = CONFIDENCE,
    batch_positions: int = BATCH_POSITIONS,
) -> CalibratedExits:
    """Chooses the threshold that lets most tokens leave while the loss grows by at most a share ``bound``.

    The loss is that of decoding, filled-in states included (`recurra.evaluation.token_exits`). It need not grow with
    the tokens that leave: where some go deep and others do not, the deep ones read what was filled in. So every
    threshold of a few is measured, and the one with the fewest recurrences is taken.

    Args:
        model: Ours, with exits.
        texts: Validation texts, see `recurra.evaluation.scoring.score_texts`, and so the next.
        bound: Largest growth of the loss as a share of the full model's, for example 0.01.
        first_read: See there.
        context: See there.
        kind: ``confidence`` or ``entropy``.
        batch_positions: See there.

    Raises:
        ConfigurationError: For an impossible bound or kind, or a model without exits.
    """
    measure, make = _kind(kind)
    if not bound >= 0:
        raise ConfigurationError(f"loss bound is {bound:g}; allowed: 0 or above, the share by which it may grow")
    listener = _Listener(measure)

    def score(rule: ExitRule) -> ExitScores:
        return score_token_exits(
            model, texts, rule, first_read=first_read, context=context, batch_positions=batch_positions
        )

    full = score(listener)
    allowed = full.loss * (1 + bound)
    best = CalibratedExits(None, full.loss, full.loss, full.taken)
    for value in _thresholds(torch.cat(listener.heard).numpy(), kind, _LANGUAGE_CANDIDATES):
        rule = make(value)
        scores = score(rule)
        if scores.loss <= allowed and scores.mean_recurrences < best.mean_recurrences:
            best = CalibratedExits(rule, scores.loss, full.loss, scores.taken)
    return best


def calibrate_classifier(
    exit_logits: Mapping[int, npt.NDArray[np.floating[Any]]], agreement: float, *, kind: str = CONFIDENCE
) -> CalibratedExits:
    """Chooses the threshold that lets most rows leave while enough labels stay those of the full model.

    Args:
        exit_logits: Logits ``(rows, labels)`` by recurrence, of all exits and of the last recurrence.
        agreement: Least share of rows whose label is the full model's, for example 0.99.
        kind: ``confidence`` or ``entropy``.

    Raises:
        ConfigurationError: For an impossible agreement or kind, or if there are no exits or no rows.
    """
    measure, make = _kind(kind)
    if not 0 < agreement <= 1:
        raise ConfigurationError(f"agreement is {agreement:g}; allowed: above 0, at most 1")
    numbers = sorted(exit_logits)
    if len(numbers) < 2 or not len(exit_logits[numbers[-1]]):
        raise ConfigurationError("nothing to choose a threshold on: no exits, or no rows")
    logits = {number: torch.from_numpy(np.asarray(exit_logits[number], dtype=np.float32)) for number in numbers}
    heard = torch.cat([measure(logits[number]) for number in numbers[:-1]])
    labels = torch.stack([logits[number].argmax(-1) for number in numbers])
    best = CalibratedExits(None, 1.0, 1.0, dict.fromkeys(numbers[:-1], 0) | {numbers[-1]: len(labels[-1])})
    for value in _thresholds(heard.numpy(), kind):
        rule = make(value)
        depths = depths_under(rule, logits)
        place = torch.searchsorted(torch.tensor(numbers), depths)
        share = float((labels.gather(0, place[None])[0] == labels[-1]).double().mean())
        found = CalibratedExits(rule, share, 1.0, {number: int((depths == number).sum()) for number in numbers})
        if share >= agreement and found.mean_recurrences < best.mean_recurrences:
            best = found
    return best


def depths_under(rule: ExitRule, logits: Mapping[int, Tensor]) -> Tensor:
    """Returns the recurrences ``(rows,)`` that rows take, from their logits ``(rows, labels)`` at all exits."""
    *exits, last = sorted(logits)
    depths = torch.full((len(logits[last]),), last)
    for number in reversed(exits):
        depths[rule.leaves(logits[number], number)] = number
    return depths


def _kind(kind: str) -> tuple[Callable[[Tensor], Tensor], Callable[[float], ExitRule]]:
    if kind not in KINDS:
        raise ConfigurationError(unknown("exit rule to calibrate", kind, KINDS))
    return KINDS[kind]


def _thresholds(heard: npt.NDArray[np.floating[Any]], kind: str, count: int = _CANDIDATES) -> list[float]:
    """Thresholds from the one that lets few rows leave to the one that lets all."""
    quantiles = np.quantile(heard.astype(np.float64), np.linspace(0, 1, count))
    values = np.unique(np.clip(quantiles * (1 + (_SLACK if kind == ENTROPY else -_SLACK)), _SLACK, None))
    found: list[float] = values.tolist()
    return found if kind == ENTROPY else found[::-1]


class _Listener(ExitRule):
    """Lets nobody leave and remembers what the exits say."""

    def __init__(self, measure: Callable[[Tensor], Tensor]) -> None:
        self.measure = measure
        self.heard: list[Tensor] = []

    def leaves(self, logits: Tensor, recurrence: int, counted: Tensor | None = None) -> Tensor:  # noqa: ARG002
        values = self.measure(logits)
        self.heard.append(values.cpu())
        return torch.zeros_like(values, dtype=torch.bool)

    def describe(self) -> str:
        return "none"

    def plain(self) -> dict[str, Any]:
        return {"rule": None}
