"""Requests that no client library would send: read in one way, bounded in all that stands around their data."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from recurra.deployment.serving.limits import ServerLimits
from served import (
    HEAD,
    PATIENCE_S,
    Running,
    deep_model,
    eventually,
    prompt_server,
    running,
    slow_model,
    until_closed,
)

KEY = "0123456789abcdef-framing"
PAGE = b"GET / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
BODY = b'{"text": "a"}'
WHOLE = HEAD + b"Content-Length: 13\r\n\r\n" + BODY
TRAILER = b"x-a: " + b"b" * 50 + b"\r\n"
END, CLOSE = b"\r\n\r\n", b"Connection: close\r\n"
STATUS = re.compile(rb"HTTP/1.1 (\d+)")
OFFERED_BYTES = 32 * 2**20
# What the server reads is some hundred kilobytes; what the kernel takes before the server reads it is more.
TAKEN_BYTES = 6 * 2**20


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with prompt_server(ServerLimits(body_timeout_s=5)) as found:
        yield found


@pytest.fixture(scope="module")
def locked() -> Iterator[Running]:
    with prompt_server(key=KEY) as found:
        yield found


@pytest.fixture(scope="module")
def hasty() -> Iterator[Running]:
    with prompt_server(ServerLimits(body_timeout_s=0.4)) as found:
        yield found


def connected(server: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)


def answer_of(connection: socket.socket, pause_s: float = 0.0) -> bytes:
    """One answer, its body too."""
    found, length = b"", 2**60
    while len(found) < length:
        part = connection.recv(2**20)
        assert part, f"closed before the answer was whole: {found[:400]!r}"
        found += part
        time.sleep(pause_s)
        if length == 2**60 and END in found:
            length = found.index(END) + len(END) + int(re.findall(rb"content-length: (\d+)", found)[0])
    return found


def pour(connection: socket.socket, unit: bytes) -> int:
    """Sends one thing over and over; returns the bytes that were taken before the connection was closed."""
    block, taken = unit * (65536 // len(unit)), 0
    with contextlib.suppress(ConnectionError):
        while taken < OFFERED_BYTES:
            connection.sendall(block)
            taken += len(block)
    return taken


ENDLESS = {
    "trailers": (HEAD + CHUNKED + b"d\r\n" + BODY + b"\r\n0\r\n", TRAILER),
    "one trailer": (HEAD + CHUNKED + b"0\r\nx-a: ", b"b"),
    "trailers of the page": (PAGE + CHUNKED + b"0\r\n", TRAILER),
    "an extension": (HEAD + CHUNKED + b"5;", b"a"),
    "an extension at the page": (PAGE + CHUNKED + b"5;", b"a"),
    "tiny chunks": (HEAD + CHUNKED, b"1\r\n \r\n"),
    "tiny chunks with extensions": (HEAD + CHUNKED, b"1;aaaaaaa\r\n \r\n"),
    "blank lines": (b"", b"\r\n"),
}


@pytest.mark.parametrize(("head", "unit"), ENDLESS.values(), ids=ENDLESS)
def test_what_is_no_data_has_a_bound(server: Running, head: bytes, unit: bytes) -> None:
    with connected(server) as connection:
        connection.sendall(head + unit * (200_000 // len(unit)))
        found = answer_of(connection)
        refused = found.startswith(b"HTTP/1.1 431") and b'"head_too_large"' in found
        # The page waits for no body: it may have answered before so much came.
        answered = head.startswith(PAGE) and found.startswith(b"HTTP/1.1 200")
        assert (refused or answered) and b"connection: close" in found
        assert pour(connection, unit) < TAKEN_BYTES
    # What belongs to a request is counted among those that were turned away.
    if head.startswith(HEAD):
        assert b'recurra_refused_total{code="head_too_large"}' in server.get("/metrics").body


ANSWERED = {
    "200": (PAGE, b"0\r\n", TRAILER),
    "401": (HEAD, b"0\r\n", TRAILER),
    "404": (b"PUT /none HTTP/1.1\r\nHost: x\r\n", b"0\r\n", TRAILER),
    "405": (b"DELETE / HTTP/1.1\r\nHost: x\r\n", b"0\r\nx-a: ", b"b"),
    "401 extension": (HEAD, b"5;", b"a"),
    "200 data": (PAGE, b"fffffff\r\n", b"a"),
}


@pytest.mark.parametrize(("head", "begun", "unit"), ANSWERED.values(), ids=ANSWERED)
def test_who_was_answered_does_not_go_on(locked: Running, head: bytes, begun: bytes, unit: bytes, request) -> None:
    with connected(locked) as connection:
        connection.sendall(head + CHUNKED + begun)
        found = answer_of(connection)
        assert found.split()[1] == request.node.callspec.id.split()[0].encode() and b"connection: close" in found
        # The data of a body that is thrown away has a bound of its own.
        assert pour(connection, unit) < TAKEN_BYTES + 2 * 2**20


REFUSED = {
    "401": HEAD,
    "404": HEAD.replace(b"/v1/classify", b"/none"),
    "405": HEAD.replace(b"/v1/classify", b"/health/live"),
    "415": HEAD.replace(b"json", b"text") + b"X-API-Key: " + KEY.encode() + b"\r\n",
}


@pytest.mark.parametrize("status", REFUSED)
def test_who_still_sends_sees_the_answer(locked: Running, status: str) -> None:
    parts = 15
    with connected(locked) as connection:
        connection.sendall(REFUSED[status] + b"Content-Length: %d\r\n\r\n" % (parts * 100_000))
        for _ in range(parts):
            connection.sendall(b"x" * 100_000)
            time.sleep(0.01)
        found = until_closed(connection)
        assert found.split()[1] == status.encode() and b"connection: close" in found, found
        assert found.count(b"HTTP/1.1") == 1


def test_chunks_with_all_that_may_stand_around_them_are_served(server: Running) -> None:
    pieces = b"".join(b"1\r\n%c\r\n" % byte for byte in b'{"text": "' + b"a" * 3000 + b'"}')
    chunked = HEAD + CHUNKED + b"9;name=value\r\n" + BODY[:9] + b"\r\n4\r\n" + BODY[9:] + b"\r\n0\r\n"
    with connected(server) as connection:
        for _ in range(3):
            connection.sendall(chunked + b"X-A: b\r\nExpect: 100-continue\r\n\r\n")
            assert answer_of(connection).startswith(b"HTTP/1.1 200")
            connection.sendall(HEAD + CHUNKED + pieces + b"0\r\n\r\n")
            assert answer_of(connection).startswith(b"HTTP/1.1 200")
            connection.sendall(PAGE + CHUNKED + b"0\r\n\r\n")
            answer = answer_of(connection)
            assert answer.startswith(b"HTTP/1.1 200") and b"connection: close" not in answer


def test_a_body_of_many_chunks_may_have_as_much_around_them_as_in_them(server: Running) -> None:
    text = b"".join(b"6\r\naaaaaa\r\n" for _ in range(16_000))
    found = server.raw(
        HEAD + CHUNKED + b'a\r\n{"text": "\r\n' + text + b'2\r\n"}\r\n0\r\n\r\n' + PAGE + b"\r\n" + b"?\r\n\r\n"
    )
    assert STATUS.findall(found) == [b"200", b"200", b"400"]


def test_a_trailer_is_no_header(locked: Running) -> None:
    chunked = HEAD + CHUNKED + b"d\r\n" + BODY + b"\r\n0\r\n"
    found = locked.raw(
        chunked + b"X-API-Key: " + KEY.encode() + b"\r\n\r\n" + b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"
    )
    assert STATUS.findall(found) == [b"401", b"200"]


SLOW = (
    (HEAD + CHUNKED + b"d\r\n" + BODY + b"\r\n0\r\nx-a: ", b"b"),
    (PAGE + CHUNKED + b"0\r\nx-a: ", b"b"),
    (PAGE + b"Content-Length: 1000\r\n\r\n", b"b"),
    (b"", b"\r\n"),
    (PAGE + b"\r\n", b"\r\n"),
    (b"GET / HTTP/1.1\r\n", b"x"),
)


def test_nobody_who_sends_something_now_and_then_is_waited_for_for_ever(hasty: Running) -> None:
    with contextlib.ExitStack() as stack:
        open_ones = {}
        for head, unit in SLOW:
            connection = stack.enter_context(connected(hasty))
            connection.sendall(head)
            open_ones[connection] = unit

        def all_are_closed() -> bool:
            for connection, unit in list(open_ones.items()):
                try:
                    connection.sendall(unit)
                except ConnectionError:
                    del open_ones[connection]
            time.sleep(0.1)
            return not open_ones

        eventually(all_are_closed)


def test_what_comes_after_what_is_no_http_is_not_answered_before_it() -> None:
    model, engine = slow_model()
    with running([model]) as server:
        for ending, status in ((b"\x00\r\n\r\n", b"400"), (HEAD + CHUNKED + b"0\r\n" + TRAILER * 6000, b"431")):
            with connected(server) as connection:
                engine.open.clear()
                connection.sendall(WHOLE + ending)
                assert engine.begun.acquire(timeout=20)
                time.sleep(0.1)
                engine.open.set()
                assert STATUS.findall(until_closed(connection)) == [b"200", status]


def test_half_a_request_that_is_sent_ahead_costs_no_slow_answer() -> None:
    model, engine = slow_model()
    with running([model], ServerLimits(body_timeout_s=0.2)) as server, connected(server) as connection:
        connection.sendall(WHOLE)
        assert engine.begun.acquire(timeout=20)
        connection.sendall(WHOLE[:20])
        time.sleep(0.5)
        engine.open.set()
        assert answer_of(connection).startswith(b"HTTP/1.1 200")
        connection.sendall(WHOLE[20:])
        assert answer_of(connection).startswith(b"HTTP/1.1 200")


def test_requests_sent_ahead_have_a_bound(server: Running) -> None:
    statuses = STATUS.findall(server.raw((b"GET /health/live HTTP/1.1\r\n\r\n") * 1000))
    assert statuses[-1] == b"429" and 100 < len(statuses) < 300 and set(statuses[:-1]) == {b"200"}


def test_an_upgrade_is_ignored_quietly(server: Running) -> None:
    upgrade = (
        PAGE
        + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n"
    )
    before = len(server.events("server"))
    found = server.raw(upgrade + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 200") and b"connection: close" in found and found.count(b"HTTP/1.1") == 1
    assert len(server.events("server")) == before


def test_who_leaves_while_requests_wait_is_neither_computed_nor_an_error() -> None:
    model, engine = slow_model()
    with running([model], ServerLimits(batch_texts=1)) as server:
        for times in range(1, 6):
            with connected(server) as connection:
                connection.sendall(WHOLE * 20)
                assert engine.begun.acquire(timeout=20)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            while len([event for event in server.events() if event.get("refused") == "client_gone"]) < times:
                time.sleep(0.01)
            engine.open.set()
            assert server.post({"text": "b"}).status == 200
            assert engine.begun.acquire(timeout=20)
            engine.open.clear()
        assert [batch for batch in engine.batches if batch != ["b"]] == [["a"]] * 5
        levels = {json.loads(line)["level"] for line in server.log.getvalue().splitlines()}
        assert levels == {"info"}, server.log.getvalue()
        engine.open.set()


LARGE = json.dumps({"text": ["a"] * 64, "recurrences": True}).encode()
LARGE = HEAD + b"Content-Length: %d\r\n\r\n" % len(LARGE) + LARGE
# Its answer to `LARGE` has some 8 MB, more than the kernel takes for a client that does not read.
TALKATIVE = deep_model("deep", [f"label {number} {'x' * 200}" for number in range(200)])


def test_who_takes_it_slowly_gets_all_of_it() -> None:
    with running([TALKATIVE], ServerLimits(body_timeout_s=0.4)) as server, connected(server) as connection:
        connection.sendall(LARGE)
        # Longer in all than one that takes nothing is waited for.
        body = answer_of(connection, pause_s=0.1).partition(END)[2]
        assert len(json.loads(body)["results"][0]["predictions"]) == 64


def wait_for(server: Running, connections: int) -> None:
    eventually(lambda: len(server.server.server_state.connections) == connections)


@contextlib.contextmanager
def not_reading(server: Running) -> Iterator[socket.socket]:
    """A client that asks for a large answer, and reads little of it."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(PATIENCE_S)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(LARGE)
        wait_for(server, 1)
        yield connection


