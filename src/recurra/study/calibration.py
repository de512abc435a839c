"""A few training steps of a model with new weights, timed: how many operations a second this machine does for it."""

from __future__ import annotations

import statistics
import time

from recurra.study.cost import BACKWARD
from recurra.tasks.base import task_of_data
from recurra.tasks.runs import RunConfig

MEASURED_S = 2.0
LEAST_STEPS = 3


def training_speed(
    config: RunConfig, mean_tokens: float, *, threads: int, seconds: float = MEASURED_S, steps: int = LEAST_STEPS
) -> float:
    """Times training steps on made-up rows of the mean length.

    Args:
        config: The run whose model, batch size and precision are taken.
        mean_tokens: Mean length of its rows.
        threads: Threads of one run.
        seconds: How long steps are timed.
        steps: How many are timed at least, after one that is not.

    Returns:
        Operations a second, counted as in `recurra.study.cost`.

    Raises:
        ConfigurationError: If the model configuration is wrong.
    """
    from recurra.models.inference import torch_threads

    with torch_threads(threads):
        forward, step_s = _step(config, mean_tokens, seconds, steps)
    return (1 + BACKWARD) * forward * config.protocol.batch_size / step_s


def _step(config: RunConfig, mean_tokens: float, seconds: float, steps: int) -> tuple[float, float]:
    """Operations of a forward pass over one row, and the median seconds of a step."""
    import torch

    from recurra.models.inference import default_device

    device = default_device()
    length, rows = max(3, round(mean_tokens)), config.protocol.batch_size
    model, forward, labels = task_of_data(config.data).engine.sample_step(config, length)
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, int(model.config.vocab_size), (rows, length), generator=generator).to(device)
    batch = {"input_ids": ids, "labels": ids if labels is None else labels.to(device)}
    precisions = {"bf16": torch.bfloat16, "fp16": torch.float16}
    dtype = precisions.get(config.precision, torch.bfloat16)
    elapsed: list[float] = []
    began = time.perf_counter()
    while len(elapsed) <= steps or time.perf_counter() - began < seconds:
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
