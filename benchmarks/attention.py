"""Attention in bf16 on a CPU: `recurra.models.rows.attend` against ``scaled_dot_product_attention``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.lockstep import Job, ask
from benchmarks.measures import Measure, Setting
from benchmarks.turns import median_ms
from recurra.models.presets import preset
from recurra.models.rows import attend

BATCH_SIZE = 16
TOKENS = (13, 32, 128)


def build(job: Job) -> Callable[[int], dict[str, dict[str, float]]]:
    """Returns a call that gives, for each length, milliseconds of a pass forward and of one forward and backward."""
    config = preset(job.preset)

    def call(_: int) -> dict[str, dict[str, float]]:
        return {
            str(tokens): _compare(config.num_attention_heads, config.head_dim, tokens, job.steps) for tokens in TOKENS
        }

    return call


def _compare(heads: int, head_dim: int, tokens: int, repeats: int) -> dict[str, float]:
    # Queries, keys and values are views into one product, as in the model.
    qkv = torch.randn(BATCH_SIZE, tokens, 3 * heads, head_dim, dtype=torch.bfloat16, requires_grad=True)
    gradient = torch.randn(BATCH_SIZE, tokens, heads * head_dim, dtype=torch.bfloat16)

    def ours(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend(query, key, value, None, causal=False)

    def attended(attention: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        query, key, value = (part.transpose(1, 2) for part in qkv.split(heads, dim=2))
        return attention(query, key, value).transpose(1, 2).flatten(2)

    @torch.no_grad()
    def forward(attention: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        attended(attention)

    def both(attention: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        attended(attention).backward(gradient)
        qkv.grad = None

    calls = {
        f"{name} {kind}": partial(run, attention)
        for kind, run in (("forward", forward), ("both", both))
        for name, attention in (("ours", ours), ("sdpa", functional.scaled_dot_product_attention))
    }
    return median_ms(calls, repeats)


def measure(setting: Setting) -> list[Measure]:
    """Measures both presets' heads."""
    results = []
    for name in setting.presets:
        by_tokens = ask(setting.job(__name__, "bf16", name, setting.sized(60, 3), keep_memory=True))
        for tokens, times in by_tokens.items():
            for kind, title in (("forward", "forward"), ("both", "forward and backward")):
                ours, sdpa = times[f"ours {kind}"], times[f"sdpa {kind}"]
                results.append(
                    Measure(
                        part="attention",
                        title=f"attention in bf16, {tokens} tokens, {title}",
                        preset=name,
                        ours_name="attend",
                        ours=ours,
                        other_name="scaled_dot_product_attention",
                        other=sdpa,
                        unit="ms",
                        result=sdpa / ours,
                        result_unit="x",
                    )
                )
    return results
