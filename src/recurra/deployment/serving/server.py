"""Runs a server from the folders of a command line to its end: our socket, uvicorn, and signals."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import selectors
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from recurra.core.environment import available_cores, limit_fragmentation
from recurra.core.errors import UnavailableError
from recurra.deployment.serving.application import Application, read_examples
from recurra.deployment.serving.limits import HEADERS, ServerLimits, error_body, read_keys
from recurra.deployment.serving.models import name_folders, open_models
from recurra.deployment.serving.observation import EventLog, ServerLogHandler

_RAW_HEADERS = "".join(f"{name.lower()}: {value}\r\n" for name, value in HEADERS.items()).encode("ascii")
# Most bytes of a request's line and headers, and then of its trailers and the framing of its body's chunks.
_MOST_HEAD_BYTES = 64 * 1024
# Most requests that a client may send before the first of them is answered.
_MOST_AHEAD = 128
# Fewest bytes of an answer that its client must receive in `ServerLimits.body_timeout_s`, unless it receives all.
_LEAST_TAKEN_BYTES = 64 * 1024
# Most bytes that are still read of a request answered before its end: a client that is cut off while it sends sees a
# broken connection instead of the answer.
_MOST_LINGERING_BYTES = 2 * 2**20
# Seconds at the end of the server for a request of a connected client that has not arrived yet.
_LAST_HEAD_S = 1.0


class BoundedProtocol(HttpToolsProtocol):
    """Closes a connection whose request does not come, does not end, or has too many bytes besides its data.

    It also closes one whose client does not receive the answers. A request is read to its end. If it is answered
    before that, the connection is closed once its client has sent the rest, or too much, or nothing for too long.
    """

    _head_timer: asyncio.TimerHandle | None = None
    # Set while the connection only stays open until its client has finished sending; then nothing is written.
    _linger_timer: asyncio.TimerHandle | None = None
    _linger_bytes = 0
    # Bytes of the current request that were not data, less one for each byte of data.
    _framing_bytes = 0
    # Whether the head was read, but the request is not complete.
    _in_body = False
    _keeps_alive = False
    # The server is stopping: the next request is the last of its connection.
    _stopping = False
    # Set while a slow client has answers left to receive.
    _taking_timer: asyncio.TimerHandle | None = None
    # Whether no further request is read, and the response that follows the answers to earlier requests.
    _ended = False
    _final_response: bytes | None = None

    def __init__(self, limits: ServerLimits, **options: Any) -> None:
        super().__init__(**options)
        self.limits = limits
        # The first is being answered, the others wait; the body of the last may not be complete.
        self._unanswered: deque[RequestResponseCycle] = deque()

    @property
    def closing(self) -> bool:
        """Whether nothing more is written."""
        return self._linger_timer is not None or self.transport.is_closing()

    def connection_made(self, transport: Any) -> None:
        """Takes a connection, unless there are too many."""
        super().connection_made(transport)
        most_connections = self.limits.max_connections
        if len(self.connections) > most_connections:
            message = f"{most_connections:,} connections are open; try again in 1 s"
            self._refuse(_response(b"429 Too Many Requests", "overloaded", message, b"retry-after: 1\r\n"))
        else:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the work on all requests of this client; uvicorn only ends that on the last one."""
        self._stop_head_timer()
        self._stop_taking_timer()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        self.pipeline.clear()
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Begins to stop: the last request is the one being answered, or the one that a new client is sending."""
        self._stopping = True
        self._keeps_alive = False
        if self._head_timer is not None and not self.closing:
            self._head_timer.cancel()
            self._head_timer = self.loop.call_later(min(_LAST_HEAD_S, self.limits.body_timeout_s), self._close)
        elif self._linger_timer is not None or not self._unanswered:
            self._close()
        else:
            super().shutdown()

    def pause_writing(self) -> None:
        """Starts the time limit of a client that receives its answer slowly."""
        super().pause_writing()
        self._expect_taking()

    def resume_writing(self) -> None:
        """Goes on once the client has received enough."""
        self._stop_taking_timer()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Closes a connection without further requests."""
        if not self.transport.is_closing():
            self._close()

    def data_received(self, data: bytes) -> None:
        """Reads and counts received bytes."""
        if self.transport.is_closing():
            return
        if self._linger_timer is not None:
            self._linger_bytes -= len(data)
            if self._linger_bytes < 0:
                self.transport.close()
                return
        if self._ended:
            if self._linger_timer is None:
                self.flow.pause_reading()
            return
        if not self._in_body and not self._unanswered:
            self._expect_head()
        self._framing_bytes += len(data)
        super().data_received(data)
        self._framing_bytes = max(0, self._framing_bytes)
        if self._framing_bytes > _MOST_HEAD_BYTES:
            self._refuse_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Adds a header; trailers are dropped, which uvicorn would add to a head that was already passed on."""
        if not self._in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Passes a request on."""
        self._stop_head_timer()
        if self._ended or self.closing:
            return
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > _MOST_HEAD_BYTES:
            self._refuse_head()
            return
        if len(self._unanswered) >= _MOST_AHEAD:
            message = f"{_MOST_AHEAD} requests of this connection wait; send further ones after the answers"
            self._end(_response(b"429 Too Many Requests", "overloaded", message, b"retry-after: 1\r\n"), "overloaded")
            return
        super().on_headers_complete()
        cycle = self.cycle
        cycle.transport = _AnswerTransport(self)
        self._unanswered.append(cycle)
        self._in_body = True
        # Nothing can be read after an upgrade request, which we never grant.
        self._keeps_alive = cycle.keep_alive and not self._stopping and not self.parser.should_upgrade()
        # Until the request is complete: an earlier answer tells its client that the connection closes.
        cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Takes data of a body."""
        if self._in_body:
            # Each byte of data counts for itself and one framing byte, so that small chunks are accepted.
            self._framing_bytes -= 2 * len(body)
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Ends a request."""
        if not self._in_body:
            return
        super().on_message_complete()
        self._in_body = False
        self._framing_bytes = 0
        if self._linger_timer is not None:
            self.transport.close()
        elif not self.cycle.response_started:
            self.cycle.keep_alive = self._keeps_alive

    def on_response_complete(self) -> None:
        """Goes on to the next request, or closes the connection."""
        self._unanswered.popleft()
        super().on_response_complete()
        if self._linger_timer is not None:
            self._unset_keepalive_if_required()
        elif self._final_response is not None and not self._unanswered:
            self._respond_and_linger(self._final_response)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's signature
        """Answers a request that is not HTTP."""
        self._end(_response(b"400 Bad Request", "malformed", "this is not a valid HTTP request"), "malformed")

    def _unsupported_upgrade_warning(self) -> None:
        # Upgrades may be ignored, so there is no warning; but the parser cannot read on after one.
        self._ended = True

    def close_gracefully(self) -> None:
        """Closes the connection after an answer, once the client has sent what it is sending."""
        if self._in_body or self._ended:
            self._linger(_MOST_LINGERING_BYTES)
        else:
            self._close()

    def _close(self) -> None:
        """Closes the connection once its client has received what is written, or the time is over."""
        self._stop_head_timer()
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self._expect_taking()

    def _expect_taking(self) -> None:
        self._stop_taking_timer()
        unsent = self.transport.get_write_buffer_size()
        self._taking_timer = self.loop.call_later(self.limits.body_timeout_s, self._check_taking, unsent)

    def _stop_taking_timer(self) -> None:
        if self._taking_timer is not None:
            self._taking_timer.cancel()
            self._taking_timer = None

    def _check_taking(self, unsent: int) -> None:
        if unsent - self.transport.get_write_buffer_size() < _LEAST_TAKEN_BYTES:
            self.transport.abort()
        else:
            self._expect_taking()

    def _linger(self, most_bytes: int) -> None:
        if self.closing:
            return
        self.pipeline.clear()
        self._linger_bytes = most_bytes
        self._linger_timer = self.loop.call_later(self.limits.body_timeout_s, self.transport.abort)
        self.transport.write_eof()
        self.flow.resume_reading()

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.limits.body_timeout_s, self._too_slow)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        self._head_timer = None
        message = f"no request came within {self.limits.body_timeout_s:g} s"
        self._refuse(_response(b"408 Request Timeout", "too_slow", message))

    def _refuse(self, response: bytes) -> None:
        """Refuses a client that has not sent a request."""
        self._ended = True
        self.transport.write(response)
        self._close()

    def _refuse_head(self) -> None:
        part = "trailers and the frames of the chunks" if self._in_body else "head"
        verb = "have" if self._in_body else "has"
        message = f"the {part} of the request {verb} more than {_MOST_HEAD_BYTES:,} bytes"
        self._end(_response(b"431 Request Header Fields Too Large", "head_too_large", message), "head_too_large")

    def _end(self, response: bytes, code: str) -> None:
        """Refuses the request that is being read, after the answers to those before it, and reads no other.

        A connection that only waits until its client has finished sending is closed.
        """
        if self._linger_timer is not None:
            self.transport.close()
        if self._ended or self.closing:
            return
        self._ended = True
        self._stop_head_timer()
        if self._in_body:
            cycle = self._unanswered[-1]
            if cycle.response_started:  # its answer says that the connection closes
                return
            # The application sees a disconnected client.
            self._unanswered.pop()
            if self.pipeline:
                self.pipeline.popleft()
            cycle.scope["state"]["refused"] = code
            cycle.disconnected = True
            cycle.message_event.set()
            self._in_body = False
        if self._unanswered:
            self._final_response = response
            self.flow.pause_reading()
        else:
            self._respond_and_linger(response)

    def _respond_and_linger(self, response: bytes) -> None:
        if not self.closing:
            self.transport.write(response)
            self._linger(_MOST_HEAD_BYTES)


