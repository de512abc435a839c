"""How much of torch's rate in matrix products a forward pass reaches: batch 32, length-grouped test sentences.

The rate is that of torch's large square product in the same precision, taken in turns with the batches; the rate at
the model's own four shapes is printed beside it. Another library's may be faster: in FP32 ONNX Runtime's is level on an
AMD EPYC of Zen 4 (92 and 88 G operations a second, one thread, busy). Operations are those executed, padding included
(`recurra.models.presets.forward_flops`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks import corpus as corpora
from benchmarks import models
from benchmarks.lockstep import Job, ask
from benchmarks.measures import Measure, Setting
from benchmarks.turns import timed_s
from recurra.deployment.engines.trained import FlatRows, TransformerEngine
from recurra.models.configuration import RecurraConfig
from recurra.models.inference import PRECISIONS
from recurra.models.presets import forward_flops

BATCH_SIZE = 32
SQUARE = 2048


def build(job: Job) -> Callable[[int], dict[str, float]]:
    """Returns a call that measures one preset in one precision (the variant), over ``job.steps`` rounds."""
    corpus = corpora.Corpus(job.corpus_folder)
    split = corpus.test
    engine = TransformerEngine(
        models.ours(job.preset), corpus.tokenizer, precision=job.variant, max_length=corpora.MAX_LENGTH
    )
    config = engine.model.config
    batches = [inputs for _, inputs in FlatRows(split.input_ids, split.offsets, 0).padded(BATCH_SIZE)]
    operations = [_operations(config, batch) for batch in batches]
    square = torch.randn(SQUARE, SQUARE).to(PRECISIONS[job.variant])
    shapes = _products(config, PRECISIONS[job.variant], tokens=BATCH_SIZE * round(float(split.lengths.mean())))

    @torch.inference_mode()
    def call(_: int) -> dict[str, float]:
        for batch in (batches[0], batches[-1]):
            engine.model(**batch)
        seconds = np.full(len(batches), np.inf)
        square_rates, own_rates = [], []
        for _ in range(job.steps):
            for index, batch in enumerate(batches):
                seconds[index] = min(seconds[index], timed_s(partial(engine.model, **batch)))
                if index % 8 == 0:
                    square_rates.append(2 * SQUARE**3 / timed_s(lambda: square @ square))
                    own_rates.append(shapes["operations"] / timed_s(shapes["run"]))
        return {
            "forward": sum(operations) / float(seconds.sum()) / 1e9,
            "square": float(np.median(square_rates)) / 1e9,
            "own": float(np.median(own_rates)) / 1e9,
        }

    return call


def _operations(config: RecurraConfig, batch: Mapping[str, torch.Tensor]) -> float:
    rows, tokens = batch["input_ids"].shape
    return rows * forward_flops(config, tokens)


def _products(config: RecurraConfig, dtype: torch.dtype, tokens: int) -> dict[str, Any]:
    width, inner = config.hidden_size, config.intermediate_size
    shapes = ((width, 3 * width), (width, width), (width, 2 * inner), (inner, width))
    pairs = [(torch.randn(tokens, a).to(dtype), torch.randn(b, a).to(dtype)) for a, b in shapes]
    operations = sum(2 * tokens * a * b for a, b in shapes)
    return {"operations": operations, "run": lambda: [torch.nn.functional.linear(x, w) for x, w in pairs]}


def measure(setting: Setting) -> list[Measure]:
    """Measures both presets in FP32 and bf16."""
    results = []
    for name in setting.presets:
        for precision, target in (("fp32", 70.0), ("bf16", 55.0)):
            rates = ask(setting.job(__name__, precision, name, setting.sized(3, 1), keep_memory=True))
            square = f"torch's {SQUARE} x {SQUARE} product"
            share = f"share of torch's matrix-product rate in a forward pass, {precision}"
            for key, against, title, goal in (
                ("square", square, share, target),
                (
                    "own",
                    "a layer's four products",
                    f"the same, of the rate at the model's own shapes, {precision}",
                    None,
                ),
            ):
                results.append(
                    Measure(
                        part="forward",
                        title=title,
                        preset=name,
                        ours_name=f"forward pass, batch {BATCH_SIZE}",
                        ours=rates["forward"],
                        other_name=against,
                        other=rates[key],
                        unit="GFLOP/s",
                        result=100 * rates["forward"] / rates[key],
                        result_unit="%",
                        target=goal,
                    )
                )
    return results
