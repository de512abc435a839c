"""Requests that no client library would send, byte by byte."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

pytest.importorskip("starlette", reason="pip install 'recurra[serve]'")

from recurra.deployment.serving.limits import ServerLimits
from served import HEAD, Running, prompt_server

KEY = "0123456789abcdef-wire"
BODY = b'{"text": "a"}'
END = b"\r\n\r\n"
CLOSE = b"Connection: close\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with prompt_server(ServerLimits(body_timeout_s=5)) as found:
        yield found


@pytest.fixture(scope="module")
def locked() -> Iterator[Running]:
    with prompt_server(ServerLimits(body_timeout_s=5), key=KEY) as found:
        yield found


AMBIGUOUS = {
    "two lengths": b"Content-Length: 13\r\nContent-Length: 14\r\n",
    "a length and chunks": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
    "a negative length": b"Content-Length: -1\r\n",
    "a length in words": b"Content-Length: ten\r\n",
    "no length": b"Content-Length: \r\n",
    "a huge length": b"Content-Length: " + b"9" * 40 + b"\r\n",
    "a header without a colon": b"Content-Length 13\r\n",
    "NUL in a header": b"X-A: a\x00b\r\nContent-Length: 13\r\n",
    "a blank before the colon": b"Content-Length : 13\r\n",
}


@pytest.mark.parametrize("headers", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_what_two_servers_could_read_in_two_ways_is_refused(server: Running, headers: bytes) -> None:
    """A proxy in front must never see another end of a request than we do: the rest would be a request of its own."""
    answer = server.raw(HEAD + CLOSE + headers + b"\r\n" + BODY + b"GET /v1/models HTTP/1.1\r\nHost: x" + END)
    assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1") == 1, answer
    assert b'{"error":' in answer and b"labels" not in answer


def test_broken_chunks_are_refused(server: Running) -> None:
    chunked = HEAD + CLOSE + b"Transfer-Encoding: chunked\r\n\r\n"
    for body in (b"zz\r\n", b"-5\r\nabcde\r\n", b"ffffffffffffffffff\r\n"):
        answer = server.raw(chunked + body)
        assert answer.count(b"HTTP/1.1") <= 1 and b" 200 " not in answer and b"Traceback" not in answer, answer
    # A chunk that ends too early is a body that never ends; its client hears so.
    assert server.post({"text": "a"}).status == 200


def test_old_and_careful_clients_are_served(server: Running) -> None:
    old = HEAD.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Content-Length: 13\r\n\r\n" + BODY
    assert server.raw(old).startswith(b"HTTP/1.1 200")
    careful = HEAD + CLOSE + b"Expect: 100-continue\r\nContent-Length: 13\r\n\r\n"
    assert b" 200 OK" in server.raw(careful, BODY, wait_s=0.05)
    # Two requests at once on one connection are answered in their order.
    first = HEAD + b"Content-Length: 13\r\n\r\n" + BODY
    both = server.raw(first + HEAD + CLOSE + b"Content-Length: 3\r\n\r\n{x}")
    assert re.findall(rb"HTTP/1.1 (\d+)", both) == [b"200", b"400"]


SIDE_DOORS = (
    "/v1/models", "//v1/models", "/v1//models", "/./v1/models", "/x/../v1/models", "/%76%31/models", "/V1/models",
    "/v1/models/", "/v1/models/slow", "/v1/models;a", "/v1/models%2f", "/metrics", "/metrics/", "//metrics",
    "/%6detrics", "/metrics%00", "/v1", f"/v1/models?key={KEY}", "/v1/../metrics",
)  # fmt: skip


@pytest.mark.parametrize("path", SIDE_DOORS)
def test_no_spelling_of_an_address_goes_round_the_key(locked: Running, path: str) -> None:
    for method in ("GET", "HEAD", "POST", "OPTIONS"):
        answer = locked.ask(method, path)
        assert answer.status in {401, 404, 405}, (method, answer.status)
        assert b"slow" not in answer.body and b"recurra_" not in answer.body
    absolute = f"GET http://127.0.0.1{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    assert locked.raw(absolute).split()[1] in {b"401", b"404", b"400"}


def test_a_header_does_not_choose_the_address(locked: Running) -> None:
    for name in ("X-Forwarded-Prefix", "X-Original-URL", "X-Rewrite-URL", "X-HTTP-Method-Override", "X-Forwarded-For"):
        assert locked.get("/v1/models", **{name: "/health/live"}).status == 401


def test_no_answer_leads_where_a_header_says(server: Running) -> None:
    for path in ("/v1/models/", "/health/live/", "/v1/classify/"):
        for method in ("GET", "POST"):
            answer = server.ask(method, path, headers={"Host": "evil.example"})
            assert answer.refusal == (404, "not_found") and "location" not in answer.headers
            assert b"evil" not in answer.body


SAFE = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
EVERY_KIND: dict[str, bytes] = {
    "200": HEAD + CLOSE + b"X-API-Key: " + KEY.encode() + b"\r\nContent-Length: 13" + END + BODY,
    "200 OK": b"GET /health/live HTTP/1.0" + END,
    "400": b"NONSENSE" + END,
    "401": HEAD + CLOSE + b"Content-Length: 13" + END + BODY,
    "404": b"GET /nothing HTTP/1.0" + END,
    "405": b"DELETE /health/live HTTP/1.0" + END,
    "431": b"GET /" + b"a" * 70_000,
}


@pytest.mark.parametrize("status", EVERY_KIND)
def test_every_answer_says_what_browsers_may_do(locked: Running, status: str) -> None:
    answer = locked.raw(EVERY_KIND[status])
    assert answer.startswith(b"HTTP/1.1 " + status.encode())
    lines = answer.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
    found = [(name.lower(), value) for name, value in (line.split(": ", 1) for line in lines)]
    assert SAFE.items() <= dict(found).items() and len(dict(found)) == len(found)
    # The page has its own policy, and is no secret.
    page = locked.get("/").headers
    for name in ("referrer-policy", "x-content-type-options", "x-frame-options", "cross-origin-resource-policy"):
        assert page[name] == SAFE[name]
    assert "frame-ancestors 'none'" in page["content-security-policy"]


def test_a_page_of_somebody_else_can_ask_nothing(server: Running) -> None:
    # A browser asks first before it sends JSON for another's page, and sends anything else without asking.
    asked = server.ask("OPTIONS", "/v1/classify", None, {"Origin": "http://x", "Access-Control-Request-Method": "POST"})
    assert asked.status == 405 and not [name for name in asked.headers if name.startswith("access-control")]
    simple = server.ask("POST", "/v1/classify", BODY, {"Origin": "http://x", "Content-Type": "text/plain"})
    assert simple.refusal == (415, "not_json")