class _AnswerTransport(asyncio.Transport):
    """Transport of answers: writes nothing to a client that has left, and lets clients finish sending at the end."""

    def __init__(self, protocol: BoundedProtocol) -> None:
        super().__init__()
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self._protocol.closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._protocol.closing:
            self._protocol.transport.write(data)

    def close(self) -> None:
        self._protocol.close_gracefully()


def _response(status: bytes, code: str, message: str, more_headers: bytes = b"") -> bytes:
    body = error_body(code, message)
    head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%s%sconnection: close\r\n\r\n"
    return head % (status, len(body), _RAW_HEADERS, more_headers) + body


_KEEP_ALIVE_S = 30
# Most connections that wait in the system's queue.
_BACKLOG = 1024
# Passes of the event loop between accepting a connection and reading what it has sent.
_READING_PASSES = 8


class Server(uvicorn.Server):
    """Stops on SIGTERM and SIGINT once accepted requests are answered, and then returns instead of dying of the signal.

    SIGHUP loads replaced models (``request_reload``), unless it means that the terminal of the server was closed.
    Errors of background tasks are logged.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        request_reload: Callable[[], None],
        log: EventLog,
        when_started: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(config)
        self._request_reload = request_reload
        self._log = log
        self._when_started = when_started
        self._loop: asyncio.AbstractEventLoop | None = None
        self._in_terminal = sys.stderr.isatty()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts, and calls ``when_started``."""
        self.begin()
        await super().startup(sockets=sockets)
        if self.started and self._when_started is not None:
            self._when_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops after accepting all waiting connections, which the system would otherwise reset."""
        with selectors.DefaultSelector() as selector:
            for listener in sockets or ():
                selector.register(listener, selectors.EVENT_READ)
            # The event loop may accept only one connection per pass.
            for _ in range(_BACKLOG):
                if not selector.select(0):
                    break
                await asyncio.sleep(0)
        for _ in range(_READING_PASSES):
            await asyncio.sleep(0)
        await super().shutdown(sockets=sockets)

    def begin(self) -> None:
        """Binds the server to the running event loop."""
        self._loop = asyncio.get_running_loop()
        # asyncio's own log messages show values, which may include a text.
        self._loop.set_exception_handler(
            lambda _, context: self._log.failure("loop", context.get("exception") or RuntimeError())
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handles signals while the server runs; a second Ctrl-C ends it at once."""

        def on_hangup(number: int, frame: FrameType | None) -> None:
            if _lost_terminal(self._in_terminal):
                self.handle_exit(number, frame)
            else:
                self.reload()

        handlers = {signal.SIGINT: self.handle_exit, signal.SIGTERM: self.handle_exit, signal.SIGHUP: on_hangup}
        try:
            old_handlers = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        except ValueError:  # not the main thread: whoever started it stops it
            yield
            return
        try:
            yield
        finally:
            for number, handler in old_handlers.items():
                signal.signal(number, handler)

    def reload(self) -> None:
        """Starts to load replaced models, if the server was started; any thread may call this."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._request_reload)


def _lost_terminal(in_terminal: bool) -> bool:
    """Whether the terminal that the server was started in is closed, so that nobody reads the log."""
    return in_terminal and not sys.stderr.isatty()


@contextlib.contextmanager
def _early_hangups() -> Iterator[threading.Event]:
    """An event that SIGHUP sets while models are loaded, instead of ending the process; only in the main thread."""
    hung_up, in_terminal = threading.Event(), sys.stderr.isatty()

    def on_hangup(number: int, _: FrameType | None) -> None:
        if _lost_terminal(in_terminal):
            sys.exit(128 + number)
        hung_up.set()

    if threading.current_thread() is not threading.main_thread():
        yield hung_up
        return
    old_handler = signal.signal(signal.SIGHUP, on_hangup)
    try:
        yield hung_up
    finally:
        signal.signal(signal.SIGHUP, old_handler)


def listen(host: str, port: int) -> socket.socket:
    """Binds a socket to an address; connections are accepted later."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except (OSError, UnicodeError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UnavailableError(
            f"cannot listen on '{host}' port {port}: {reason}; choose another --host or --port"
        ) from error
    return listener


