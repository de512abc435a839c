"""The log: what clients do below HTTP cannot fill it."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

from recurra.deployment.serving.observation import EventLog, ServerLogHandler


def test_one_line_a_minute_with_a_count() -> None:
    stream, now = io.StringIO(), [0.0]
    logger = logging.Logger("server")
    logger.addHandler(ServerLogHandler(EventLog(stream), clock=lambda: now[0]))

    def said() -> list[dict[str, Any]]:
        events = [json.loads(line) for line in stream.getvalue().splitlines()]
        stream.seek(0)
        stream.truncate()
        return events

    for second in range(150):
        now[0] = second
        for number in range(3):
            logger.warning("request %d cannot be read", number)
        if second == 30:
            logger.error("another")
            logger.error("failed", exc_info=ValueError("my-secret"))
            logger.error("failed", exc_info=KeyError("my-secret"))
    events = said()
    assert [event["count"] for event in events if event["level"] == "warning"] == [1, 180, 180]
    assert events[0]["message"] == "request 0 cannot be read"
    assert [event.get("error", event.get("message")) for event in events if event["level"] == "error"] == [
        "another", "ValueError", "KeyError",
    ]  # fmt: skip
    assert "my-secret" not in json.dumps(events)
