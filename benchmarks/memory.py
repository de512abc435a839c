"""Peak memory of a training run, each in a fresh process: `RecurraTrainer` in bf16, and BERT with the stock Trainer.

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
from recurra.data.batching import Collator
from recurra.training.memory import peak_memory_mib
from recurra.training.vocabulary import reachable_vocabulary

OURS, BERT = "recurra bf16", "BERT"


def build(job: Job) -> Callable[[int], dict[str, float]]:
    """Returns a call that trains ``job.steps`` steps and gives the process's peak in MiB, and what it was before."""
    split = corpora.read(job.corpus_folder).train

    def call(_: int) -> dict[str, float]:
        before = peak_memory_mib()
        with tempfile.TemporaryDirectory() as folder:
            if job.variant == OURS:
                model = models.ours(job.preset)
                with reachable_vocabulary(model, [split]) as (rows,):
                    our_trainer(model, rows, trainer_arguments(folder, job.steps, "bf16"), []).train()
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
        ours = ask(setting.job("memory", OURS, name, steps, keep_memory=True))["peak_mib"]
        bert = ask(setting.job("memory", BERT, name, steps))["peak_mib"]
        results.append(
            Measure(
                part="memory",
                title="peak memory of a training run, of BERT's",
                preset=name,
                ours_name=OURS,
                ours=ours,
                other_name="BERT, FP32, stock Trainer",
                other=bert,
                unit="MiB",
                result=100 * ours / bert,
                result_unit="%",
                target=100.0,
                at_most=True,
            )
        )
    return results
