"""Bodies of requests: how much is read and held, what is wrong in one line, and nothing costs more than its bytes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect, Request

from recurra.deployment.serving import bodies
from recurra.deployment.serving.bodies import BodyReader, parse_request
from recurra.deployment.serving.limits import Refusal, ServerLimits

K = 1024
LIMITS = ServerLimits(max_texts=5, max_characters=40_000)
SMALL = ServerLimits(max_body_bytes=10 * K, max_held_bytes=16 * K, body_timeout_s=5)
KEYS = "text, model, exit_rule, exit_after, recurrences, abstain_below, explain, cut"
TEXT = "must be a string or a list of strings, one at least"
NUMBER = "'abstain_below' must be a number from 0 to 1, or null"
MISTAKES = {
    b'{"text": ["a", 2, null]}': f"'text[1]' {TEXT}: expected `str`, got `int`",
    b'{"text": null}': f"'text' {TEXT}: expected `str | array`, got `null`",
    b'{"text": []}': f"'text' {TEXT}: expected `array` of length >= 1",
    b'{"text": 1, "text": ["a"]}': f"'text' {TEXT}: expected `str | array`, got `int`",
    b'{"text": "a", "recurrences": 1}': "'recurrences' must be true or false: expected `bool`, got `int`",
    b'{"text": "a", "exit_rule": "x"}': "'exit_rule' must be 'calibrated' or null: invalid enum value 'x'",
    b'{"text": "a", "abstain_below": 1.5}': f"{NUMBER}: expected `float` <= 1.0",
    b'{"text": "a", "abstain_below": true}': f"{NUMBER}: expected `float | null`, got `bool`",
    b'{"text": "a", "abstain_below": 1e999}': f"{NUMBER}: number out of range",
    b'{"text": "a", "exit_after": 1e300}':
        "'exit_after' must be a whole number from 1 to 1,000,000, or null: expected `float` <= 1000000.0",
    b'{"text": "a", "model": ["m", ""]}':
        "'model[1]' must be the name of a model or a list of names, one at least: expected `str` of length >= 1",
    b'{"texts": "a"}': f"unknown key 'texts' (did you mean 'text'?); allowed: {KEYS}",
    b'{"text": "a", "x": [[[[': f"unknown key 'x'; allowed: {KEYS}",
    b'{"text": "a", " - at `$.x`": 1}': f"unknown key ' - at `$.x`'; allowed: {KEYS}",
    b"{}": "'text' is missing; add it",
    b"[]": 'the body must be a JSON object, such as {"text": "not bad at all"}',
}  # fmt: skip


def refusal(body: bytes, limits: ServerLimits = LIMITS) -> tuple[int, str, str]:
    with pytest.raises(Refusal) as caught:
        parse_request(body, limits)
    return caught.value.status, caught.value.code, caught.value.message


def test_the_first_mistake_is_told_with_its_path() -> None:
    for body, message in MISTAKES.items():
        assert refusal(body) == (422, "invalid", message)


def test_texts_and_characters_have_a_limit() -> None:
    assert parse_request(b'{"text": ["a", "a", "a", "a", "a"]}', LIMITS).texts == ["a"] * 5
    assert refusal(b'{"text": ["a", "a", "a", "a", "a", "a"]}') == (
        422, "too_many_texts", "'text' has 6 texts; at most 5 are allowed: send several requests",
    )  # fmt: skip
    for text, path in ((["a", "b" * 40_001], "text[1]"), ("b" * 40_001, "text")):
        assert refusal(json.dumps({"text": text}).encode()) == (
            422, "text_too_long", f"'{path}' has 40,001 characters; at most 40,000 are allowed",
        )  # fmt: skip


@given(text=st.text() | st.lists(st.text(), min_size=1, max_size=5), ascii_only=st.booleans())
def test_texts_come_as_they_were_sent(text: str | list[str], ascii_only: bool) -> None:
    request = parse_request(json.dumps({"text": text}, ensure_ascii=ascii_only).encode(), LIMITS)
    assert request.text == text and request.texts == ([text] if isinstance(text, str) else text)


def floods(size: int) -> Iterator[bytes]:
    """The bodies of so many bytes that cost most, of their kind."""
    for begin, unit, end in (
        (b'{"text": [', b'"a",', b'"a"]}'),
        (b'{"text": [', b'"\\u00e9",', b'"a"]}'),
        (b'{"text": "a", "model": [', b'"m",', b'"m"]}'),
        (b"{", b'"text":"",', b'"text":""}'),
        (b"", b"[", b""),
        (b'{"text": ', b"[", b""),
        (b'{"x": ', b"[{}],", b""),
        (b'{"', b"x", b'": 1}'),
        (b'{"text": "a", "exit_rule": "', b"x", b'"}'),
        (b'{"text": "a", "abstain_below": 0.', b"9", b"}"),
        (b'{"text": "', b"\\n", b'"}'),
    ):
        yield begin + unit * ((size - len(begin) - len(end)) // len(unit)) + end


def test_no_body_within_the_limit_holds_up_the_others() -> None:
    """The worst of them takes 0.05 s on a server of 2020."""
    for body in floods(ServerLimits().max_body_bytes):
        started = time.process_time()
        try:
            request = parse_request(body, ServerLimits())
            assert len(request.texts) <= 256
        except Refusal as error:
            assert len(error.message) < 400
        assert time.process_time() - started < 1


def sent(*parts: bytes | None, **headers: str) -> Request:
    """A request whose body comes in parts; None: the client leaves."""
    names = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    numbered, last = enumerate(parts), len(parts) - 1

    async def receive() -> dict[str, Any]:
        number, part = next(numbered)
        if part is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": part, "more_body": number < last}

    raw = [(name.encode(), value.encode()) for name, value in names.items()]
    return Request({"type": "http", "headers": raw}, receive)


def read(request: Request, limits: ServerLimits = SMALL) -> bytes:
    return asyncio.run(BodyReader(limits).read(request))


async def refused(reader: BodyReader, request: Request) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await reader.read(request)
    return caught.value


def refused_alone(request: Request, limits: ServerLimits = SMALL) -> Refusal:
    return asyncio.run(refused(BodyReader(limits), request))


def test_a_body_is_its_parts_and_may_be_as_large_as_allowed() -> None:
    parts = b"01234" * K, b"56789" * K
    assert read(sent(parts[0], b"", parts[1])) == b"".join(parts)
    assert read(sent(b"0123456789" * K, content_length=str(10 * K))) == b"0123456789" * K
    assert read(sent(b"")) == b""
    json, marked = "application/json", 'application/json; charset="UTF-8"'
    for kind in (json, "Application/JSON ; charset=utf-8", marked, "application/json;v=1"):
        assert read(sent(b"{}", content_type=kind, content_encoding="identity")) == b"{}"
    for request in (sent(b"0" * 5 * K, b"1" * 5 * K + b"2"), sent(b"0" * 11 * K, content_length=str(11 * K))):
        error = refused_alone(request)
        assert (error.status, error.code, error.headers["Connection"]) == (413, "body_too_large", "close")
        assert "larger than the 10,240 bytes allowed" in error.message


def test_what_is_announced_too_large_is_not_waited_for_if_the_client_waits_or_it_is_huge() -> None:
    """Of the parts nothing is asked for: the client of `Expect` has not sent any."""
    huge = str(bodies._DISCARDED_BYTES + 1)
    for headers in ({"content_length": "10241", "expect": "100-continue"}, {"content_length": huge}):
        assert refused_alone(sent(**headers)).status == 413
    # One that is larger and does not wait is read to its end, so that its client sees the answer.
    with pytest.raises((RuntimeError, StopIteration)):
        read(sent(content_length="10241"))


def test_no_more_than_so_much_is_thrown_away_unless_more_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_DISCARDED_BYTES", 30 * K)
    assert refused_alone(sent(b"0" * 20 * K, b"1" * 10 * K + b"2", None)).status == 413
    with pytest.raises(ClientDisconnect):
        read(sent(b"0" * 20 * K, b"1" * 10 * K, None))
    monkeypatch.setattr(bodies, "_DISCARDED_BYTES", 3 * K)
    limits = ServerLimits(max_body_bytes=10 * K, max_held_bytes=2 * K)
    assert read(sent(b"01234" * K, b"56789" * K), limits) == b"01234" * K + b"56789" * K
    assert refused_alone(sent(b"0" * 10 * K, b"1", None), limits).status == 413


def test_all_bodies_together_hold_so_much_and_give_it_back() -> None:
    async def work() -> None:
        reader = BodyReader(SMALL)
        # Who leaves holds nothing any more.
        for _ in range(3):
            with pytest.raises(ClientDisconnect):
                await reader.read(sent(b"0" * 9 * K, None))
        await reader.read(sent(b"0" * 10 * K))
        error = await refused(reader, sent(b"0" * 4 * K, b"1" * 3 * K))
        assert (error.status, error.code) == (429, "overloaded")
        assert error.headers == {"Connection": "close", "Retry-After": "1"}
        # What was refused holds nothing any more, and what is too large holds nothing while it is thrown away.
        await refused(reader, sent(b"0" * 6 * K, b"1" * 6 * K))
        await reader.read(sent(b"0" * 6 * K))
        assert (await refused(reader, sent(b"0"))).status == 429
        reader.release(16 * K)
        for _ in range(3):
            body = await reader.read(sent(b"0" * 10 * K))
            reader.release(len(body))

    asyncio.run(work())


def test_who_is_slow_is_refused() -> None:
    async def never() -> dict[str, Any]:
        await asyncio.sleep(5)
        return {}

    request = sent(b"0")
    request._receive = never
    error = refused_alone(request, ServerLimits(body_timeout_s=0.02))
    assert (error.status, error.code) == (408, "too_slow") and "within 0.02 s" in error.message
    assert error.headers == {"Connection": "close"}


@pytest.mark.parametrize(
    ("headers", "code", "part"),
    [
        ({"content_type": "text/plain"}, "not_json", "send the header Content-Type: application/json"),
        ({"content_type": ""}, "not_json", "must be JSON"),
        ({"content_type": "application/json5"}, "not_json", "must be JSON"),
        ({"content_type": "application/json; charset=latin-1"}, "not_utf8", "is 'latin-1'; send JSON in UTF-8"),
        ({"content_type": f"application/json; charset={'x' * 9000}"}, "not_utf8", "xx…'; send JSON in UTF-8"),
        ({"content_encoding": "br, gzip"}, "compressed", "is 'br, gzip'; send it without compression"),
    ],
)
def test_a_body_of_another_type_is_not_read(headers: dict[str, str], code: str, part: str) -> None:
    error = refused_alone(sent(**headers))
    assert (error.status, error.code) == (415, code) and part in error.message and len(error.message) < 250
    assert error.headers.get("Accept-Encoding") == ("identity" if code == "compressed" else None)
