"""Runs an application on uvicorn: a socket of ours, patience with limits, and an end that finishes what was begun."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from recurra.core.errors import UnavailableError
from recurra.deployment.serving.gate import Gate
from recurra.deployment.serving.log import EventLog, ServerLogHandler
from recurra.deployment.serving.refusals import error_body
from recurra.deployment.serving.settings import Limits

# Bytes of a request's line and headers.
_MOST_HEAD_BYTES = 64 * 1024
_KEEP_ALIVE_S = 30


class Server(uvicorn.Server):
    """Stops on SIGTERM and SIGINT once what it accepted is answered, and then returns instead of dying of the signal.

    Args:
        config: Uvicorn's configuration.
        started: Called when it takes connections.
    """

    def __init__(self, config: uvicorn.Config, started: Callable[[], None] | None = None) -> None:
        super().__init__(config)
        self._when_started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts, and says so."""
        await super().startup(sockets=sockets)
        if self.started and self._when_started is not None:
            self._when_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handles signals while it runs; a second one ends it at once."""
        handled = (signal.SIGINT, signal.SIGTERM)
        try:
            before = {number: signal.signal(number, self.handle_exit) for number in handled}
        except ValueError:  # not the main thread: whoever started it stops it
            yield
            return
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def listen(host: str, port: int) -> socket.socket:
    """Takes an address; connections are accepted later.

    Raises:
        UnavailableError: If it cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        taken = socket.socket(family, kind, protocol)
        try:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(address)
        except OSError:
            taken.close()
            raise
    except (OSError, UnicodeError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UnavailableError(
            f"cannot listen on '{host}' port {port}: {reason}; choose another --host or --port"
        ) from error
    return taken


def make_server(
    application: Gate, limits: Limits, log: EventLog, *, started: Callable[[], None] | None = None
) -> Server:
    """Returns a server that is not started.

    Args:
        application: What answers.
        limits: Bounds of time and connections.
        log: Gets what uvicorn has to say.
        started: Called when connections are accepted.
    """
    logger = logging.getLogger("uvicorn")
    logger.handlers = [ServerLogHandler(log)]
    logger.propagate = False
    logger.setLevel(logging.WARNING)
    config = uvicorn.Config(
        application,
        http=patient_protocol(limits),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(limits.body_timeout_s + limits.timeout_s + 1),
        backlog=1024,
    )
    return Server(config, started)


def patient_protocol(limits: Limits) -> type[HttpToolsProtocol]:
    """Returns uvicorn's protocol with bounds on heads: of time, of bytes, and of the number of connections."""

    class PatientProtocol(HttpToolsProtocol):
        """Closes a connection whose request's head does not come, or does not end."""

        _head_timer: asyncio.TimerHandle | None = None
        _head_bytes = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > limits.max_connections:
                message = f"{limits.max_connections:,} connections are open; try again in 1 s"
                self._end(b"429 Too Many Requests", "overloaded", message, b"retry-after: 1\r\n")
                return
            self._head_timer = self.loop.call_later(limits.body_timeout_s, self._too_slow)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            self._head_bytes += len(data)
            super().data_received(data)
            # Reset where a head ends: what is counted here is a head that goes on.
            if self._head_bytes > _MOST_HEAD_BYTES and self._head_timer is not None:
                message = f"the head of the request has more than {_MOST_HEAD_BYTES:,} bytes"
                self._end(b"431 Request Header Fields Too Large", "head_too_large", message)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            if self._head_timer is None:
                self._head_bytes = 0
                self._head_timer = self.loop.call_later(limits.body_timeout_s, self._too_slow)

        def on_headers_complete(self) -> None:
            self._stop_timer()
            super().on_headers_complete()

        def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's signature
            self._end(b"400 Bad Request", "malformed", "this is no HTTP request that can be read")

        def _stop_timer(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _too_slow(self) -> None:
            self._head_timer = None
            message = f"no request came within {limits.body_timeout_s:g} s"
            self._end(b"408 Request Timeout", "too_slow", message)

        def _end(self, status: bytes, code: str, message: str, more: bytes = b"") -> None:
            body = error_body(code, message)
            head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%sconnection: close\r\n\r\n"
            self.transport.write(head % (status, len(body), more) + body)
            self.transport.close()

    return PatientProtocol
