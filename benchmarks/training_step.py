"""One training step: forward, backward, clipping, fused AdamW; batch 16 of SST-2's training rows.

Ours is what `recurra.training` does: bf16, length-grouped batches, the token rows that the data reach, freed memory
kept. The others are what a user would do: the same model padded to 128 in FP32; BERT on shuffled rows, padded to the
longest of each batch, in FP32, with BERT's own defaults, attention dropout of 0.1 among them, which keeps it from the
fused attention kernel on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch.nn.utils import clip_grad_norm_

from benchmarks import corpus as corpora
from benchmarks import models
from benchmarks.lockstep import Job, in_turns
from benchmarks.measures import Measure, Setting
from recurra.data.batching import Collator, LengthGroupedBatchSampler
from recurra.data.encoding import EncodedSplit
from recurra.models.inference import autocast
from recurra.training.protocols import PROTOCOLS
from recurra.training.vocabulary import reachable_vocabulary

BATCH_SIZE = 16
OURS, OURS_FP32, PADDED, BERT, BERT_KEPT = "recurra bf16", "recurra fp32", "padded to 128", "BERT", "BERT, memory kept"


def build(job: Job) -> Callable[[int], None]:
    """Returns the step of one competitor; call ``i`` takes its ``i``-th batch."""
    split = corpora.Corpus(job.corpus_folder).train
    if job.variant in (BERT, BERT_KEPT):
        model = models.bert(job.preset)
        batches = representative(_shuffled(split), split, job.steps)
        return _step(model.train(), split, batches, precision="fp32")
    model = models.ours(job.preset)
    if job.variant == PADDED:
        batches = representative(_shuffled(split), split, job.steps)
        return _step(model.train(), split, batches, precision="fp32", width=corpora.MAX_LENGTH)
    sampler = LengthGroupedBatchSampler(split.lengths, BATCH_SIZE, seed=0)
    grouped = [batch for batch in sampler if len(batch) == BATCH_SIZE]
    # This is left open: the process ends with the narrow table in place.
    narrowed = reachable_vocabulary(model, [split])
    (split,) = narrowed.__enter__()
    precision = "bf16" if job.variant == OURS else "fp32"
    step = _step(model.train(), split, representative(grouped, split, job.steps), precision=precision)
    step.keep = narrowed  # type: ignore[attr-defined]
    return step


def representative(batches: list[list[int]], split: EncodedSplit, count: int) -> list[list[int]]:
    """Picks ``count`` batches at even steps of their padded length, so that few stand for a whole epoch."""
    widths = np.array([split.lengths[batch].max() for batch in batches])
    order = np.argsort(widths, kind="stable")
    return [batches[order[int((index + 0.5) * len(order) / count)]] for index in range(count)]


def _shuffled(split: EncodedSplit) -> list[list[int]]:
    order = np.random.default_rng(0).permutation(len(split))
    return order[: len(order) // BATCH_SIZE * BATCH_SIZE].reshape(-1, BATCH_SIZE).tolist()


def _step(
    model: torch.nn.Module, split: EncodedSplit, batches: list[list[int]], *, precision: str, width: int = 0
) -> Callable[[int], None]:
    collator = Collator(model.config.pad_token_id or 0)
    inputs = [_widened(collator(split.__getitems__(batch)), width) for batch in batches]
    protocol = PROTOCOLS["paper"]
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=protocol.learning_rate, weight_decay=protocol.weight_decay, fused=True
    )

    def step(index: int) -> None:
        with autocast(precision, torch.device("cpu")):
            loss = model(**inputs[index]).loss
        loss.backward()
        clip_grad_norm_(model.parameters(), protocol.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _widened(batch: dict[str, torch.Tensor], width: int) -> dict[str, torch.Tensor]:
    missing = width - batch["input_ids"].shape[1]
    if missing <= 0:
        return batch
    for name in ("input_ids", "attention_mask"):
        batch[name] = torch.nn.functional.pad(batch[name], (0, missing))
    return batch


def measure(setting: Setting) -> list[Measure]:
    """Measures both presets against all competitors."""
    results = []
    steps, repeats = setting.sized(16, 3), setting.sized(3, 1)
    for name in setting.presets:
        variants = {OURS: True, OURS_FP32: True, PADDED: False, BERT: False, BERT_KEPT: True}
        jobs = {
            variant: setting.job(__name__, variant, name, steps, keep_memory=keeps)
            for variant, keeps in variants.items()
        }
        with setting.competitors(jobs) as competitors:
            elapsed = in_turns(competitors, steps, repeats, seldom=[PADDED])
        fast = elapsed[OURS]
        for other, title, target, aim in (
            (PADDED, "training step against the same model padded to 128, FP32", 12.0, 20.0),
            (BERT, "training step against BERT of equal shape, shuffled, FP32", 2.5, 4.0),
            (BERT_KEPT, "the same, BERT with our allocator setting too", None, None),
            (OURS_FP32, "the same step of ours in FP32", None, None),
        ):
            results.append(
                Measure(
                    part="steps",
                    title=title,
                    preset=name,
                    ours_name=OURS,
                    ours=fast,
                    other_name=other,
                    other=elapsed[other],
                    unit="ms a step",
                    result=elapsed[other] / fast,
                    result_unit="x",
                    target=target,
                    aim=aim,
                )
            )
    return results
