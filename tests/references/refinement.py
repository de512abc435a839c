"""Cycles of refinement from their formulas alone: one row, one position, one tap at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]


def gelu(vector: Tensor) -> Tensor:
    """x times the normal distribution function of x."""
    return vector * (1 + torch.erf(vector / 2**0.5)) / 2


def layer_norm(vector: Tensor, scale: Tensor, shift: Tensor, epsilon: float) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon), times a learned scale, plus a learned shift."""
    mean = sum(vector) / len(vector)
    variance = sum((value - mean) ** 2 for value in vector) / len(vector)
    return (vector - mean) / torch.sqrt(variance + epsilon) * scale + shift


def rms_norm(vector: Tensor, scale: Tensor, epsilon: float) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon), times a learned scale."""
    mean_square = sum(value * value for value in vector) / len(vector)
    return vector / torch.sqrt(mean_square + epsilon) * scale


def normalise(vector: Tensor, weights: Weights, prefix: str, config: Any) -> Tensor:
    """The configured norm."""
    if config.norm == "none":
        return vector
    if config.norm == "rms":
        return rms_norm(vector, weights[f"{prefix}.weight"], config.rms_norm_eps)
    return layer_norm(vector, weights[f"{prefix}.weight"], weights[f"{prefix}.bias"], config.rms_norm_eps)


def affine(vector: Tensor, weights: Weights, prefix: str) -> Tensor:
    """W x + b."""
    return weights[f"{prefix}.weight"] @ vector + weights[f"{prefix}.bias"]


def convolve(states: list[Tensor], taps: Tensor, dilation: int, *, causal: bool) -> list[Tensor]:
    """Depthwise: each channel is a weighted sum of itself at earlier (or earlier and later) positions."""
    results = []
    for position in range(len(states)):
        total = torch.zeros_like(states[0])
        for tap in range(len(taps)):
            back = len(taps) - 1 - tap if causal else len(taps) // 2 - tap
            source = position - back * dilation
            if 0 <= source < len(states):
                total = total + taps[tap] * states[source]
        results.append(total)
    return results


def cycle(states: list[Tensor], dilation: int, weights: Weights, prefix: str, config: Any) -> list[Tensor]:
    """h + MLP(Norm(Conv(h))), with what the variant has of it."""
    kind, mixed = config.feed_forward, states
    if kind != "linear":
        taps = weights[f"{prefix}.mixer.depthwise.weight"]
        mixed = [gelu(state) for state in convolve(states, taps, dilation, causal=config.causal_convolution)]
        if kind != "depthwise":
            mixed = [affine(state, weights, f"{prefix}.mixer.pointwise") for state in mixed]
    changes = [normalise(state, weights, f"{prefix}.norm", config) for state in mixed]
    if kind != "conv":
        inner = [gelu(affine(state, weights, f"{prefix}.transform.up_proj")) for state in changes]
        changes = [affine(state, weights, f"{prefix}.transform.down_proj") for state in inner]
    return [state + change for state, change in zip(states, changes, strict=True)]


def refine(states: list[Tensor], num_cycles: int, weights: Weights, prefix: str, config: Any) -> list[Tensor]:
    """The cycles one after the other, with the dilations in turn."""
    for number in range(num_cycles):
        dilation = config.dilations[number % len(config.dilations)]
        states = cycle(states, dilation, weights, f"{prefix}.cycles.{number}", config)
    return states
