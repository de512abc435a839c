"""Runs an application on uvicorn: a socket of ours, bounds on who talks, and an end that finishes what was begun."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any

import uvicorn

from recurra.core.errors import UnavailableError
from recurra.deployment.serving.gate import Gate
from recurra.deployment.serving.log import EventLog, ServerLogHandler
from recurra.deployment.serving.protocol import bounded_protocol
from recurra.deployment.serving.settings import ServerLimits

_KEEP_ALIVE_S = 30
# Connections that may wait in the system's queue.
_BACKLOG = 1024
# Passes of the loop from the moment at which a connection is accepted until what it has sent is read.
_READING_PASSES = 8


class Server(uvicorn.Server):
    """Stops on SIGTERM and SIGINT once what it accepted is answered, and then returns instead of dying of the signal.

    SIGHUP takes up models that were replaced, unless it says that the terminal is gone that it was started in.

    Args:
        config: Uvicorn's configuration.
        reload: Takes them up.
        log: Gets what goes wrong where nobody waits for it.
        started: Called when it takes connections.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        reload: Callable[[], Coroutine[Any, Any, None]],
        log: EventLog,
        started: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(config)
        self._reload = reload
        self._log = log
        self._reloads: set[asyncio.Task[None]] = set()
        self._when_started = started
        self._loop: asyncio.AbstractEventLoop | None = None
        self._in_terminal = sys.stderr.isatty()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts, and says so."""
        self.begin()
        await super().startup(sockets=sockets)
        if self.started and self._when_started is not None:
            self._when_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops, once it has taken up who had connected; the system would break those connections off."""
        with selectors.DefaultSelector() as waiting:
            for taken in sockets or ():
                waiting.register(taken, selectors.EVENT_READ)
            # A loop may accept one connection a pass.
            for _ in range(_BACKLOG):
                if not waiting.select(0):
                    break
                await asyncio.sleep(0)
        for _ in range(_READING_PASSES):
            await asyncio.sleep(0)
        await super().shutdown(sockets=sockets)

    def begin(self) -> None:
        """Belongs to the loop that runs from now on."""
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._note)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handles signals while it runs; a second Ctrl-C ends it at once."""

        def hang_up(number: int, frame: FrameType | None) -> None:
            # A terminal that is gone is none any more, and neither is there anybody who reads the log.
            if self._in_terminal and not sys.stderr.isatty():
                self.handle_exit(number, frame)
            else:
                self.reload()

        handlers = {signal.SIGINT: self.handle_exit, signal.SIGTERM: self.handle_exit, signal.SIGHUP: hang_up}
        try:
            before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        except ValueError:  # not the main thread: whoever started it stops it
            yield
            return
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def reload(self) -> None:
        """Begins to take up models that were replaced, if it was started; any thread may ask for it."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin_reload)

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # What asyncio would say shows values, and a text may be among them.
        self._log.failure("loop", context.get("exception") or RuntimeError())

    def _begin_reload(self) -> None:
        task = asyncio.get_running_loop().create_task(self._reload())
        # The loop itself holds no task.
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)


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
    application: Gate, limits: ServerLimits, log: EventLog, *, started: Callable[[], None] | None = None
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
        http=bounded_protocol(limits),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(limits.body_timeout_s + limits.timeout_s + 1),
        backlog=_BACKLOG,
    )
    return Server(config, application.reload, log, started)
