"""Metrics and log of a server: counters for Prometheus, and one JSON document per line on standard error.

Neither contains a user's text, an exception's message, which may quote one, or a label that a user can choose.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import sys
import threading
import time
import traceback
from collections import Counter as Counted
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector, generate_latest

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Last frames of a traceback that are logged.
_LAST_FRAMES = 6
# Seconds between two log lines of one kind from the HTTP server, with which clients could otherwise fill the log.
_QUIET_S = 60.0


# Number of last texts under an exit rule that drift is computed from, and the fewest that it needs.
RECENT_EXITS, FEWEST_EXITS = 1_000, 100


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        seconds = partial(Histogram, buckets=_SECONDS, registry=self.registry)
        self.requests = counter("recurra_requests", "Answered requests.", ["path", "method", "status"])
        self.request_seconds = seconds("recurra_request_seconds", "Time from head to answer.", ["path"])
        self.refused = counter("recurra_refused", "Requests turned away, by reason.", ["code"])
        self.texts = counter("recurra_texts", "Texts computed.", ["model"])
        self.batch_texts = Histogram(
            "recurra_batch_texts", "Texts of a batch.", ["model"], buckets=_TEXTS, registry=self.registry
        )
        self.batch_seconds = seconds("recurra_batch_seconds", "Time to compute a batch.", ["model"])
        exits_help = "Texts of requests with early exits, by the recurrences that they took."
        self.exits = counter("recurra_exits", exits_help, ["model", "recurrences"])
        drift = f"Share of the last {RECENT_EXITS:,} such texts that stop elsewhere than the calibration rows did."
        self.exit_drift = gauge("recurra_exit_drift", drift, ["model"])
        self.reloads = counter("recurra_reloads", "Reloads, by outcome.", ["model", "outcome"])
        self._waiting = gauge("recurra_waiting_texts", "Texts in the queue.", ["model"])
        self._loaded = gauge("recurra_model_loaded_timestamp_seconds", "When a model was loaded.", ["model"])
        self._which = Info("recurra_model", "Which model answers.", ["model"], registry=self.registry)

    def show_model(self, model: str, content_hash: str, loaded_at: datetime, waiting: Callable[[], int]) -> None:
        """Shows which model answers to a name, and its waiting texts, counted when the metrics are read."""
        self._waiting.labels(model).set_function(waiting)
        self._loaded.labels(model).set(loaded_at.timestamp())
        self._which.labels(model).info({"content_hash": content_hash})

    def batches(
        self, model: str, calibrated: Mapping[int, int] | None = None
    ) -> Callable[[int, float, Iterable[int] | None], None]:
        """Returns a function to call with each batch's texts, seconds, and with a rule recurrences taken.

        ``calibrated`` counts calibration rows by the recurrences that they took; none without a calibrated rule.
        """
        texts, sizes = self.texts.labels(model), self.batch_texts.labels(model)
        times = self.batch_seconds.labels(model)
        recent: deque[int] = deque(maxlen=RECENT_EXITS)
        # Also set for a model without a rule, because a model with one may have had the name before.
        self.exit_drift.labels(model).set_function(lambda: distance(Counted(tuple(recent)), calibrated or {}))

        def observe(num_texts: int, seconds: float, exited_after: Iterable[int] | None = None) -> None:
            texts.inc(num_texts)
            sizes.observe(num_texts)
            times.observe(seconds)
            for recurrences, count in Counted(exited_after or ()).items():
                self.exits.labels(model, recurrences).inc(count)
            recent.extend(exited_after or ())

        return observe

    def page(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self.registry)


def distance(taken: Mapping[int, int], calibrated: Mapping[int, int]) -> float:
    """Total variation distance of two counts by recurrences, from 0 to 1; not a number before `FEWEST_EXITS` texts.

    A promise about exits holds for texts like the calibration rows. A distance above the noise, which is 0.02 to 0.05
    for 1,000 texts and some hundred rows, shows that texts leave at other recurrences than those rows.
    """
    texts, rows = sum(taken.values()), sum(calibrated.values())
    if texts < FEWEST_EXITS or not rows:
        return math.nan
    differences = (taken.get(after, 0) / texts - calibrated.get(after, 0) / rows for after in {*taken, *calibrated})
    return sum(map(abs, differences)) / 2


class EventLog:
    """Writes events to a stream (standard error by default); if quiet, errors only."""

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream = stream
        self._quiet = quiet
        self._lock = threading.Lock()

    def write(self, event: str, *, level: str = "info", **fields: Any) -> None:
        """Writes one event with its fields; an event that cannot be written, as on a full disk, is dropped."""
        if self._quiet and level != "error":
            return
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": moment, "level": level, "event": event, **fields}, ensure_ascii=True, default=str)
        # An error here would end an answer, or the thread that computes a model's texts.
        with self._lock, contextlib.suppress(OSError):
            stream = self._stream or sys.stderr
            stream.write(line + "\n")
            stream.flush()

    def failure(self, event: str, error: BaseException, **fields: Any) -> None:
        """Writes the type of an error and its traceback, but not its message, which may quote a text."""
        frames = traceback.extract_tb(error.__traceback__)[-_LAST_FRAMES:]
        where = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
        self.write(event, level="error", error=type(error).__name__, where=where, **fields)


class ServerLogHandler(logging.Handler):
    """Passes on log messages of the HTTP server: each kind once a minute, with a count."""

    def __init__(self, log: EventLog, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(level=logging.WARNING)
        self._log = log
        self._clock = clock
        # By message without its arguments: when it was last written, and how often suppressed since.
        self._written: dict[tuple[str, type | None], tuple[float, int]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record; of an exception only its type and traceback."""
        error = record.exc_info[1] if record.exc_info else None
        kind, now = (str(record.msg), None if error is None else type(error)), self._clock()
        last_written, suppressed = self._written.get(kind, (-math.inf, 0))
        if now - last_written < _QUIET_S:
            self._written[kind] = (last_written, suppressed + 1)
            return
        self._written[kind] = (now, 0)
        if error is not None:
            self._log.failure("server", error, count=suppressed + 1)
        else:
            level = "error" if record.levelno >= logging.ERROR else "warning"
            self._log.write("server", level=level, message=record.getMessage(), count=suppressed + 1)
