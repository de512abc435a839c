"""The norms. RMSNorm has a backward pass of its own: torch's takes twice as long on a CPU, where no kernel is fused."""

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
    kind = RMSNorm if config.norm == "rms" else nn.LayerNorm
    return kind(config.hidden_size, eps=config.rms_norm_eps)


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
