"""Depthwise dilated convolution over ``(batch, tokens, channels)``.

A kernel of three is three shifted multiply-adds on the states as they lie in memory. torch's ``Conv1d`` wants channels
before tokens, so that every call transposes twice, and its backward pass on a CPU is several times as slow
(`docs/log.md` has the figures).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class DepthwiseConvolution(nn.Module):
    """``y[t] = sum_k w[k] * x[t - lag_k]``, channel by channel, without bias; what lies outside the row is zero.

    Causal: the lags are ``(kernel - 1) * dilation, ..., dilation, 0``. Otherwise they are centred on 0, and the later
    half reads the future (`nn.Conv1d` with padding on both sides).

    Args:
        channels: Width of the states.
        kernel_size: Number of taps; odd unless causal.
        dilation: Tokens between neighbouring taps.
        causal: Whether no tap reads a later position.
    """

    def __init__(self, channels: int, kernel_size: int, dilation: int, *, causal: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(kernel_size, channels))
        ahead = 0 if causal else kernel_size // 2
        self.lags = tuple((kernel_size - 1 - tap - ahead) * dilation for tap in range(kernel_size))
        self.reset_parameters()

    @property
    def span(self) -> int:
        """Earlier positions that the convolution reads, counted from the position itself."""
        return max(self.lags)

    def reset_parameters(self) -> None:
        """Draws weights as `nn.Conv1d` does: uniform within one over the square root of the taps."""
        bound = self.weight.shape[0] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, states: Tensor) -> Tensor:
        """Maps ``(batch, tokens, channels)`` to the same shape; rows are told apart by the first axis."""
        return _Convolve.apply(states, self.weight.to(states.dtype), self.lags)

    def last(self, window: Tensor) -> Tensor:
        """Maps the last states ``(batch, span + 1, channels)`` to the last position's result, if it is causal."""
        step = max(1, self.span // max(1, len(self.lags) - 1))
        return (window[:, ::step] * self.weight.to(window.dtype)).sum(1, keepdim=True)

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        return f"{self.weight.shape[1]}, kernel_size={self.weight.shape[0]}, lags={self.lags}"


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, lags: Sequence[int]) -> Tensor:
        ctx.save_for_backward(states, weight)
        ctx.lags = lags
        return _shifted_sum(states, weight, lags)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        states, weight = ctx.saved_tensors
        of_states = of_weight = None
        if ctx.needs_input_grad[0]:
            of_states = _shifted_sum(gradient, weight, [-lag for lag in ctx.lags])
        if ctx.needs_input_grad[1]:
            of_weight = torch.stack([_product(*_overlap(gradient, states, lag)) for lag in ctx.lags]).to(weight.dtype)
        return of_states, of_weight, None


def _shifted_sum(states: Tensor, weight: Tensor, lags: Sequence[int]) -> Tensor:
    """Sum of the states shifted by each lag, times that tap's weights."""
    taps = sorted(zip(lags, weight, strict=True), key=lambda tap: abs(tap[0]))
    # One tap reads the position itself, whatever the kernel, and covers every position of the result.
    result = states * taps[0][1]
    for lag, tap in taps[1:]:
        target, source = _overlap(result, states, lag)
        target.addcmul_(source, tap)
    return result


def _overlap(later: Tensor, earlier: Tensor, lag: int) -> tuple[Tensor, Tensor]:
    """Positions of ``later`` that have one ``lag`` before them in ``earlier``, and those."""
    tokens = later.shape[1]
    kept = max(tokens - abs(lag), 0)
    first, second = (tokens - kept, 0) if lag > 0 else (0, tokens - kept)
    return later[:, first : first + kept], earlier[:, second : second + kept]


def _product(first: Tensor, second: Tensor) -> Tensor:
    """Sum of products over batch and tokens, ``(channels,)``, at least in FP32."""
    few_rows = 0 < first.shape[0] <= first.shape[1]
    if first.device.type != "cpu" or not few_rows or first.dtype in (torch.bfloat16, torch.float16):
        return (first * second).sum((0, 1), dtype=torch.promote_types(first.dtype, torch.float32))
    # Row by row a processor's cache holds the sum, and the products are never written out.
    rows: Iterator[tuple[Tensor, Tensor]] = iter(zip(first, second, strict=True))
    start, other = next(rows)
    total = start * other
    for row, other in rows:
        total.addcmul_(row, other)
    return total.sum(0)
