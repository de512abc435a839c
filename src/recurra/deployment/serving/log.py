"""One JSON document a line on standard error; never a text of a user, nor an exception's message that may quote one."""

from __future__ import annotations

import json
import logging
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

# Frames of a failure that are worth a look.
_LAST_FRAMES = 6
# Seconds between two lines of one kind about what clients do below HTTP: they could fill the log.
_QUIET_S = 60.0


class EventLog:
    """Writes events.

    Args:
        stream: Where to; none takes standard error.
        quiet: Write nothing but errors.
    """

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream = stream
        self._quiet = quiet
        self._lock = threading.Lock()

    def write(self, event: str, *, level: str = "info", **fields: Any) -> None:
        """Writes one event with its fields."""
        if self._quiet and level != "error":
            return
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": moment, "level": level, "event": event, **fields}, ensure_ascii=True, default=str)
        with self._lock:
            stream = self._stream or sys.stderr
            stream.write(line + "\n")
            stream.flush()

    def failure(self, event: str, error: BaseException, **fields: Any) -> None:
        """Writes what kind of error it was and where, but not its message: it may quote a text."""
        frames = traceback.extract_tb(error.__traceback__)[-_LAST_FRAMES:]
        where = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
        self.write(event, level="error", error=type(error).__name__, where=where, **fields)


class ServerLogHandler(logging.Handler):
    """Passes on what the HTTP server itself says: once a minute, with a count.

    Args:
        log: Where to.
        clock: Tells the time in seconds.
    """

    def __init__(self, log: EventLog, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(level=logging.WARNING)
        self._log = log
        self._clock = clock
        # By what was said, before anything was filled in: when last, and how often since.
        self._said: dict[tuple[str, type | None], tuple[float, int]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record; of an exception only its kind and place."""
        error = record.exc_info[1] if record.exc_info else None
        kind, now = (str(record.msg), None if error is None else type(error)), self._clock()
        last, unsaid = self._said.get(kind, (-math.inf, 0))
        if now - last < _QUIET_S:
            self._said[kind] = (last, unsaid + 1)
            return
        self._said[kind] = (now, 0)
        if error is not None:
            self._log.failure("server", error, count=unsaid + 1)
        else:
            level = "error" if record.levelno >= logging.ERROR else "warning"
            self._log.write("server", level=level, message=record.getMessage(), count=unsaid + 1)
