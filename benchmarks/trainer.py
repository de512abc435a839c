"""Costs of the Trainer and the data pipeline beyond the bare step: the same batches, step by step in turns.

After each step of `RecurraTrainer` a plain loop does a step on a later batch, made before, with the same model and the
same optimiser. (Two models of one shape differ by 2 to 4 % in speed by where their memory lies, and of two steps on one
batch the second is faster.) The Trainer's time runs from the end of the plain step to the end of its own, so fetching
and padding count.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils import clip_grad_norm_
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from benchmarks import corpus as corpora
from benchmarks import models
from benchmarks.lockstep import Job, ask
from benchmarks.measures import Measure, Setting
from recurra.core.progress import Reporter
from recurra.data.batching import Collator, LengthGroupedBatchSampler
from recurra.data.encoding import EncodedSplit
from recurra.models.inference import autocast
from recurra.training.fit import training_arguments
from recurra.training.protocols import PROTOCOLS
from recurra.training.trainer import RecurraTrainer, TaskProgress, TimedCheckpoints
from recurra.training.vocabulary import reachable_vocabulary

PROTOCOL = PROTOCOLS["paper"]


# Batches by which the plain loop is ahead, so that neither loop has just seen the other's batch.
AHEAD = 7


class PlainLoop(TrainerCallback):
    """Does a bare step after each step of the Trainer, on the model that the Trainer trains."""

    def __init__(self, batches: list[dict[str, torch.Tensor]]) -> None:
        self.batches = batches
        self.trainer_ms: dict[int, float] = {}
        self.plain_ms: dict[int, float] = {}
        self._mark: int | None = None

    def on_step_end(self, args: Any, state: Any, control: Any, *, model: Any, optimizer: Any, **_: Any) -> None:  # noqa: ARG002
        """Notes the Trainer's time, then does and notes the plain step."""
        now = time.perf_counter_ns()
        optimizer, index = optimizer.optimizer, (state.global_step - 1 + AHEAD) % len(self.batches)
        if self._mark is not None:
            self.trainer_ms[state.global_step - 1] = (now - self._mark) / 1e6
        start = time.perf_counter_ns()
        with autocast("bf16", torch.device("cpu")):
            # The method of the class, because accelerate has wrapped that of the instance.
            loss = type(model).forward(model, **self.batches[index]).loss
        loss.backward()
        clip_grad_norm_(model.parameters(), PROTOCOL.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        end = time.perf_counter_ns()
        if self._mark is not None:
            self.plain_ms[index] = (end - start) / 1e6
        self._mark = time.perf_counter_ns()


def trainer_arguments(folder: str, steps: int, precision: str) -> Any:
    """The arguments of our training, for so many steps, without evaluation and checkpoints."""
    arguments = training_arguments(PROTOCOL, Path(folder), seed=0, precision=precision)
    arguments.max_steps = steps
    arguments.eval_strategy = IntervalStrategy.NO
    arguments.save_strategy = SaveStrategy.NO
    arguments.load_best_model_at_end = False
    # A plateau schedule needs evaluations, and there are none.
    arguments.lr_scheduler_type = "constant"
    arguments.lr_scheduler_kwargs = {}
    return arguments


def our_trainer(model: Any, split: EncodedSplit, arguments: Any) -> RecurraTrainer:
    """`RecurraTrainer` as our training makes it."""
    collator = Collator(model.config.pad_token_id or 0)
    # Stopping early needs evaluations too.
    protocol = PROTOCOL.model_copy(update={"early_stopping_patience": 0})
    reporter = Reporter(quiet=True)
    trainer = RecurraTrainer(
        model, split, protocol, arguments, reporter, progress=TaskProgress(), collator=collator, data_seed=0
    )
    # Nothing here makes checkpoints, and steps may be fewer than epochs.
    trainer.remove_callback(TimedCheckpoints)
    return trainer


def train_ours(preset: str, rows: EncodedSplit, arguments: Any) -> None:
    """Trains a fresh model of ours, with the token rows that the data reach."""
    model = models.ours(preset)
    with reachable_vocabulary(model, [rows]) as (narrowed,):
        our_trainer(model, narrowed, arguments).fit()


def train_bert(preset: str, rows: EncodedSplit, arguments: Any) -> None:
    """Trains a fresh BERT of equal shape with transformers' Trainer: shuffled, padded to the longest of a batch."""
    trainer = Trainer(models.bert(preset), arguments, Collator(0), rows)
    trainer.remove_callback(PrinterCallback)
    trainer.train()


def build(job: Job) -> Callable[[int], dict[str, list[float]]]:
    """Returns a call that trains ``job.steps`` steps both ways and gives the milliseconds of each step."""
    split = corpora.Corpus(job.corpus_folder).train

    def call(_: int) -> dict[str, list[float]]:
        model = models.ours(job.preset)
        with tempfile.TemporaryDirectory() as folder, reachable_vocabulary(model, [split]) as (rows,):
            collator = Collator(model.config.pad_token_id or 0)
            order = iter(LengthGroupedBatchSampler(rows.lengths, PROTOCOL.batch_size, seed=0))
            batches = [collator(rows.__getitems__(next(order))) for _ in range(job.steps)]
            loop = PlainLoop(batches)
            trainer = our_trainer(model, rows, trainer_arguments(folder, job.steps, "bf16"))
            trainer.add_callback(loop)
            trainer.fit()
            timed_steps = sorted(loop.trainer_ms.keys() & loop.plain_ms.keys())
            return {
                "trainer_ms": [loop.trainer_ms[index] for index in timed_steps],
                "plain_ms": [loop.plain_ms[index] for index in timed_steps],
            }

    return call


def measure(setting: Setting) -> list[Measure]:
    """Measures both presets."""
    results = []
    for name in setting.presets:
        job = setting.job(__name__, "recurra bf16", name, setting.sized(120, 6), keep_memory=True)
        times = ask(job)
        trainer_ms, plain_ms = np.array(times["trainer_ms"]), np.array(times["plain_ms"])
        plain = float(np.median(plain_ms))
        # Pairs of the same batch: their difference does not depend on the batches' lengths.
        beyond = float(np.median(trainer_ms - plain_ms))
        results.append(
            Measure(
                part="trainer",
                title="Trainer and data pipeline beyond the bare step",
                preset=name,
                ours_name="RecurraTrainer",
                ours=plain + beyond,
                other_name="bare loop, same batches",
                other=plain,
                unit="ms a step",
                result=100 * beyond / plain,
                result_unit="%",
                target=5.0,
                at_most=True,
            )
        )
    return results
