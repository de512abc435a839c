from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from recurra.core.record import LatencyRecord
from recurra.evaluation.latency import measure_side_by_side, rows_in


def alone(call: Any, batches: Any, **options: Any) -> LatencyRecord:
    return measure_side_by_side({"model": call}, batches, **options)["model"]


class Bench:
    """A clock that only calls move, by a known time; with a device whose work counts only when it is waited for."""

    def __init__(self, *, asynchronous: bool = False) -> None:
        self.now = self.pending = 0
        self.asynchronous = asynchronous
        self.log: list[tuple[str, Any]] = []

    def clock(self) -> int:
        return self.now

    def synchronise(self) -> None:
        self.now, self.pending = self.now + self.pending, 0

    def model(self, name: str, ns_a_sample: int) -> Any:
        def call(batch: Any) -> None:
            self.log.append((name, batch))
            self.pending += ns_a_sample * rows_in(batch)
            if not self.asynchronous:
                self.synchronise()

        return call


def test_times_are_a_sample_over_the_whole_set_without_a_warm_up_that_covers_it() -> None:
    bench = Bench()
    costs = iter([0, 0, 4, 2, 6])  # ms a batch; the first two are the warm-up

    def call(batch: list[int]) -> None:
        bench.now += next(costs) * 1_000_000

    got = alone(call, [[1, 2], [3, 4], [5]], warmup=2, threads=1, clock=bench.clock)
    assert (got.batch_size, got.samples) == (2, 5)
    assert got.mean_ms == pytest.approx(12 / 5)
    assert got.median_ms == pytest.approx(np.median([2, 1, 6]))
    assert got.p90_ms == pytest.approx(np.percentile([2, 1, 6], 90))
    assert got.p99_ms == pytest.approx(np.percentile([2, 1, 6], 99))
    assert (got.threads, got.device, got.precision, got.scope) == (1, "cpu", "fp32", "model")
    told = alone(len, [[1]], threads=3, device="cuda:1", precision="bf16", scope="text")
    assert (told.threads, told.device, told.precision, told.scope) == (3, "cuda:1", "bf16", "text")
    batches = [[index] for index in range(9)]
    got = alone(bench.model("a", 1_000_000), batches, warmup=3, threads=1, clock=bench.clock)
    assert got.mean_ms == pytest.approx(1.0)
    assert [batch[0] for _, batch in bench.log] == [8, 4, 0, *range(9)]


def test_work_that_the_device_still_does_is_waited_for() -> None:
    bench = Bench(asynchronous=True)
    call = bench.model("a", 1_000_000)
    batches = [[1, 2]] * 4
    synchronised = alone(call, batches, threads=1, synchronise=bench.synchronise, clock=bench.clock)
    assert synchronised.mean_ms == pytest.approx(1.0)
    # The same without waiting sees nothing: this is what the argument is for.
    assert alone(call, batches, threads=1, clock=bench.clock).mean_ms == 0.0


def test_competitors_take_turns_and_each_begins_equally_often() -> None:
    bench = Bench()
    costs, precisions = {"a": 1_000_000, "b": 2_000_000, "c": 500_000}, {"a": "bf16", "b": "fp32", "c": "fp32"}
    calls = {name: bench.model(name, cost) for name, cost in costs.items()}
    batches = [{"input_ids": np.full((4, 5), index)} for index in range(6)]
    got = measure_side_by_side(calls, batches, warmup=0, threads=2, clock=bench.clock, precision=precisions)
    assert {name: record.mean_ms for name, record in got.items()} == pytest.approx({"a": 1.0, "b": 2.0, "c": 0.5})
    assert {name: record.precision for name, record in got.items()} == precisions and got["a"].samples == 24
    order = [bench.log[start : start + 3] for start in range(0, 18, 3)]
    for position, turn in enumerate(order):
        assert {name for name, _ in turn} == {"a", "b", "c"}
        assert all(batch is batches[position] for _, batch in turn)
    assert sorted(turn[0][0] for turn in order) == ["a", "a", "b", "b", "c", "c"]


def test_garbage_collector_is_put_back_also_after_an_error() -> None:
    seen: list[bool] = []

    def call(batch: list[int]) -> None:
        seen.append(gc.isenabled())
        raise RuntimeError("stop")

    assert gc.isenabled()
    with pytest.raises(RuntimeError, match="stop"):
        alone(call, [[1]], warmup=0, threads=1)
    assert seen == [False]
    assert gc.isenabled()
