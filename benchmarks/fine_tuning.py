"""A whole training, `RecurraTrainer` against transformers' Trainer with its BERT class: one pass over the same rows.

Theirs is what a user would write: batches of 16 drawn in random order, padded to the longest of each, FP32. Ours is
what `recurra.training` does. Everything counts that a training does but for evaluation and checkpoints, which both do
without: fetching, padding, steps, and what our side does before the first of them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from benchmarks import corpus as corpora
from benchmarks.lockstep import Job, in_turns
from benchmarks.measures import Measure, Setting
from benchmarks.trainer import PROTOCOL, train_bert, train_ours, trainer_arguments
from recurra.data.encoding import EncodedSplit

OURS, OURS_FP32, BERT = "recurra bf16", "recurra fp32", "BERT, FP32, stock Trainer"


def build(job: Job) -> Callable[[int], None]:
    """Returns a call that trains a fresh model by one pass; call ``i`` takes the ``i``-th rows."""
    split = corpora.read(job.corpus_folder).train
    order = np.random.default_rng(0).permutation(len(split))
    count = job.steps * PROTOCOL.batch_size

    def call(index: int) -> None:
        rows = _picked(split, order[index * count : (index + 1) * count])
        with tempfile.TemporaryDirectory() as folder:
            if job.variant == BERT:
                train_bert(job.preset, rows, trainer_arguments(folder, job.steps, "fp32"))
            else:
                precision = job.variant.removeprefix("recurra ")
                train_ours(job.preset, rows, trainer_arguments(folder, job.steps, precision))

    return call


def _picked(split: EncodedSplit, indices: npt.NDArray[np.int64]) -> EncodedSplit:
    """Some rows of a split, as a split."""
    ids = [split.input_ids[split.offsets[index] : split.offsets[index + 1]] for index in indices]
    offsets = np.cumsum([0, *map(len, ids)])
    return EncodedSplit(input_ids=np.concatenate(ids), offsets=offsets, labels=split.labels[indices])


def measure(setting: Setting) -> list[Measure]:
    """Measures each preset, in turns, on three draws of rows."""
    results = []
    steps, draws = setting.sized(100, 3), setting.sized(3, 2)
    for name in setting.presets:
        jobs = {
            variant: setting.job("fine-tuning", variant, name, steps, keep_memory=variant != BERT)
            for variant in (OURS, OURS_FP32, BERT)
        }
        with setting.competitors(jobs) as competitors:
            elapsed = in_turns(competitors, draws, 1, warmup=1)
        for variant, title, target in (
            (OURS, "a whole training against the stock Trainer with BERT of equal shape", 3.0),
            (OURS_FP32, "the same, ours in FP32 as BERT is", None),
        ):
            results.append(
                Measure(
                    part="fine-tuning",
                    title=title,
                    preset=name,
                    ours_name=variant,
                    ours=elapsed[variant] / steps,
                    other_name=BERT,
                    other=elapsed[BERT] / steps,
                    unit="ms a step",
                    result=elapsed[BERT] / elapsed[variant],
                    result_unit="x",
                    target=target,
                )
            )
    return results