def test_who_does_not_take_an_answer_is_dropped_at_the_end_too() -> None:
    with running([TALKATIVE], ServerLimits(body_timeout_s=0.4, timeout_s=60)) as server:
        with not_reading(server) as connection:
            wait_for(server, 0)
            assert 0 < len(until_closed(connection)) < 7 * 2**20
        assert server.post({"text": "a"}).status == 200
        with not_reading(server) as connection:
            # Of the answer something came: the rest is on its way.
            assert connection.recv(1024)
            server.server.should_exit = True
            wait_for(server, 0)


def wait_for_the_end_to_begin(server: Running) -> None:
    eventually(lambda: not server.server.servers[0].is_serving())
    # The connections are told after the listening socket was closed.
    time.sleep(0.05)


@pytest.mark.parametrize("sent", [0, 1, 40, len(WHOLE) - 1])
def test_who_had_connected_is_answered_before_the_end(sent: int) -> None:
    with prompt_server() as server, connected(server) as connection:
        connection.sendall(WHOLE[:sent])
        wait_for(server, 1)
        server.server.should_exit = True
        wait_for_the_end_to_begin(server)
        connection.sendall(WHOLE[sent:])
        head, _, body = until_closed(connection).partition(END)
        assert head.startswith(b"HTTP/1.1 200") and b"connection: close" in head.lower()
        assert json.loads(body)["results"]


