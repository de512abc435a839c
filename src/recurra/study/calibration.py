"""A few training steps of a model with new weights, timed: how many operations a second this machine does for it."""

from __future__ import annotations

import statistics
import time

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
    import torch

    from recurra.models.accounting import forward_flops
    from recurra.models.inference import default_device
    from recurra.models.modeling import RecurraForSequenceClassification
    from recurra.study.preflight import model_configuration

    torch.set_num_threads(threads)
    device = default_device()
    shape = model_configuration(config, ["0", "1"], None)
    model = RecurraForSequenceClassification(shape).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    length, rows = max(3, round(mean_tokens)), config.protocol.batch_size
    generator = torch.Generator().manual_seed(0)
    batch = {
        "input_ids": torch.randint(1, int(shape.vocab_size), (rows, length), generator=generator).to(device),
        "labels": torch.randint(0, 2, (rows,), generator=generator).to(device),
    }
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
    return (1 + BACKWARD) * forward_flops(shape, length) * rows / statistics.median(elapsed[1:])
