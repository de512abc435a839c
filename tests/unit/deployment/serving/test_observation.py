"""The log: what clients do below HTTP cannot fill it."""

from __future__ import annotations

import io
import itertools
import json
import logging
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurra.deployment.serving.observation import FEWEST_EXITS, EventLog, Metrics, ServerLogHandler, distance

# The distance is the largest gap of any event's shares, and an event is a sign a place.
SIGNS = [np.array(signs) for signs in itertools.product((-1, 1), repeat=6)]


def test_one_line_a_minute_with_a_count() -> None:
    stream, now = io.StringIO(), [0.0]
    logger = logging.Logger("server")
    logger.addHandler(ServerLogHandler(EventLog(stream), clock=lambda: now[0]))
    for second in range(150):
        now[0] = second
        for number in range(3):
            logger.warning("request %d cannot be read", number)
        if second == 30:
            logger.error("another")
            logger.error("failed", exc_info=ValueError("my-secret"))
            logger.error("failed", exc_info=KeyError("my-secret"))
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [event["count"] for event in events if event["level"] == "warning"] == [1, 180, 180]
    assert events[0]["message"] == "request 0 cannot be read"
    errors = [event.get("error", event.get("message")) for event in events if event["level"] == "error"]
    assert errors == ["another", "ValueError", "KeyError"] and "my-secret" not in stream.getvalue()


COUNTS = st.dictionaries(st.integers(1, 6), st.integers(0, 500), max_size=6)


@given(COUNTS, COUNTS, st.integers(2, 9))
def test_drift_is_the_total_variation_distance(taken: dict[int, int], calibrated: dict[int, int], times: int) -> None:
    drift = distance(taken, calibrated)
    if sum(taken.values()) < FEWEST_EXITS or not sum(calibrated.values()):
        assert math.isnan(drift)
        return
    shares = [np.array([counts.get(after, 0) for after in range(1, 7)], float) for counts in (taken, calibrated)]
    largest = max(abs((shares[0] / shares[0].sum() - shares[1] / shares[1].sum()) @ sign) for sign in SIGNS)
    assert drift == pytest.approx(largest / 2, abs=1e-9)
    assert drift == pytest.approx(distance({after: times * count for after, count in taken.items()}, calibrated))


def test_drift_is_that_of_the_model_that_answers_now() -> None:
    metrics = Metrics()

    def drift() -> float:
        line = next(line for line in metrics.page().decode().splitlines() if line.startswith("recurra_exit_drift{"))
        return float(line.rpartition(" ")[2])

    metrics.batches("one", {1: 90, 2: 10})(200, 0.1, [2] * 200)
    assert drift() == pytest.approx(0.9)
    metrics.batches("one", {1: 90, 2: 10})
    assert math.isnan(drift())
    metrics.batches("one")(200, 0.1, [2] * 200)
    assert math.isnan(drift())
