"""A language model's threshold, chosen on validation texts: the least careful one that keeps what is asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recurra.core.errors import ConfigurationError
from recurra.evaluation.scoring import BATCH_POSITIONS
from recurra.evaluation.token_exits import ExitScores, score_token_exits
from recurra.models.exit_rules import CONFIDENCE, ENTROPY, ExitRule
from recurra.models.exit_thresholds import CalibratedExits, make_of, thresholds
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
    make = make_of(kind)
    if not bound >= 0:
        raise ConfigurationError(f"loss bound is {bound:g}; allowed: 0 or above, the share by which it may grow")
    listener = _Listener(kind)

    def score(rule: ExitRule) -> ExitScores:
        return score_token_exits(
            model, texts, rule, first_read=first_read, context=context, batch_positions=batch_positions
        )

    full = score(listener)
    allowed = full.loss * (1 + bound)
    best = CalibratedExits(None, full.loss, full.loss, full.taken)
    for value in thresholds(torch.cat(listener.heard).numpy(), kind, _CANDIDATES):
        rule = make(value)
        scores = score(rule)
        if scores.loss <= allowed and scores.mean_recurrences < best.mean_recurrences:
            best = CalibratedExits(rule, scores.loss, full.loss, scores.taken)
    return best


class _Listener(ExitRule):
    """Lets nobody leave and remembers what the exits say."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.heard: list[Tensor] = []

    @property
    def reads(self) -> str | None:
        return self.kind

    def bound(self, recurrence: int) -> float:  # noqa: ARG002
        return -math.inf if self.kind == ENTROPY else math.inf

    def decides(self, values: Tensor, recurrence: int) -> Tensor:
        self.heard.append(values.cpu())
        leaving: Tensor = super().decides(values, recurrence)
        return leaving

    def describe(self) -> str:
        return "none"

    def plain(self) -> dict[str, Any]:
        return {"rule": None}
