"""Peak memory of a training run, each in a fresh process: `RecurraTrainer`, and BERT with the stock Trainer.

The same rows and as many steps of 16; no evaluation and no checkpoint. Both processes have the same libraries loaded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable

from benchmarks import corpus as corpora
from benchmarks.lockstep import Job, ask
from benchmarks.measures import Measure, Setting
from benchmarks.trainer import train_bert, train_ours, trainer_arguments
from recurra.core.environment import peak_memory_mib

OURS, OURS_FP32, BERT = "recurra bf16", "recurra fp32", "BERT"


def build(job: Job) -> Callable[[int], dict[str, float]]:
    """Returns a call that trains ``job.steps`` steps and returns the process's peak in MiB, after and before."""
    split = corpora.Corpus(job.corpus_folder).train

    def call(_: int) -> dict[str, float]:
        before = peak_memory_mib()
        with tempfile.TemporaryDirectory() as folder:
            if job.variant == BERT:
                train_bert(job.preset, split, trainer_arguments(folder, job.steps, "fp32"))
            else:
                precision = job.variant.removeprefix("recurra ")
                train_ours(job.preset, split, trainer_arguments(folder, job.steps, precision))
        return {"peak_mib": peak_memory_mib(), "before_mib": before}

    return call


def measure(setting: Setting) -> list[Measure]:
    """Measures both presets."""
    results = []
    steps = setting.sized(150, 4)
    for name in setting.presets:
        bert = ask(setting.job(__name__, BERT, name, steps))["peak_mib"]
        for variant, title, target in (
            (OURS, "peak memory of a training run, of BERT's", 100.0),
            (OURS_FP32, "the same, ours in FP32 as BERT is", None),
        ):
            ours = ask(setting.job(__name__, variant, name, steps, keep_memory=True))["peak_mib"]
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
