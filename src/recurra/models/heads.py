"""Heads on the last states: pooling for the classifier, heads over the vocabulary after every exit, and losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from recurra.models.configuration import RecurraConfig


def pool(states: Tensor, pooling: str, attention_mask: Tensor | None, row_lengths: Tensor | None) -> Tensor:
    """Pools ``(batch, tokens, hidden)`` or packed ``(1, tokens, hidden)`` to the classifier's ``(rows, hidden)``."""
    if pooling == "mean":
        return mean(states, attention_mask) if row_lengths is None else mean_of_packed(states, row_lengths)
    if row_lengths is not None:
        return _pool_packed(states, pooling, row_lengths)
    if pooling == "first":
        return states[:, 0]
    if attention_mask is None:
        return states[:, -1] if pooling == "last" else states.amax(dim=1)
    real = attention_mask.bool()
    if pooling == "last":
        last = (real * torch.arange(states.shape[1], device=states.device)).argmax(dim=1)
        return states[torch.arange(len(states), device=states.device), last]
    largest = states.masked_fill(~real[:, :, None], -torch.inf).amax(dim=1)
    return largest.masked_fill(~real.any(dim=1, keepdim=True), 0)


def _pool_packed(states: Tensor, pooling: str, row_lengths: Tensor) -> Tensor:
    if pooling == "first":
        return states[0]
    if pooling == "last":
        return states[0, (row_lengths.cumsum(0) - 1).clamp(min=0)]
    rows = pad_sequence(list(states[0].split(row_lengths.tolist())), batch_first=True, padding_value=-torch.inf)
    return rows.amax(dim=1).masked_fill((row_lengths == 0)[:, None], 0)


def mean(states: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Returns the mean over a row's real tokens, ``(batch, hidden)``; 0 for a row without any."""
    if attention_mask is None:
        return states.mean(dim=1)
    real = attention_mask.bool()
    total = states.masked_fill(~real[:, :, None], 0).sum(dim=1)
    return total / real.sum(dim=1, keepdim=True).clamp(min=1)


def mean_of_packed(states: Tensor, row_lengths: Tensor) -> Tensor:
    """Returns the mean over each row of packed states ``(1, tokens, hidden)``; see `mean`."""
    rows = torch.arange(len(row_lengths), device=states.device).repeat_interleave(row_lengths)
    total = states.new_zeros(len(row_lengths), states.shape[-1]).index_add(0, rows, states[0])
    return total / row_lengths[:, None].clamp(min=1)


class VocabularyHeads(nn.Module):
    """The final head and the exits' heads, without biases (CRT-Deep, section 3.1.2).

    ``shared``: the exits share one head. ``separate``: each has its own. ``tied``: every head is the token table, which
    is passed in, after one linear map to its width (no map if the widths agree).
    """

    def __init__(self, config: RecurraConfig) -> None:
        super().__init__()
        width, table = config.hidden_size, config.token_embedding_size
        self.num_exits = len(config.exits)
        self.tied = config.heads == "tied"
        num_exit_heads = {"shared": min(1, self.num_exits), "separate": self.num_exits, "tied": 0}[config.heads]
        self.final = None if self.tied else nn.Linear(width, config.vocab_size, bias=False)
        self.exits = nn.ModuleList(nn.Linear(width, config.vocab_size, bias=False) for _ in range(num_exit_heads))
        self.projection = nn.Linear(width, table, bias=False) if self.tied and table != width else nn.Identity()

    def weight(self, exit_number: int, table: Tensor) -> Tensor:
        """Returns a head's weight, ``(vocabulary, width of the features)``."""
        if self.final is None:
            return table
        if exit_number == self.num_exits:
            return self.final.weight
        return self.exits[min(exit_number, len(self.exits) - 1)].weight


def weigh_losses(losses: Sequence[Tensor], weight: float) -> Tensor:
    """``(1 - weight) * final + weight * mean of the others`` (CRT-Deep, equation 5); the final loss comes last."""
    *exits, final = losses
    if not exits:
        return final
    return (1 - weight) * final + weight * sum(exits) / len(exits)


IGNORED = -100

# Number of logits held at once: 64 MiB in FP32, 334 tokens of GPT-2's vocabulary.
CHUNK_LOGITS = 2**24


def vocabulary_cross_entropy(
    states: Tensor, weight: Tensor, targets: Tensor, *, chunk_logits: int = CHUNK_LOGITS
) -> Tensor:
    """Sum of ``-log softmax(weight @ state)[target]`` over positions, in FP32; `IGNORED` targets are not counted.

    The logits ``(positions, vocabulary)`` are never held as a whole. A chunk's gradients are computed while its logits
    exist, so that only gradients of states and weight are kept for the backward pass and nothing is computed twice.
    """
    device = states.device.type
    precision = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
    differentiable = torch.is_grad_enabled() and (states.requires_grad or weight.requires_grad)
    chunk = max(1, chunk_logits // len(weight))
    return _VocabularyCrossEntropy.apply(states, weight, targets, (precision, chunk, differentiable))


class _VocabularyCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, targets: Tensor, settings: tuple[torch.dtype, int, bool]
    ) -> Tensor:
        precision, chunk, keep = settings
        with torch.autocast(states.device.type, enabled=False):
            features, table = states.to(precision), weight.to(precision)
            total = torch.zeros((), dtype=_wide(precision), device=states.device)
            state_gradient = torch.empty_like(features) if keep and ctx.needs_input_grad[0] else None
            weight_gradient = (
                torch.zeros_like(weight, dtype=_wide(weight.dtype)) if keep and ctx.needs_input_grad[1] else None
            )
            for first in range(0, len(features), chunk):
                part = slice(first, first + chunk)
                logits = functional.linear(features[part], table).to(total.dtype)
                loss, slope = _loss_and_slope(logits, targets[part])
                total += loss
                slope = slope.to(precision)
                if state_gradient is not None:
                    torch.mm(slope, table, out=state_gradient[part])
                if weight_gradient is not None:
                    weight_gradient.add_(slope.t() @ features[part])
        ctx.save_for_backward(state_gradient, weight_gradient)
        ctx.types = states.dtype, weight.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        state_gradient, weight_gradient = (
            None if saved is None else (saved * gradient.to(saved.dtype)).to(dtype)
            for saved, dtype in zip(ctx.saved_tensors, ctx.types, strict=True)
        )
        return state_gradient, weight_gradient, None, None


def _loss_and_slope(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the sum of losses and its gradient (softmax minus one at the target), which overwrites the logits."""
    is_counted = targets != IGNORED
    target_indices = targets.where(is_counted, 0)[:, None]
    logits.sub_(logits.amax(-1, keepdim=True))
    target_logits = logits.gather(1, target_indices)
    total = logits.exp_().sum(-1, keepdim=True)
    loss = ((total.log() - target_logits) * is_counted[:, None]).sum()
    logits.mul_(total.reciprocal_()).scatter_add_(1, target_indices, torch.full_like(target_logits, -1.0))
    return loss, logits.mul_(is_counted[:, None])


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def next_token_targets(labels: Tensor, attention_mask: Tensor | None) -> Tensor:
    """The target of each position, ``(batch, tokens)``: the label to its right, or `IGNORED`, as at padding."""
    targets = functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    if attention_mask is None:
        return targets
    real = attention_mask.bool()
    followed = functional.pad(real[:, 1:], (0, 1), value=False)
    return targets.masked_fill(~(real & followed), IGNORED)
