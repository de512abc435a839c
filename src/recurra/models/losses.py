"""Cross-entropy over a large vocabulary without its logits: a few tokens at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

IGNORED = -100

# Logits held at once: 64 MiB in FP32, 334 tokens of GPT-2's vocabulary.
CHUNK_LOGITS = 2**24


def vocabulary_cross_entropy(
    states: Tensor, weight: Tensor, targets: Tensor, *, chunk_logits: int = CHUNK_LOGITS
) -> Tensor:
    """Sum of ``-log softmax(weight @ state)[target]`` over positions, a scalar in FP32.

    The logits ``(positions, vocabulary)`` are never held as a whole: a chunk's gradients are made while its logits are
    there, so that nothing is kept for the backward pass but a gradient in the shape of the states and one in that of
    the weight, and nothing is computed twice. Without gradients only the loss is computed.

    Args:
        states: ``(positions, width)``; under autocast in any type.
        weight: ``(vocabulary, width)``.
        targets: ``(positions,)`` token ids; `IGNORED` is not counted.
        chunk_logits: Logits held at once.
    """
    device = states.device.type
    precision = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
    differentiable = torch.is_grad_enabled() and (states.requires_grad or weight.requires_grad)
    chunk = max(1, chunk_logits // len(weight))
    return _VocabularyCrossEntropy.apply(states, weight, targets, (precision, chunk, differentiable))


class _VocabularyCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, targets: Tensor, how: tuple[torch.dtype, int, bool]
    ) -> Tensor:
        precision, chunk, keep = how
        with torch.autocast(states.device.type, enabled=False):
            own, table = states.to(precision), weight.to(precision)
            total = torch.zeros((), dtype=_wide(precision), device=states.device)
            of_states = torch.empty_like(own) if keep and ctx.needs_input_grad[0] else None
            of_weight = (
                torch.zeros_like(weight, dtype=_wide(weight.dtype)) if keep and ctx.needs_input_grad[1] else None
            )
            for first in range(0, len(own), chunk):
                part = slice(first, first + chunk)
                logits = functional.linear(own[part], table).to(total.dtype)
                loss, slope = _loss_and_slope(logits, targets[part])
                total += loss
                slope = slope.to(precision)
                if of_states is not None:
                    torch.mm(slope, table, out=of_states[part])
                if of_weight is not None:
                    of_weight.add_(slope.t() @ own[part])
        ctx.save_for_backward(of_states, of_weight)
        ctx.types = states.dtype, weight.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        of_states, of_weight = (
            None if kept is None else (kept * gradient.to(kept.dtype)).to(dtype)
            for kept, dtype in zip(ctx.saved_tensors, ctx.types, strict=True)
        )
        return of_states, of_weight, None, None


def _loss_and_slope(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the sum of losses and its gradient, softmax minus one at the target, which takes the logits' place."""
    counted = targets != IGNORED
    chosen = targets.where(counted, 0)[:, None]
    logits.sub_(logits.amax(-1, keepdim=True))
    of_target = logits.gather(1, chosen)
    total = logits.exp_().sum(-1, keepdim=True)
    loss = ((total.log() - of_target) * counted[:, None]).sum()
    logits.mul_(total.reciprocal_()).scatter_add_(1, chosen, torch.full_like(of_target, -1.0))
    return loss, logits.mul_(counted[:, None])


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def next_token_targets(labels: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Returns what each position is to predict, ``(batch, tokens)``: the label one to the right, or `IGNORED`.

    Not counted are the last position, ignored labels, padding, and what padding would have to predict.

    Args:
        labels: ``(batch, tokens)`` token ids, not shifted; `IGNORED` where nothing is to be predicted.
        attention_mask: ``(batch, tokens)``, non-zero at real tokens; none means no padding.
    """
    targets = functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    if attention_mask is None:
        return targets
    real = attention_mask.bool()
    followed = functional.pad(real[:, 1:], (0, 1), value=False)
    return targets.masked_fill(~(real & followed), IGNORED)
