"""The one timing module: real inputs at their real lengths, warmed up, synchronised, competitors interleaved.

Times of two models can only be compared if both were measured in the same process, batch by batch in turns: a machine's
speed drifts by more than most models differ.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from recurra.core.environment import without_collector
from recurra.core.record import LatencyRecord

Call = Callable[[Any], Any]


def rows_in(batch: Any) -> int:
    """Number of samples in a batch: the first dimension of ``input_ids`` (or of the first value) or the length."""
    if isinstance(batch, Mapping):
        batch = batch["input_ids"] if "input_ids" in batch else next(iter(batch.values()))
    return len(batch)


def synchroniser(device: str) -> Callable[[], None] | None:
    """A function that waits until the device has finished; ``None`` for a CPU, which computes synchronously."""
    if device == "cpu":
        return None
    import torch

    return lambda: torch.cuda.synchronize(device)


def measure_side_by_side(
    calls: Mapping[str, Call],
    batches: Sequence[Any],
    *,
    warmup: int = 5,
    synchronise: Callable[[], None] | None = None,
    threads: int,
    precision: str | Mapping[str, str] = "fp32",
    device: str = "cpu",
    scope: Literal["model", "text"] = "model",
    clock: Callable[[], int] = time.perf_counter_ns,
) -> dict[str, LatencyRecord]:
    """Times several models over the same set in one run, batch by batch in turns.

    The model that begins rotates, so that no model always finds the caches as the same other one left them. The garbage
    collector is off. Batches have real lengths, and their padding is timed too.
    """
    names, sizes = list(calls), [rows_in(batch) for batch in batches]
    wait = synchronise or (lambda: None)
    batch_ms = {name: np.zeros(len(sizes)) for name in names}
    # The warm-up includes the last batch, which is often the longest.
    for position in np.linspace(len(sizes) - 1, 0, max(warmup, 0)).round().astype(int).tolist():
        for name in names:
            calls[name](batches[position])
    wait()
    gc.collect()
    with without_collector():
        for position, batch in enumerate(batches):
            first = position % len(names)
            for name in names[first:] + names[:first]:
                wait()
                start = clock()
                calls[name](batch)
                wait()
                batch_ms[name][position] = (clock() - start) / 1e6
    records = {}
    for name, elapsed in batch_ms.items():
        median, p90, p99 = np.percentile(elapsed / sizes, [50, 90, 99]).tolist()
        records[name] = LatencyRecord(
            batch_size=max(sizes),
            samples=sum(sizes),
            median_ms=median,
            p90_ms=p90,
            p99_ms=p99,
            mean_ms=float(elapsed.sum() / sum(sizes)),
            precision=precision if isinstance(precision, str) else precision[name],
            threads=threads,
            device=device,
            scope=scope,
        )
    return records