def make_server(
    application: Application, limits: ServerLimits, log: EventLog, *, started: Callable[[], None] | None = None
) -> Server:
    """Returns a server that is not started yet; it calls ``started`` once connections are accepted."""
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
    return Server(config, application.request_reload, log, started)


def serve(
    arguments: Sequence[str],
    limits: ServerLimits,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    threads: int = 0,
    api_key_file: Path | None = None,
    api_key_env: str | None = None,
    examples: Path | None = None,
    quiet: bool = False,
    started: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """Serves models until a signal ends it; calls ``started`` with address and models once requests are taken."""
    limit_fragmentation()
    log, keys, folders = EventLog(quiet=quiet), read_keys(api_key_file, api_key_env), name_folders(arguments)
    texts = [] if examples is None else read_examples(examples)
    with _early_hangups() as hung_up, listen(host, port) as listening:
        models = open_models(folders, threads=threads or available_cores())
        limit_fragmentation()
        for model in models:
            if model.note:
                log.write("recommended", model=model.description.name, message=model.note)
        application = Application(models, limits, keys=keys, log=log, examples=texts)
        # No reference may stay here, so that replaced models are freed.
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
            if hung_up.is_set():
                server.reload()

        server = make_server(application, limits, log, started=announce)
        server.run(sockets=[listening])
        log.write("stopped")
