"""Decoding with the exits of a trained run, ``--run DIR``, against GPT-2 of equal FLOPs a token; nothing without a run.

The threshold is chosen on the run's validation text for a loss at most 1 % above the full model's, and judged on its
reported one (`recurra.study.exits`). Texts go on from real prompts, and tokens are drawn, so that they are as
unsure as the model is: greedy decoding repeats itself and would leave earlier than a text does. Drafts are greedy, of
one text at a time: those of the first exit, checked by all recurrences, against decoding without them.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2LMHeadModel

from benchmarks import language_models
from benchmarks.lockstep import Job, ask
from benchmarks.measures import Measure, Setting
from recurra.deployment.generation import GenerationSettings, Generator, LanguageModel
from recurra.models.exits.rules import ConfidenceRule
from recurra.tasks.language.evaluation import PROMPT_TOKENS, LanguageSubject

BOUND, BATCH, TARGET = 0.01, 8, 1.5
CHOOSE, OURS, EXITS, GPT2 = "choose", "recurra", "with exits", "GPT-2"
GREEDY, DRAFTS = "greedy", "with drafts"
DRAFT_AFTER = 1


def subject(run: str) -> LanguageSubject:
    """The run; its corpus is looked for in the data root."""
    root = os.environ.get("RECURRA_DATA_ROOT")
    return LanguageSubject(Path(run), Path(root) if root else None)


def build(job: Job) -> Callable[[int], Any]:
    """Returns a call that chooses the threshold, or one that decodes ``job.steps`` tokens; the preset is the run."""
    run = subject(job.preset)
    variant, _, threshold = job.variant.partition("=")
    if variant == CHOOSE:
        return lambda _: _choose(run)
    if variant in (GREEDY, DRAFTS):
        return _greedy(job, run, DRAFT_AFTER if variant == DRAFTS else None)
    model, options = run.model, {}
    if variant == GPT2:
        config = language_models.gpt2_of_equal_flops(model.config, job.steps, training=False)
        model = GPT2LMHeadModel(config).eval()
    if variant == EXITS:
        options = {"exit_rule": ConfidenceRule.constant(float(threshold))}
    ids = run.batches(BATCH)[0]

    def call(index: int) -> None:
        torch.manual_seed(index)
        model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_k=0,
            min_new_tokens=job.steps,
            max_new_tokens=job.steps,
            pad_token_id=0,
            **options,
        )

    return call


def _greedy(job: Job, run: LanguageSubject, draft: int | None) -> Callable[[int], Any]:
    settings = GenerationSettings(max_new_tokens=job.steps, draft=draft)
    rows = run.batches(BATCH)[0].tolist()

    def call(index: int) -> dict[str, Any]:
        generator = Generator(LanguageModel(run.run_id, run.model, run.tokenizer), settings)
        (tokens,) = generator.extend([rows[index % BATCH]])
        return {"tokens": tokens, "drafted": generator.figures.drafted, "accepted": generator.figures.accepted}

    return call


def _choose(run: LanguageSubject) -> dict[str, Any]:
    chosen = run.choose(BOUND, "confidence")
    config = run.model.config
    theirs = language_models.gpt2_of_equal_flops(config, 256, training=False)
    result = {"context": config.max_position_embeddings, "shape": f"{theirs.n_layer} x {theirs.n_embd}", "rule": None}
    if isinstance(chosen.rule, ConfidenceRule):
        judged = run.judge(chosen.rule)
        result |= {"rule": chosen.rule.start, "full": run.full, "exits": judged.score, "split": run.split}
    return result


def measure(setting: Setting) -> list[Measure]:
    """Measures the given run, if there is one and a threshold keeps its loss."""
    if not setting.run:
        return []
    chosen = ask(setting.job(__name__, CHOOSE, setting.run))
    tokens = max(1, min(setting.sized(192, 4), chosen["context"] - PROMPT_TOKENS))
    drafts = _drafts(setting, tokens)
    if chosen["rule"] is None:
        return drafts
    variants = {OURS: OURS, EXITS: f"{EXITS}={chosen['rule']}", GPT2: GPT2}
    jobs = {
        name: setting.job(__name__, variant, setting.run, tokens, keep_memory=True)
        for name, variant in variants.items()
    }
    times: dict[str, list[float]] = {name: [] for name in jobs}
    with setting.competitors(jobs) as competitors:
        for turn in range(1 + setting.sized(5, 1)):
            for name, competitor in competitors.items():
                elapsed = competitor.call(turn)["ms"]
                times[name] += [elapsed] if turn else []
    rates = {name: BATCH * tokens / (statistics.median(values) / 1e3) for name, values in times.items()}
    gpt2 = f"GPT-2 of equal FLOPs a token ({chosen['shape']})"
    title = (
        f"decoding with exits, batch {BATCH}, {tokens} tokens, loss {chosen['exits']:.4f} against {chosen['full']:.4f}"
    )
    name = Path(setting.run).name
    common: dict[str, Any] = {"part": "exits", "preset": name, "unit": "tokens a second", "result_unit": "x"}
    return [
        Measure(
            title=f"{title} on {chosen['split']}", ours_name=f"confidence {chosen['rule']:.3f}", ours=rates[EXITS],
            other_name=gpt2, other=rates[GPT2], result=rates[EXITS] / rates[GPT2], target=TARGET, **common,
        ),
        Measure(
            title="the same, against our own full depth", ours_name="with exits", ours=rates[EXITS],
            other_name="no exits", other=rates[OURS], result=rates[EXITS] / rates[OURS], **common,
        ),
        *drafts,
    ]  # fmt: skip


def _drafts(setting: Setting, tokens: int) -> list[Measure]:
    """Decodes with and without drafts, each prompt once, in turns; raises `RuntimeError` if a text differs."""
    jobs = {name: setting.job(__name__, name, setting.run, tokens, keep_memory=True) for name in (GREEDY, DRAFTS)}
    times: dict[str, list[float]] = {name: [] for name in jobs}
    drafted = accepted = 0
    with setting.competitors(jobs) as competitors:
        # The first prompt comes twice; the first time warms up.
        for turn in range(-1, setting.sized(BATCH, 1)):
            results = {name: competitor.call(max(turn, 0)) for name, competitor in competitors.items()}
            if results[GREEDY]["value"]["tokens"] != results[DRAFTS]["value"]["tokens"]:
                raise RuntimeError(f"with drafts the text of prompt {turn} is another")
            if turn < 0:
                continue
            for name, result in results.items():
                times[name].append(result["ms"] / len(result["value"]["tokens"]))
            drafted += results[DRAFTS]["value"]["drafted"]
            accepted += results[DRAFTS]["value"]["accepted"]
    rates = {name: 1e3 / statistics.median(values) for name, values in times.items()}
    return [
        Measure(
            "exits",
            f"greedy, one text, drafts after recurrence {DRAFT_AFTER}, {accepted / drafted:.0%} of them right",
            Path(setting.run).name, DRAFTS, rates[DRAFTS], GREEDY, rates[GREEDY], "tokens a second",
            rates[DRAFTS] / rates[GREEDY], "x",
        )
    ]  # fmt: skip
