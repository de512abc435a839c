"""The norms, and dropout.

RMSNorm has a backward pass of its own: torch's takes twice as long on a CPU, where no kernel is fused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from recurra.models.configuration import RecurraConfig


def make_norm(config: RecurraConfig) -> nn.Module:
    """Returns a new norm of the configured kind over the hidden width."""
    if config.norm == "none":
        return nn.Identity()
    kinds = {"rms": RMSNorm, "layer": nn.LayerNorm, "batch": BatchNorm}
    return kinds[config.norm](config.hidden_size, eps=config.rms_norm_eps)


class BatchNorm(nn.BatchNorm1d):
    """Each channel at mean 0 and variance 1 over all positions of all rows (Ioffe and Szegedy 2015, algorithm 1).

    The published code of "CRT-Deep" offers it. In training a position's state depends on every other position, later
    ones and padding among them, so that a decoder reads the future; in evaluation it depends on running means alone.
    """

    def forward(self, states: Tensor) -> Tensor:
        """Maps ``(batch, tokens, hidden)`` to the same."""
        return super().forward(states.flatten(0, -2)).view(states.shape)


class RMSNorm(nn.RMSNorm):
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last axis (Zhang and Sennrich 2019, equation 4).

    Computed in FP32 if ``x`` is narrower, and returned in the type of ``x``. An accelerator has a fused kernel, which
    is taken there.
    """

    def forward(self, states: Tensor) -> Tensor:
        """Maps ``(..., hidden)`` to the same shape and type."""
        if states.device.type != "cpu":
            # The fused kernel wants one type; autocast gives half precision beside an FP32 scale.
            return super().forward(states.to(self.weight.dtype)).to(states.dtype)
        if torch.is_grad_enabled() and (states.requires_grad or self.weight.requires_grad):
            return _RMSNorm.apply(states, self.weight, self.eps)
        normalised, _ = _normalise(states, self.eps)
        return normalised.mul_(self.weight).to(states.dtype)


def _widened(states: Tensor) -> Tensor:
    """Half precision in FP32; FP32 and FP64 as they are."""
    return states if states.dtype == torch.float64 else states.float()


def _normalise(states: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Returns the states at a root mean square of 1, and the factors ``(..., 1)`` that brought them there."""
    states = _widened(states)
    # One pass over the states instead of squaring them into memory first.
    norm = torch.linalg.vector_norm(states, dim=-1, keepdim=True)
    factor = norm.square_().mul_(1 / states.shape[-1]).add_(eps).rsqrt_()
    return states * factor, factor


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, eps: float) -> Tensor:
        normalised, factor = _normalise(states, eps)
        ctx.save_for_backward(normalised, factor, weight)
        return (normalised * weight).to(states.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        normalised, factor, weight = ctx.saved_tensors
        type_given, gradient = gradient.dtype, _widened(gradient)
        of_weight = (gradient * normalised).flatten(0, -2).sum(0).to(weight.dtype)
        # With n = x f and u = g w:  dL/dx = f (u - n mean(u n)), the last term through f.
        inner = gradient * weight
        along = (inner * normalised).mean(-1, keepdim=True)
        of_states = inner.addcmul_(normalised, along, value=-1).mul_(factor)
        return of_states.to(type_given), of_weight, None


_BITS = 16


class Dropout(nn.Dropout):
    """Zeroes each element with probability ``p`` while training, and scales the others to keep the mean.

    On a CPU, one element takes 16 random bits of torch's default generator, so ``p`` is rounded to a multiple of 2^-16
    and the scale is that of the rounded ``p``. Elsewhere it is torch's own fused kernel.
    """

    def forward(self, states: Tensor) -> Tensor:
        """Maps any shape to the same shape and type."""
        if not self.training or self.p == 0 or states.device.type != "cpu":
            return super().forward(states)
        return states * keep_mask(states, self.p)


def keep_mask(like: Tensor, p: float) -> Tensor:
    """Returns a random mask of the shape and type of ``like``: 0 with probability ``p``, else ``1 / (1 - p)``."""
    dropped = round(p * 2**_BITS)
    count = like.numel()
    words = torch.empty(-(-count * _BITS // 64), dtype=torch.int64).random_(-(2**63), None)
    # Comparing in place leaves 0 or 1 as int16, several times as fast as a comparison that makes booleans.
    kept = words.view(torch.int16)[:count].ge_(dropped - 2 ** (_BITS - 1)).view(like.shape)
    return kept.to(like.dtype).mul_(2**_BITS / (2**_BITS - dropped))
