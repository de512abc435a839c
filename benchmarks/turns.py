"""Short calls timed in turns within one process: A B A B, so that a machine whose speed drifts is the same for all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def median_ms(calls: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Returns the median milliseconds of each call over ``repeats`` rounds; every round makes each call once."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter_ns()
            call()
            times[name].append((time.perf_counter_ns() - start) / 1e6)
    return {name: statistics.median(values) for name, values in times.items()}
