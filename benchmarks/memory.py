"""Peak memory of a training run, each in a fresh process: `RecurraTrainer`, and BERT with the stock Trainer.

The same rows and as many steps of 16; no evaluation and no checkpoint. Both processes have the same libraries loaded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable

from transformers import Trainer
from transformers.trainer_callback import PrinterCallback

from benchmarks import corpus as corpora
from benchmarks import models
from benchmarks.lockstep import Job, ask
from benchmarks.measures import Measure, Setting
from benchmarks.trainer import our_trainer, trainer_arguments
from recurra.core.memory import peak_memory_mib
from recurra.data.batching import Collator
from recurra.training.vocabulary import reachable_vocabulary

OURS, OURS_FP32, BERT = "recurra bf16", "recurra fp32", "BERT"


def build(job: Job) -> Callable[[int], dict[str, float]]:
    """Returns a call that trains ``job.steps`` steps and gives the process's peak in MiB, and what it was before."""
    split = corpora.read(job.corpus_folder).train

    def call(_: int) -> dict[str, float]:
        before = peak_memory_mib()
        with tempfile.TemporaryDirectory() as folder:
            if job.variant != BERT:
                model = models.ours(job.preset)
                with reachable_vocabulary(model, [split]) as (rows,):
                    arguments = trainer_arguments(folder, job.steps, job.variant.removeprefix("recurra "))
                    our_trainer(model, rows, arguments, []).train()
            else:
                model = models.bert(job.preset)
                trainer = Trainer(
                    model=model,
                    args=trainer_arguments(folder, job.steps, "fp32"),
                    train_dataset=split,
                    data_collator=Collator(0),
                )
                trainer.remove_callback(PrinterCallback)
                trainer.train()
        return {"peak_mib": peak_memory_mib(), "before_mib": before}

    return call


def measure(setting: Setting) -> list[Measure]:
    """Measures both presets."""
    results = []
    steps = setting.sized(150, 4)
    for name in setting.presets:
        bert = ask(setting.job("memory", BERT, name, steps))["peak_mib"]
        for variant, title, target in (
            (OURS, "peak memory of a training run, of BERT's", 100.0),
            (OURS_FP32, "the same, ours in FP32 as BERT is", None),
        ):
            ours = ask(setting.job("memory", variant, name, steps, keep_memory=True))["peak_mib"]
            results.append(
                Measure(
                    part="memory",
                    title=title,
                    preset=name,
                    ours_name=variant,
                    ours=ours,
                    other_name="BERT, FP32, stock Trainer",
                    other=bert,
                    unit="MiB",
                    result=100 * ours / bert,
                    result_unit="%",
                    target=target,
                    at_most=True,
                )
            )
    return results
