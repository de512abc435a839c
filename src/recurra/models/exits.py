"""What an exit's head says, in numbers of torch, and who leaves for it under a rule."""

from __future__ import annotations

import torch
from torch import Tensor

from recurra.models.exit_rules import ENTROPY, ExitRule


def leaves(rule: ExitRule, logits: Tensor, recurrence: int, counted: Tensor | None = None) -> Tensor:
    """Decides for each row.

    Args:
        rule: What decides.
        logits: What the head after ``recurrence`` says, ``(rows, classes)`` or ``(rows, positions, classes)``.
        recurrence: Recurrences computed so far.
        counted: ``(rows, positions)``, true at the positions that decide, by their mean; none means all.

    Returns:
        ``(rows,)``, true where a row leaves.
    """
    if rule.reads is None:
        values = torch.ones(logits.shape[:1], device=logits.device)
    else:
        values = mean_of_rows(entropy(logits) if rule.reads == ENTROPY else confidence(logits), counted)
    leaving: Tensor = rule.decides(values, recurrence)
    return leaving


def confidence(logits: Tensor) -> Tensor:
    """Largest probability over the last axis."""
    return (logits - logits.amax(-1, keepdim=True)).exp().sum(-1).reciprocal()


def entropy(logits: Tensor) -> Tensor:
    """Entropy over the last axis, in nats."""
    scores = logits.log_softmax(-1)
    return -(scores.exp() * scores).sum(-1)


def mean_of_rows(values: Tensor, counted: Tensor | None) -> Tensor:
    """Means of ``(rows, positions)`` over the positions that count; ``(rows,)`` as it is."""
    if values.dim() == 1:
        return values
    if counted is None:
        return values.mean(1)
    weights = counted.to(values.dtype)
    return (values * weights).sum(1) / weights.sum(1).clamp(min=1)
