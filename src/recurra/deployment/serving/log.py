"""One JSON document a line on standard error; never a text of a user, nor an exception's message that may quote one."""

from __future__ import annotations

import json
import logging
import sys
import threading
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

# Frames of a failure that are worth a look.
_LAST_FRAMES = 6


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
    """Passes on what the HTTP server itself says."""

    def __init__(self, log: EventLog) -> None:
        super().__init__(level=logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record; of an exception only its kind and place."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            self._log.failure("server", error)
        else:
            level = "error" if record.levelno >= logging.ERROR else "warning"
            self._log.write("server", level=level, message=record.getMessage())
