"""Short calls timed in turns within one process: A B A B, so that a machine whose speed drifts is the same for all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def timed_s(call: Callable[[], object]) -> float:
    """Seconds of a call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def median_ms(calls: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Returns the median milliseconds of each call over ``repeats`` rounds; every round makes each call once."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            times[name].append(1e3 * timed_s(call))
    return {name: statistics.median(values) for name, values in times.items()}
