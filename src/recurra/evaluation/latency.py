"""The one timing module: real inputs at their real lengths, warmed up, synchronised, competitors interleaved.

Figures of two models are only comparable when they were taken in the same process with the batches taken in turns: a
machine's speed drifts by more than most models differ. So the comparison is `measure_side_by_side`, and
`measure_latency` is the same with one competitor.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from recurra.core.record import LatencyRecord

Call = Callable[[Any], Any]
Clock = Callable[[], int]


def rows_in(batch: Any) -> int:
    """Number of samples in a batch: the first dimension of ``input_ids`` (or of the first value) or the length."""
    if isinstance(batch, Mapping):
        batch = batch["input_ids"] if "input_ids" in batch else next(iter(batch.values()))
    return len(batch)


def synchroniser(device: str) -> Callable[[], None] | None:
    """What waits until the device has finished: ``None`` for the processor, which never runs ahead."""
    kind = device.partition(":")[0]
    if kind == "cpu":
        return None
    import torch

    if kind == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return lambda: getattr(torch, kind).synchronize()


def measure_latency(
    call: Call,
    batches: Sequence[Any],
    *,
    warmup: int = 5,
    synchronise: Callable[[], None] | None = None,
    threads: int,
    precision: str = "fp32",
    device: str = "cpu",
    scope: Literal["model", "text"] = "model",
    clock: Clock = time.perf_counter_ns,
) -> LatencyRecord:
    """Times one model over a whole set; see `measure_side_by_side` for the arguments and what is counted."""
    records = measure_side_by_side(
        {"model": call},
        batches,
        warmup=warmup,
        synchronise=synchronise,
        threads=threads,
        precision=precision,
        device=device,
        scope=scope,
        clock=clock,
    )
    return records["model"]


def measure_side_by_side(
    calls: Mapping[str, Call],
    batches: Sequence[Any] | Mapping[str, Sequence[Any]],
    *,
    warmup: int = 5,
    synchronise: Callable[[], None] | None = None,
    threads: int,
    precision: str | Mapping[str, str] = "fp32",
    device: str | Mapping[str, str] = "cpu",
    scope: Literal["model", "text"] = "model",
    clock: Clock = time.perf_counter_ns,
) -> dict[str, LatencyRecord]:
    """Times several models over the same set in one run, batch by batch in turns.

    Within a batch every competitor is called once; who begins rotates from batch to batch, so that none always
    finds the caches as the same other one left them. The garbage collector is off meanwhile.

    Args:
        calls: What to time, by name; called with one batch, the result is dropped.
        batches: The whole set in batches of real lengths (padding is the caller's and is timed as it is), or one such
            list a competitor, with the same samples in the same batches (a linear model takes texts, not tokens).
        warmup: Untimed calls of each competitor before, on batches spread over the set so that many lengths are seen.
        synchronise: Waits for the device, before the clock starts and before it stops; from `synchroniser`.
        scope: ``model`` (tokenised input to logits) or ``text`` (text to label), for the record.

    Returns:
        A record a competitor: median, 90th and 99th percentile over batches of the time a sample, and total time by
        samples.
    """
    inputs = _inputs_by_name(calls, batches)
    sizes = _sizes(inputs)
    wait = synchronise or _no_wait
    names = list(calls)
    elapsed = {name: np.zeros(len(sizes), dtype=np.int64) for name in names}
    for position in _spread(len(sizes), warmup):
        for name in names:
            calls[name](inputs[name][position])
    wait()
    with _garbage_collector_off():
        for position in range(len(sizes)):
            turn = position % len(names)
            for name in names[turn:] + names[:turn]:
                batch = inputs[name][position]
                wait()
                start = clock()
                calls[name](batch)
                wait()
                elapsed[name][position] = clock() - start
    samples = np.asarray(sizes, dtype=np.float64)
    return {
        name: _record(
            elapsed[name] / 1e6,
            samples,
            precision=_of(precision, name),
            threads=threads,
            device=_of(device, name),
            scope=scope,
        )
        for name in names
    }


def _record(
    batch_ms: np.ndarray,
    samples: np.ndarray,
    *,
    precision: str,
    threads: int,
    device: str,
    scope: Literal["model", "text"],
) -> LatencyRecord:
    a_sample = batch_ms / samples
    return LatencyRecord(
        batch_size=int(samples.max()),
        samples=int(samples.sum()),
        median_ms=float(np.median(a_sample)),
        p90_ms=float(np.percentile(a_sample, 90)),
        p99_ms=float(np.percentile(a_sample, 99)),
        mean_ms=float(batch_ms.sum() / samples.sum()),
        precision=precision,
        threads=threads,
        device=device,
        scope=scope,
    )


def _inputs_by_name(
    calls: Mapping[str, Call], batches: Sequence[Any] | Mapping[str, Sequence[Any]]
) -> dict[str, Sequence[Any]]:
    if not calls:
        raise ValueError("there is nothing to time: no call was given")
    if not isinstance(batches, Mapping):
        return dict.fromkeys(calls, batches)
    if set(batches) != set(calls):
        raise ValueError(f"batches are for {sorted(batches)}, calls for {sorted(calls)}; they must name the same")
    return dict(batches)


def _sizes(inputs: Mapping[str, Sequence[Any]]) -> list[int]:
    by_name = {name: [rows_in(batch) for batch in batches] for name, batches in inputs.items()}
    first = next(iter(by_name.values()))
    if not first or min(first) < 1:
        raise ValueError("there is nothing to time: no batch, or an empty one")
    different = [name for name, sizes in by_name.items() if sizes != first]
    if different:
        raise ValueError(f"competitors must get the same samples in the same batches; these differ: {different}")
    return first


def _spread(count: int, wanted: int) -> list[int]:
    """Positions spread evenly over the set, the last one (often the longest) among them."""
    return [int(position) for position in np.linspace(count - 1, 0, max(wanted, 0)).round()]


def _of(value: str | Mapping[str, str], name: str) -> str:
    return value if isinstance(value, str) else value[name]


def _no_wait() -> None:
    """The processor has finished when the call returns."""


@contextlib.contextmanager
def _garbage_collector_off() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