def test_who_waits_in_the_queue_of_the_system_is_answered_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with prompt_server() as server, contextlib.ExitStack() as stack:
        clients: list[socket.socket] = []

        async def end_before_they_are_accepted(_: int) -> bool:
            # On the server's own thread: nobody is accepted until this has returned.
            for _ in range(30):
                clients.append(stack.enter_context(connected(server)))
                clients[-1].sendall(WHOLE)
            return True

        monkeypatch.setattr(server.server, "on_tick", end_before_they_are_accepted)
        wait_for_the_end_to_begin(server)
        answers = [until_closed(client) for client in clients]
        assert len(answers) == 30 and all(answer.startswith(b"HTTP/1.1 200") for answer in answers)


@pytest.mark.parametrize(("sent", "body_timeout_s"), [(b"", 0.4), (WHOLE, 10)], ids=["silent", "answered"])
def test_the_end_waits_for_nobody_who_sends_nothing_more(sent: bytes, body_timeout_s: float) -> None:
    limits = ServerLimits(body_timeout_s=body_timeout_s, timeout_s=60)
    with prompt_server(limits) as server, connected(server) as connection:
        connection.sendall(sent)
        wait_for(server, 1)
        assert not sent or connection.recv(65536).startswith(b"HTTP/1.1 200")
        server.server.should_exit = True
        assert until_closed(connection) == b""


