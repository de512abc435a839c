"""A language model's threshold, chosen on validation texts: the least careful one that keeps what is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recurra.core.errors import ConfigurationError
from recurra.evaluation.scoring import BATCH_POSITIONS
from recurra.evaluation.token_exits import ExitScores, Observe, score_token_exits
from recurra.models.exits.measures import CONFIDENCE, every_row
from recurra.models.exits.registry import threshold_rule
from recurra.models.exits.rule import Decision, ExitRule
from recurra.models.exits.thresholds import CalibratedExits, candidate_thresholds
from recurra.models.language_modeling import RecurraForCausalLM

# Thresholds that are tried: the model is scored anew with each.
_CANDIDATES = 16


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
    """Chooses the threshold that lets most tokens stop early while the loss grows by at most a share ``bound``.

    The loss is that of decoding, filled-in states included (`recurra.evaluation.token_exits`). It need not grow with
    the tokens that stop: where some go deep and others do not, the deep ones read what was filled in. So every
    threshold of a few is measured, and the one with the fewest recurrences is taken.

    Args:
        model: Ours, with exits.
        texts: Validation texts, see `recurra.evaluation.scoring.score_texts`, and so the next.
        bound: Largest growth of the loss as a share of the full model's, for example 0.01.
        first_read: See there.
        context: See there.
        kind: Name of a rule with a threshold: ``confidence`` or ``entropy``.
        batch_positions: See there.

    Raises:
        ConfigurationError: For an impossible bound or kind, or a model without exits.
    """
    chosen = threshold_rule(kind)
    if not bound >= 0:
        raise ConfigurationError(f"loss bound is {bound:g}; allowed: 0 or above, the share by which it may grow")
    measured: list[Tensor] = []

    def measure(recurrence: int, logits: Tensor) -> None:
        if recurrence < model.config.num_recurrences:
            measured.append(chosen.measure.of(logits).cpu())

    def score(rule: ExitRule, observe: Observe | None = None) -> ExitScores:
        return score_token_exits(
            model,
            texts,
            rule,
            first_read=first_read,
            context=context,
            batch_positions=batch_positions,
            observe=observe,
        )

    full = score(_NeverStops(), measure)
    allowed = full.loss * (1 + bound)
    best = CalibratedExits(None, full.loss, full.loss, full.exit_counts)
    for threshold in candidate_thresholds(torch.cat(measured).numpy(), chosen.measure, _CANDIDATES):
        rule = chosen.make(threshold=threshold)
        scores = score(rule)
        if scores.loss <= allowed and scores.mean_recurrences < best.mean_recurrences:
            best = CalibratedExits(rule, scores.loss, full.loss, scores.exit_counts)
    return best


@dataclass(frozen=True)
class _NeverStops(ExitRule):
    """Has every exit's head read, and stops nothing there."""

    name: ClassVar[str] = "never"

    def decide(self, logits: Any, recurrence: int, *, counted: Any = None, state: Any = None) -> Decision:  # noqa: ARG002
        return Decision(~every_row(logits))

    def describe(self) -> str:
        return "never before the last recurrence"
