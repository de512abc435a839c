"""From the folders of a command line to a server that has ended: a socket of ours, uvicorn, and signals."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from recurra.core.environment import available_cores, limit_fragmentation
from recurra.core.errors import UnavailableError
from recurra.deployment.serving.application import Application
from recurra.deployment.serving.limits import ServerLimits, read_keys
from recurra.deployment.serving.models import name_folders, open_models
from recurra.deployment.serving.observation import EventLog, ServerLogHandler
from recurra.deployment.serving.protocol import BoundedProtocol

_KEEP_ALIVE_S = 30
# Connections that may wait in the system's queue.
_BACKLOG = 1024
# Passes of the loop from the moment at which a connection is accepted until what it has sent is read.
_READING_PASSES = 8


class Server(uvicorn.Server):
    """Stops on SIGTERM and SIGINT once what it accepted is answered, and then returns instead of dying of the signal.

    SIGHUP takes up models that were replaced (``reload``), unless it says that the terminal is gone that it was started
    in. The log gets what goes wrong where nobody waits for it.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        reload: Callable[[], Coroutine[Any, Any, None]],
        log: EventLog,
        when_started: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(config)
        self._reload = reload
        self._log = log
        self._reloads: set[asyncio.Task[None]] = set()
        self._when_started = when_started
        self._loop: asyncio.AbstractEventLoop | None = None
        self._in_terminal = sys.stderr.isatty()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts, and says so."""
        self.begin()
        await super().startup(sockets=sockets)
        if self.started and self._when_started is not None:
            self._when_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops, once it has accepted who had connected; the system would break those connections off."""
        with selectors.DefaultSelector() as waiting:
            for listening in sockets or ():
                waiting.register(listening, selectors.EVENT_READ)
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
        # What asyncio itself would log shows values, and a text may be among them.
        self._loop.set_exception_handler(
            lambda _, context: self._log.failure("loop", context.get("exception") or RuntimeError())
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handles signals while it runs; a second Ctrl-C ends it at once."""

        def hang_up(number: int, frame: FrameType | None) -> None:
            # Once its terminal is gone nobody reads the log.
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

    def _begin_reload(self) -> None:
        task = asyncio.get_running_loop().create_task(self._reload())
        # The loop itself holds no task.
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)


def listen(host: str, port: int) -> socket.socket:
    """Takes an address; connections are accepted later."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
        except OSError:
            listening.close()
            raise
    except (OSError, UnicodeError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UnavailableError(
            f"cannot listen on '{host}' port {port}: {reason}; choose another --host or --port"
        ) from error
    return listening


def make_server(
    application: Application, limits: ServerLimits, log: EventLog, *, started: Callable[[], None] | None = None
) -> Server:
    """Returns a server that is not started; ``started`` is called when connections are accepted."""
    logger = logging.getLogger("uvicorn")
    logger.handlers = [ServerLogHandler(log)]
    logger.propagate = False
    logger.setLevel(logging.WARNING)
    config = uvicorn.Config(
        application,
        http=partial(BoundedProtocol, limits),  # type: ignore[arg-type]
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


def serve(
    arguments: Sequence[str],
    limits: ServerLimits,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    threads: int = 0,
    api_key_file: Path | None = None,
    api_key_env: str | None = None,
    quiet: bool = False,
    started: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """Serves models until a signal ends it; ``started`` is called with address and models when requests are taken."""
    limit_fragmentation()
    log, keys, folders = EventLog(quiet=quiet), read_keys(api_key_file, api_key_env), name_folders(arguments)
    with listen(host, port) as listening:
        models = open_models(folders, threads=threads or available_cores())
        limit_fragmentation()
        for model in models:
            if model.note:
                log.write("recommended", model=model.description.name, message=model.note)
        application = Application(models, limits, keys=keys, log=log)
        # A model that is replaced must not be held here.
        del model
        models.clear()
        host, port = listening.getsockname()[:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

        def announce() -> None:
            log.write("ready", url=url, models=[*folders], key=keys is not None)
            if keys is None and not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
                log.write(
                    "open", level="warning", message="anyone who reaches this address can use it; see --api-key-file"
                )
            if started is not None:
                started({"url": url, "models": [*folders]})

        make_server(application, limits, log, started=announce).run(sockets=[listening])
        log.write("stopped")
