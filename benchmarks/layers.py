"""What the first paper says of its layers: RMSNorm against LayerNorm, and how attention's memory and time grow.

Norms are timed alone and in a whole training step of the preset, in turns. Attention is computed forward and backward
for one row of 4 heads of 64: as one fused call, and as scores, softmax and a product, each length in a fresh process
whose earlier memory is subtracted from its peak.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.lockstep import Job, ask
from benchmarks.measures import Measure, Setting
from benchmarks.turns import median_ms
from recurra.core.environment import peak_memory_mib
from recurra.models.inference import autocast
from recurra.models.layers import make_norm
from recurra.models.modeling import RecurraForSequenceClassification
from recurra.models.presets import preset

NORMS = ("rms", "layer")
ROWS, TOKENS = 16, 64
LENGTHS = (128, 256, 512, 1024, 2048, 4096)
HEADS, HEAD_DIM = 4, 64
FUSED, EXPLICIT = "fused attention", "explicit scores"
# Below this length, other memory of the process hides the growth.
FITTED_FROM = 1024


def build(job: Job) -> Callable[[int], dict[str, float]]:
    """Returns a call that measures norms, or attention at as many tokens as the job has steps."""
    if job.variant in (FUSED, EXPLICIT):
        return lambda _: _attention(job.variant, job.steps)
    return lambda _: _norms(job.preset, job.steps)


def _norms(name: str, repeats: int) -> dict[str, float]:
    """Milliseconds of the norm alone (``rms``) and of the whole step (``rms step``), forward and backward, in bf16."""
    calls: dict[str, Callable[[], object]] = {}
    for kind in NORMS:
        config = preset(name, norm=kind)
        norm = make_norm(config)
        states = torch.randn(ROWS, TOKENS, config.hidden_size, requires_grad=True)
        calls[kind] = _both(norm, states, torch.randn(ROWS, TOKENS, config.hidden_size))
        model = RecurraForSequenceClassification(config).train()
        ids = torch.randint(1000, 2000, (ROWS, TOKENS))
        calls[f"{kind} step"] = _step(model, ids, torch.randint(0, 2, (ROWS,)))
    for call in calls.values():
        call()
    return median_ms(calls, repeats)


def _both(norm: nn.Module, states: Tensor, gradient: Tensor) -> Callable[[], object]:
    def call() -> None:
        norm(states).backward(gradient)
        norm.zero_grad()
        states.grad = None

    return call


def _step(model: RecurraForSequenceClassification, ids: Tensor, labels: Tensor) -> Callable[[], object]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    mask = torch.ones_like(ids)

    def call() -> None:
        with autocast("bf16", torch.device("cpu")):
            loss = model(ids, mask, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return call


def _attention(kind: str, tokens: int) -> dict[str, float]:
    """Peak MiB above the memory before, and median milliseconds, of attention over so many tokens."""
    query, key, value = (torch.randn(1, HEADS, tokens, HEAD_DIM, requires_grad=True) for _ in range(3))
    gradient = torch.randn(1, HEADS, tokens, HEAD_DIM)

    def call() -> None:
        if kind == FUSED:
            attended = functional.scaled_dot_product_attention(query, key, value)
        else:
            attended = torch.softmax(query @ key.transpose(2, 3) / math.sqrt(HEAD_DIM), dim=-1) @ value
        attended.backward(gradient)
        query.grad = key.grad = value.grad = None

    before = peak_memory_mib()
    call()
    return {"mib": peak_memory_mib() - before, "ms": median_ms({"call": call}, 5)["call"]}


def exponent(lengths: Sequence[int], values: Sequence[float]) -> float:
    """Slope of the logarithm: 1 grows as the length does, 2 as its square."""
    return float(np.polyfit(np.log(lengths), np.log(np.maximum(values, 1e-9)), 1)[0])


def measure(setting: Setting) -> list[Measure]:
    """Measures the preset ``recurrent``, of the paper's size."""
    times = ask(setting.job(__name__, "norms", "recurrent", setting.sized(60, 2), keep_memory=True))
    results = [
        Measure(
            part="layers",
            title=f"LayerNorm's time over RMSNorm's, {subject}",
            preset="recurrent",
            ours_name="RMSNorm",
            ours=times[f"rms{suffix}"],
            other_name="LayerNorm",
            other=times[f"layer{suffix}"],
            unit="ms",
            result=times[f"layer{suffix}"] / times[f"rms{suffix}"],
            result_unit="x",
        )
        for suffix, subject in (("", "the norm alone"), (" step", "the whole training step"))
    ]
    lengths = LENGTHS if not setting.quick else LENGTHS[:2]
    by_kind = {
        kind: {tokens: ask(setting.job(__name__, kind, "recurrent", tokens)) for tokens in lengths}
        for kind in (FUSED, EXPLICIT)
    }
    long = [tokens for tokens in lengths if tokens >= FITTED_FROM] or lengths
    for unit, subject in (("mib", "memory"), ("ms", "time")):
        for kind, by_tokens in by_kind.items():
            results.append(
                Measure(
                    part="layers",
                    title=f"exponent of {subject} from {long[0]:,} to {long[-1]:,} tokens, {kind}",
                    preset="recurrent",
                    ours_name=f"{long[-1]:,} tokens",
                    ours=by_tokens[long[-1]][unit],
                    other_name=f"{long[0]:,} tokens",
                    other=by_tokens[long[0]][unit],
                    unit="MiB" if unit == "mib" else "ms",
                    result=exponent(long, [by_tokens[tokens][unit] for tokens in long]),
                    result_unit="",
                )
            )
    return results