AMBIGUOUS = {
    "two lengths": b"Content-Length: 13\r\nContent-Length: 14\r\n",
    "a length and chunks": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
    "a negative length": b"Content-Length: -1\r\n",
    "no length": b"Content-Length: \r\n",
    "a length in words": b"Content-Length: ten\r\n",
    "a huge length": b"Content-Length: " + b"9" * 40 + b"\r\n",
    "a header without a colon": b"Content-Length 13\r\n",
    "NUL in a header": b"X-A: a\x00b\r\nContent-Length: 13\r\n",
    "a blank before the colon": b"Content-Length : 13\r\n",
    "chunks of a negative size": b"Transfer-Encoding: chunked\r\n\r\n-5\r\nabcde",
    "chunks of no size": b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "chunks of a huge size": b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 18,
}


@pytest.mark.parametrize("headers", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_what_two_servers_could_read_in_two_ways_is_refused(server: Running, headers: bytes) -> None:
    """A proxy in front must never see another end of a request than we do: the rest would be a request of its own."""
    answer = server.raw(HEAD + CLOSE + headers + b"\r\n" + BODY + b"GET /v1/models HTTP/1.1\r\nHost: x" + END)
    assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1") == 1, answer
    assert b'{"error":' in answer and b"labels" not in answer


def test_old_and_careful_clients_are_served(server: Running, locked: Running) -> None:
    assert server.raw(WHOLE.replace(b"HTTP/1.1", b"HTTP/1.0")).startswith(b"HTTP/1.1 200")
    careful = HEAD + CLOSE + b"Expect: 100-continue\r\nContent-Length: 13\r\n\r\n"
    assert b" 200 OK" in server.raw(careful, BODY, wait_s=0.05)
    # Who has no key is not asked for the body.
    assert STATUS.findall(locked.raw(careful.replace(CLOSE, b""))) == [b"401"]
    # Two requests at once on one connection are answered in their order.
    both = server.raw(WHOLE + HEAD + CLOSE + b"Content-Length: 3\r\n\r\n{x}")
    assert STATUS.findall(both) == [b"200", b"400"]


SIDE_DOORS = (
    "/v1/models", "//v1/models", "/v1//models", "/./v1/models", "/x/../v1/models", "/%76%31/models", "/V1/models",
    "/v1/models/", "/v1/models/slow", "/v1/models;a", "/v1/models%2f", "/metrics", "/metrics/", "//metrics",
    "/%6detrics", "/metrics%00", "/v1", f"/v1/models?key={KEY}", "/v1/../metrics",
)  # fmt: skip


def test_no_spelling_of_an_address_and_no_header_goes_round_the_key(locked: Running) -> None:
    for path in SIDE_DOORS:
        for method in ("GET", "HEAD", "POST", "OPTIONS"):
            answer = locked.ask(method, path)
            assert answer.status in {401, 404, 405}, (path, method, answer.status)
            assert b"slow" not in answer.body and b"recurra_" not in answer.body
        absolute = f"GET http://127.0.0.1{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
        assert locked.raw(absolute).split()[1] in {b"401", b"404", b"400"}, path
    for name in ("X-Forwarded-Prefix", "X-Original-URL", "X-Rewrite-URL", "X-HTTP-Method-Override", "X-Forwarded-For"):
        assert locked.get("/v1/models", **{name: "/health/live"}).status == 401


def test_no_answer_leads_where_a_header_says(server: Running) -> None:
    for path in ("/v1/models/", "/health/live/", "/v1/classify/"):
        for method in ("GET", "POST"):
            answer = server.ask(method, path, headers={"Host": "evil.example"})
            assert answer.refusal == (404, "not_found") and "location" not in answer.headers
            assert b"evil" not in answer.body


SAFE = {
    "referrer-policy": "no-referrer", "x-content-type-options": "nosniff", "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
}  # fmt: skip
SAFE_DATA = {
    **SAFE, "cache-control": "no-store", "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}  # fmt: skip
EVERY_KIND: dict[str, bytes] = {
    "200": HEAD + CLOSE + b"X-API-Key: " + KEY.encode() + b"\r\nContent-Length: 13" + END + BODY,
    "200 OK": b"GET /health/live HTTP/1.0" + END,
    "400": b"NONSENSE" + END,
    "401": HEAD + CLOSE + b"Content-Length: 13" + END + BODY,
    "404": b"GET /nothing HTTP/1.0" + END,
    "405": b"DELETE /health/live HTTP/1.0" + END,
    "431": b"GET /" + b"a" * 70_000,
    "431 Request": PAGE + TRAILER * 1500 + b"\r\n",
    "431 Request Header": PAGE + b"x-a: " + b"b" * 70_000 + END,
}


def test_every_answer_says_what_browsers_may_do(locked: Running) -> None:
    for status, request in EVERY_KIND.items():
        answer = locked.raw(request)
        assert answer.startswith(b"HTTP/1.1 " + status.encode())
        lines = answer.partition(END)[0].decode().split("\r\n")[1:]
        found = [(name.lower(), value) for name, value in (line.split(": ", 1) for line in lines)]
        assert SAFE_DATA.items() <= dict(found).items() and len(dict(found)) == len(found)
    # The page has its own policy, and is no secret.
    page = locked.get("/").headers
    assert SAFE.items() <= page.items() and "frame-ancestors 'none'" in page["content-security-policy"]


def test_a_page_of_somebody_else_can_ask_nothing(server: Running) -> None:
    # A browser asks first before it sends JSON for another's page, and sends anything else without asking.
    asked = server.ask("OPTIONS", "/v1/classify", None, {"Origin": "http://x", "Access-Control-Request-Method": "POST"})
    assert asked.status == 405 and not [name for name in asked.headers if name.startswith("access-control")]
    simple = server.ask("POST", "/v1/classify", BODY, {"Origin": "http://x", "Content-Type": "text/plain"})
    assert simple.refusal == (415, "not_json")
