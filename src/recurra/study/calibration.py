"""A few training steps of a model with new weights, timed: how many operations a second this machine does for it."""

from __future__ import annotations

import statistics
import time
from typing import Any

from recurra.study.cost import BACKWARD
from recurra.study.spec import RunConfig

MEASURED_S = 2.0
LEAST_STEPS = 3


def calibrate(config: RunConfig, mean_tokens: float, *, threads: int) -> float:
    """Times training steps on made-up rows of the mean length.

    Args:
        config: The run whose model, batch size and precision are taken.
        mean_tokens: Mean length of its rows.
        threads: Threads of one run.

    Returns:
        Operations a second, counted as in `recurra.study.cost`.

    Raises:
        ConfigurationError: If the model configuration is wrong.
    """
    from recurra.models.inference import torch_threads

    with torch_threads(threads):
        forward, step_s = _step(config, mean_tokens)
    return (1 + BACKWARD) * forward * config.protocol.batch_size / step_s


def _step(config: RunConfig, mean_tokens: float) -> tuple[float, float]:
    """Operations of a forward pass over one row, and the median seconds of a step."""
    import torch

    from recurra.models.inference import default_device

    device = default_device()
    length, rows = max(3, round(mean_tokens)), config.protocol.batch_size
    model, forward, labels = _model_of(config, length)
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, int(model.config.vocab_size), (rows, length), generator=generator).to(device)
    batch = {"input_ids": ids, "labels": ids if labels is None else labels.to(device)}
    precisions = {"bf16": torch.bfloat16, "fp16": torch.float16}
    dtype = precisions.get(config.precision, torch.bfloat16)
    elapsed: list[float] = []
    began = time.perf_counter()
    while len(elapsed) <= LEAST_STEPS or time.perf_counter() - began < MEASURED_S:
        start = time.perf_counter()
        with torch.autocast(device.type, dtype, enabled=config.precision in precisions):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if device.type != "cpu":
            torch.cuda.synchronize()
        elapsed.append(time.perf_counter() - start)
    # The first step also sets everything up.
    return forward, statistics.median(elapsed[1:])


def _model_of(config: RunConfig, length: int) -> tuple[Any, float, Any]:
    """A model with new weights, operations of its forward pass over a row, and labels (none: the tokens themselves)."""
    import torch

    from recurra.models.accounting import forward_flops, language_flops
    from recurra.models.language_modeling import RecurraForCausalLM
    from recurra.models.modeling import RecurraForSequenceClassification
    from recurra.study.language_preflight import language_configuration
    from recurra.study.preflight import model_configuration

    if config.models_language:
        text = language_configuration(config, None, None)
        return RecurraForCausalLM(text), language_flops(text, length, with_exits=True), None
    shape = model_configuration(config, ["0", "1"], None)
    labels = torch.arange(config.protocol.batch_size) % 2
    return RecurraForSequenceClassification(shape), forward_flops(shape, length), labels
