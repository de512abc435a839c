"""Training a language model: tokens a second against GPT-2 of equal FLOPs a token, activation checkpointing, the loss.

A step is forward, backward, clipping and fused AdamW on a batch of packed blocks; every position predicts. Peaks are
those of a fresh process, less what it held before its first step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_

from benchmarks import language_models
from benchmarks.lockstep import Job, ask, in_turns
from benchmarks.measures import Measure, Setting
from recurra.core.environment import peak_memory_mib
from recurra.models.heads import VocabularyHeads, vocabulary_cross_entropy
from recurra.models.inference import autocast
from recurra.models.presets import preset

PRESET, QUICK_PRESET = "crt-small", "crt-tiny"
LOSS_PRESET = "crt-deep-tied"
ROWS, TOKENS = 8, 256
LOSS_ROWS, LOSS_TOKENS = 8, 1024
OURS, GPT2, GPT2_FUSED, CHECKPOINTED, LOSS = "recurra", "GPT-2", "GPT-2, no attention dropout", "checkpointed", "loss"
TARGET = 1.2
MIB = 2**20


def build(job: Job) -> Callable[[int], Any]:
    """Returns a training step of the variant, ``recurra bf16`` for example, or a call that measures memory."""
    variant, _, precision = job.variant.rpartition(" ")
    if variant == LOSS:
        return lambda _: _loss_peak(job.preset, job.steps)
    tokens = job.steps
    if variant in (GPT2, GPT2_FUSED):
        dropout = 0.0 if variant == GPT2_FUSED else None
        model = language_models.gpt2(job.preset, tokens, training=True, attention_dropout=dropout)
    else:
        model = language_models.ours(job.preset)
    if variant == CHECKPOINTED:
        model.activation_checkpointing_enable()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(1, model.config.vocab_size, (ROWS, tokens), generator=rng)
    before = peak_memory_mib()

    def step(_: int) -> float:
        with autocast(precision, torch.device("cpu")):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return peak_memory_mib() - before

    return step


def _loss_peak(name: str, tokens: int) -> dict[str, float]:
    """MiB that the loss of all heads adds to the peak, forward and backward, and that of all their logits."""
    config = preset(name)
    heads = VocabularyHeads(config)
    table = torch.nn.Parameter(torch.randn(config.vocab_size, config.token_embedding_size) * 0.02)
    states = [torch.randn(LOSS_ROWS * tokens, config.hidden_size).requires_grad_() for _ in (*config.exits, 0)]
    targets = torch.randint(0, config.vocab_size, (LOSS_ROWS * tokens,))
    before = peak_memory_mib()
    losses = [
        vocabulary_cross_entropy(heads.projection(part), heads.weight(number, table), targets)
        for number, part in enumerate(states)
    ]
    torch.stack(losses).mean().backward()
    logits = len(states) * LOSS_ROWS * tokens * config.vocab_size * torch.float32.itemsize / MIB
    return {"ours_mib": peak_memory_mib() - before, "logits_mib": logits}


def _steps(setting: Setting, name: str, variants: list[str], width: int) -> dict[str, float]:
    """Milliseconds a step on rows of ``width`` tokens."""
    jobs = {variant: setting.job(__name__, variant, name, width, keep_memory=True) for variant in variants}
    with setting.competitors(jobs) as competitors:
        return in_turns(competitors, 1, setting.sized(5, 1), warmup=setting.sized(4, 1))


def _peak(setting: Setting, name: str, variant: str, width: int) -> float:
    """MiB that two training steps add to a fresh process that gives freed memory back."""
    with setting.competitors({variant: setting.job(__name__, variant, name, width)}) as competitors:
        competitors[variant].call(0)
        return float(competitors[variant].call(1)["value"])


def measure(setting: Setting) -> list[Measure]:
    """Measures one preset, and the loss of another."""
    name = QUICK_PRESET if setting.quick else PRESET
    width = setting.sized(TOKENS, 8)
    tokens = ROWS * width
    theirs = language_models.gpt2_of_equal_flops(preset(name), width, training=True)
    shape = f"{theirs.n_layer} x {theirs.n_embd}"
    results = []
    for precision in ("fp32", "bf16")[: setting.sized(2, 1)]:
        names = [f"{kind} {precision}" for kind in (OURS, GPT2, GPT2_FUSED, CHECKPOINTED)]
        times = _steps(setting, name, names, width)
        mine, other, fused, checkpointed = (tokens / (times[variant] / 1e3) for variant in names)
        batch = f"{ROWS} x {width} tokens, {precision}"
        common: dict[str, Any] = {"part": "language", "preset": name, "unit": "tokens a second", "result_unit": "x"}
        results += [
            Measure(
                title=f"training, {batch}", ours_name="recurra", ours=mine, other=other, result=mine / other,
                other_name=f"GPT-2 of equal FLOPs a token ({shape})", target=TARGET, **common,
            ),
            Measure(
                title="the same, GPT-2 without attention dropout", ours_name="recurra", ours=mine, other=fused,
                other_name=GPT2_FUSED, result=mine / fused, **common,
            ),
            Measure(
                title="the same, ours with activation checkpointing", ours_name=CHECKPOINTED, ours=checkpointed,
                other_name="recurra", other=mine, result=checkpointed / mine, **common,
            ),
        ]  # fmt: skip
    checkpointed_mib, plain = (_peak(setting, name, f"{kind} fp32", width) for kind in (CHECKPOINTED, OURS))
    results.append(
        Measure(
            "language",
            "activation checkpointing: peak of two steps beyond model and optimiser",
            name,
            CHECKPOINTED,
            checkpointed_mib,
            "without",
            plain,
            "MiB",
            # In the quick mode nothing may be added at all.
            100 * checkpointed_mib / max(plain, 1.0),
            "%",
        )
    )
    loss = setting.sized(LOSS_TOKENS, 8)
    loss_memory = ask(setting.job(__name__, f"{LOSS} fp32", LOSS_PRESET, loss))
    results.append(
        Measure(
            "language",
            f"peak memory of the loss, forward and backward, {LOSS_ROWS} x {loss} tokens, FP32",
            LOSS_PRESET,
            "all heads",
            loss_memory["ours_mib"],
            "all logits of all heads (by count)",
            loss_memory["logits_mib"],
            "MiB",
            100 * loss_memory["ours_mib"] / loss_memory["logits_mib"],
            "%",
            target=100.0,
            at_most=True,
        )
    )
    return results
