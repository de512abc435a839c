"""Causal depthwise convolution: shifted multiply-adds on tokens as they lie against ``Conv1d`` on transposed ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.lockstep import Job, ask
from benchmarks.measures import Measure, Setting
from benchmarks.turns import median_ms
from recurra.models.layers import DepthwiseConvolution
from recurra.models.presets import preset

# Rows and tokens of a batch in which the preset is trained.
BATCHES = {"crt-small": (8, 256), "crt-deep": (2, 1024)}
PRECISIONS = {"FP32": torch.float32, "bf16": torch.bfloat16}
TARGET = 1.5


def build(job: Job) -> Callable[[int], dict[str, dict[str, float]]]:
    """Returns a call that gives, for each precision, milliseconds forward, and forward and backward."""
    config = preset(job.preset)

    def call(_: int) -> dict[str, dict[str, float]]:
        return {
            name: _compare(config.hidden_size, config.dilations, BATCHES[job.preset], precision, job.steps)
            for name, precision in PRECISIONS.items()
        }

    return call


def stock(states: Tensor, weight: Tensor, dilation: int) -> Tensor:
    """The plain formulation, ``(batch, tokens, channels)`` in and out."""
    padded = functional.pad(states.transpose(1, 2), ((len(weight) - 1) * dilation, 0))
    taps = weight.t()[:, None]
    return functional.conv1d(padded, taps, dilation=dilation, groups=states.shape[2]).transpose(1, 2)


def _compare(
    width: int, dilations: Sequence[int], shape: tuple[int, int], precision: torch.dtype, repeats: int
) -> dict[str, float]:
    states = torch.randn(*shape, width, dtype=precision, requires_grad=True)
    slope = torch.randn(*shape, width, dtype=precision)
    layers = [DepthwiseConvolution(width, 3, dilation, causal=True).to(precision) for dilation in dilations]

    def ours(index: int) -> Tensor:
        return layers[index](states)

    def plain(index: int) -> Tensor:
        return stock(states, layers[index].weight, dilations[index])

    @torch.no_grad()
    def forward(convolve: Callable[[int], Tensor]) -> None:
        for index in range(len(layers)):
            convolve(index)

    def both(convolve: Callable[[int], Tensor]) -> None:
        for index, layer in enumerate(layers):
            convolve(index).backward(slope)
            states.grad = layer.weight.grad = None

    calls = {
        f"{name} {kind}": partial(run, convolve)
        for kind, run in (("forward", forward), ("both", both))
        for name, convolve in (("ours", ours), ("plain", plain))
    }
    return median_ms(calls, repeats)


def measure(setting: Setting) -> list[Measure]:
    """Measures the convolutions of the language models' presets, one of each dilation."""
    results = []
    for name, (rows, tokens) in BATCHES.items():
        by_precision = ask(setting.job(__name__, "", name, setting.sized(30, 2), keep_memory=True))
        for precision, times in by_precision.items():
            for kind, title in (("forward", "forward"), ("both", "forward and backward")):
                ours, plain = times[f"ours {kind}"], times[f"plain {kind}"]
                results.append(
                    Measure(
                        part="convolution",
                        title=f"causal depthwise convolution in {precision}, {rows} x {tokens} tokens, {title}",
                        preset=name,
                        ours_name="DepthwiseConvolution",
                        ours=ours,
                        other_name="Conv1d on transposed tensors",
                        other=plain,
                        unit="ms",
                        result=plain / ours,
                        result_unit="x",
                        target=TARGET if kind == "both" else None,
                    )
                )
    return results
