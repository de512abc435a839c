"""Decoding: with cache against without, against transformers' GPT-2 of equal FLOPs a token, and with exits.

All decode greedily to a fixed number of tokens behind a short prompt, in FP32, as ``recurra generate`` does. Fresh
weights decode as fast as trained ones, but where they would stop says nothing, so the row with exits stops a fixed part
of the tokens at each. The part ``exits`` measures a trained run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from benchmarks import language_models
from benchmarks.lockstep import Job
from benchmarks.measures import Measure, Setting
from recurra.deployment.generation import decoding
from recurra.models.exits.rules import ExitRule, confidence, mean_of_rows
from recurra.models.presets import preset

PRESETS, QUICK_PRESETS = ("crt-small", "crt-tiny"), ("crt-tiny",)
BATCH, PROMPT = 8, 8
CACHED, UNCACHED, GPT2, EXITS = "with cache", "without cache", "GPT-2", "with exits"
WHOLE = "no exits"
# Half of the tokens that remain stop at each exit of crt-small: 2 and 4 of 6.
STOPPING = 0.5


@dataclass(frozen=True)
class SomeStop(ExitRule):
    """Stops a part of the rows, by the far decimals of a confidence that is computed as for any rule."""

    name: ClassVar[str] = "some"

    def decide(self, logits: Tensor, recurrence: int, *, counted: Any = None, rows: Any = None) -> Any:  # noqa: ARG002
        """Compares a number from 0 to 1 that seems random, but is the same for the same logits."""
        return mean_of_rows(confidence(logits), counted) * 1e6 % 1 < STOPPING

    def describe(self) -> str:
        """Names the share."""
        return f"{STOPPING:.0%} at each exit"


def build(job: Job) -> Callable[[int], int]:
    """Returns a call that generates ``job.steps`` tokens; the call's number is that of rows less one."""
    options: dict[str, Any] = {"use_cache": job.variant != UNCACHED}
    context = PROMPT + job.steps
    if job.variant == GPT2:
        model = language_models.gpt2(job.preset, job.steps, training=False, max_position_embeddings=context)
    else:
        model = language_models.ours(job.preset, max_position_embeddings=context)
    model.eval()
    if job.variant == EXITS:
        options["exit_rule"] = SomeStop()
    rng = torch.Generator().manual_seed(0)
    prompts = torch.randint(1, model.config.vocab_size, (BATCH, PROMPT), generator=rng)

    def call(index: int) -> int:
        ids = prompts[: index + 1]
        tokens = job.steps
        with decoding(model):
            output = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=tokens,
                max_new_tokens=tokens,
                pad_token_id=0,
                **options,
            )
        return int(output.shape[1])

    return call


def _time(
    setting: Setting, name: str, variants: list[str], *, rows: int, tokens: int, turns: int = 3
) -> dict[str, float]:
    """Milliseconds of generating, the median of each variant's turns."""
    jobs = {variant: setting.job(__name__, variant, name, tokens, keep_memory=True) for variant in variants}
    with setting.competitors(jobs) as competitors:
        for variant in variants:
            # Without cache it takes long enough to need no warming up.
            if variant != UNCACHED:
                competitors[variant].call(rows - 1)
        times: dict[str, list[float]] = {variant: [] for variant in variants}
        for _ in range(setting.sized(turns, 1)):
            for variant in variants:
                times[variant].append(competitors[variant].call(rows - 1)["ms"])
    return {variant: sorted(values)[len(values) // 2] for variant, values in times.items()}


def measure(setting: Setting) -> list[Measure]:
    """Measures the presets for one row and for several, and exits and cache of the first."""
    tokens = setting.sized(256, 6)
    names = QUICK_PRESETS if setting.quick else PRESETS
    return [line for name in names for line in _against_gpt2(setting, name, tokens)] + _alone(setting, names[0], tokens)


def _against_gpt2(setting: Setting, name: str, tokens: int) -> list[Measure]:
    lines = []
    for rows in (1, BATCH):
        times = _time(setting, name, [CACHED, EXITS, GPT2], rows=rows, tokens=tokens)
        rates = {variant: rows * tokens / (ms / 1e3) for variant, ms in times.items()}
        common: dict[str, Any] = {"part": "generation", "preset": name, "unit": "tokens a second", "result_unit": "x"}
        gpt2 = _gpt2(name, tokens)
        lines += [
            Measure(
                title=f"decoding, batch {rows}, {tokens} tokens, FP32", ours_name="recurra generate",
                ours=rates[CACHED], other_name=gpt2, other=rates[GPT2], result=rates[CACHED] / rates[GPT2], target=1.2,
                **common,
            ),
            Measure(
                title=f"the same, {STOPPING:.0%} of the tokens leaving at each exit (time only)", ours_name=EXITS,
                ours=rates[EXITS], other_name=gpt2, other=rates[GPT2], result=rates[EXITS] / rates[GPT2], **common,
            ),
            Measure(
                title="the same, against our own full depth", ours_name=EXITS, ours=rates[EXITS], other_name=WHOLE,
                other=rates[CACHED], result=rates[EXITS] / rates[CACHED], **common,
            ),
        ]  # fmt: skip
    return lines


def _alone(setting: Setting, name: str, tokens: int) -> list[Measure]:
    alone = _time(setting, name, [CACHED, UNCACHED], rows=1, tokens=tokens, turns=1)
    config = preset(name)
    theirs = language_models.gpt2_of_equal_flops(config, tokens, training=False)
    their_memory = 2 * theirs.n_layer * theirs.n_embd * torch.float32.itemsize
    our_memory = 2 * config.num_hidden_layers * config.hidden_size * torch.float32.itemsize
    return [
        Measure(
            "generation", f"decoding with cache against without, {tokens} tokens, one row", name, CACHED, alone[CACHED],
            UNCACHED, alone[UNCACHED], "ms", alone[UNCACHED] / alone[CACHED], "x", target=8.0,
        ),
        Measure(
            "generation", "cache of a row, a token", name, "per-loop", our_memory / 1024, _gpt2(name, tokens),
            their_memory / 1024, "KiB", 100 * our_memory / their_memory, "%",
        ),
    ]  # fmt: skip


def _gpt2(name: str, tokens: int) -> str:
    theirs = language_models.gpt2_of_equal_flops(preset(name), tokens, training=False)
    return f"GPT-2 of equal FLOPs a token ({theirs.n_layer} x {theirs.n_embd})"
