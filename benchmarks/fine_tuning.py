"""A whole training, `RecurraTrainer` against transformers' Trainer with its BERT class: one pass over the same rows.

Three peers: the Trainer as a user would write it (batches of 16 in random order, padded to the longest of each, FP32);
the Trainer as an expert would (grouped by length, the fastest precision of the processor); and a plain loop in that
precision, with our batches and torch's fused AdamW. Ours is what `recurra.training` does. Everything counts that a
training does but for evaluation and checkpoints, which all do without: fetching, padding, steps, and what our side does
before the first of them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.utils import clip_grad_norm_

from benchmarks import corpus as corpora
from benchmarks import models
from benchmarks.lockstep import Job, in_turns
from benchmarks.measures import Measure, Setting
from benchmarks.trainer import PROTOCOL, train_bert, train_ours, trainer_arguments
from recurra.data.batching import Collator, LengthGroupedBatchSampler
from recurra.data.encoding import EncodedSplit
from recurra.models.inference import autocast

ENCODER = "minilm"
OURS, OURS_FP32 = f"recurra {models.FASTEST}", "recurra fp32"
BERT, BY_LENGTH, LOOP = (
    "BERT, FP32, stock Trainer",
    f"BERT, {models.FASTEST}, Trainer by length",
    f"BERT, {models.FASTEST}, plain loop",
)


def build(job: Job) -> Callable[[int], None]:
    """Returns a call that trains a fresh model by one pass; call ``i`` takes the ``i``-th rows."""
    split = corpora.Corpus(job.corpus_folder).train
    order = np.random.default_rng(0).permutation(len(split))
    count = job.steps * PROTOCOL.batch_size

    def call(index: int) -> None:
        rows = _picked(split, order[index * count : (index + 1) * count])
        with tempfile.TemporaryDirectory() as folder:
            if job.variant == BERT:
                train_bert(job.preset, rows, trainer_arguments(folder, job.steps, "fp32"))
            elif job.variant == BY_LENGTH:
                arguments = trainer_arguments(folder, job.steps, models.FASTEST)
                arguments.train_sampling_strategy = "group_by_length"
                train_bert(job.preset, rows, arguments)
            elif job.variant == LOOP:
                _plain_loop(job.preset, rows)
            else:
                precision = job.variant.removeprefix("recurra ")
                train_ours(job.preset, rows, trainer_arguments(folder, job.steps, precision))

    return call


def _plain_loop(preset: str, rows: EncodedSplit) -> None:
    """One pass of BERT without a Trainer."""
    model = models.bert(preset).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=PROTOCOL.learning_rate, fused=True)
    collator = Collator(0)
    for batch in LengthGroupedBatchSampler(rows.lengths, PROTOCOL.batch_size, seed=0):
        with autocast(models.FASTEST, torch.device("cpu")):
            loss = model(**collator(rows.__getitems__(batch))).loss
        loss.backward()
        clip_grad_norm_(model.parameters(), PROTOCOL.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()


def _picked(split: EncodedSplit, indices: npt.NDArray[np.int64]) -> EncodedSplit:
    """Some rows of a split, as a split."""
    ids = [split.input_ids[split.offsets[index] : split.offsets[index + 1]] for index in indices]
    offsets = np.cumsum([0, *map(len, ids)])
    return EncodedSplit(input_ids=np.concatenate(ids), offsets=offsets, labels=split.labels[indices])


def measure(setting: Setting) -> list[Measure]:
    """Measures each preset and MiniLM, in turns, on three draws of rows."""
    results: list[Measure] = []
    steps, draws = setting.sized(100, 3), setting.sized(3, 2)
    # On a processor without bf16, our model has one precision.
    comparisons: list[tuple[str, str, str, float | None]] = [
        (OURS, BERT, "a whole training against the stock Trainer with BERT of equal shape", 3.0),
        (OURS, BY_LENGTH, "the same, grouped by length and in our precision", 1.9),
        (OURS, LOOP, "the same, a plain loop with our batches", 1.5),
    ]
    if OURS != OURS_FP32:
        comparisons.append((OURS_FP32, BERT, "ours in FP32, against the stock Trainer", None))
    names = list(dict.fromkeys([ours for ours, *_ in comparisons] + [other for _, other, *_ in comparisons]))
    for name in dict.fromkeys([*setting.presets, ENCODER]):
        jobs = {
            variant: setting.job(__name__, variant, name, steps, keep_memory=variant.startswith("recurra"))
            for variant in names
        }
        with setting.competitors(jobs) as competitors:
            elapsed = in_turns(competitors, draws, 1, warmup=1)
        results += [
            Measure(
                part="fine-tuning",
                title=title,
                preset=name,
                ours_name=ours,
                ours=elapsed[ours] / steps,
                other_name=other,
                other=elapsed[other] / steps,
                unit="ms a step",
                result=elapsed[other] / elapsed[ours],
                result_unit="x",
                target=target,
            )
            for ours, other, title, target in comparisons
        ]
    return results
