"""The exit rules from their definitions: one row, with plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor


def shares_of(scores: list[float]) -> list[float]:
    """Probabilities, ``exp(s_i) / sum_j exp(s_j)``."""
    powers = [math.exp(score - max(scores)) for score in scores]
    return [power / sum(powers) for power in powers]


def entropy_of(shares: list[float]) -> float:
    """-sum p ln p, in nats."""
    return -sum(share * math.log(share) for share in shares if share > 0)


def stops(rule: Mapping[str, Any], logits: Tensor, recurrence: int) -> bool:
    """Whether a row stops after a recurrence.

    Args:
        rule: As a record has it.
        logits: ``(classes,)``, or ``(positions, classes)``, whose mean decides.
        recurrence: Recurrences computed so far.
    """
    if rule["rule"] == "fixed":
        return recurrence >= int(rule["after"])
    positions = [shares_of(scores) for scores in logits.reshape(-1, logits.shape[-1]).tolist()]
    if rule["rule"] == "entropy":
        return sum(map(entropy_of, positions)) / len(positions) <= float(rule["threshold"])
    threshold = max(float(rule["floor"]), float(rule["start"]) * float(rule["decay"]) ** recurrence)
    return sum(map(max, positions)) / len(positions) >= threshold
