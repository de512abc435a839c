"""How much of a body is read, and how much all of them may hold."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any, cast

import pytest

pytest.importorskip("fastapi", reason="pip install 'recurra[serve]'")

from starlette.requests import Request

from recurra.deployment.serving import request as request_module
from recurra.deployment.serving.refusals import Refusal
from recurra.deployment.serving.request import BodyReader, ClientGoneError
from recurra.deployment.serving.settings import ServerLimits

K = 1024
LIMITS = ServerLimits(max_body_bytes=10 * K, max_held_bytes=16 * K, body_timeout_s=5)


def sent(*parts: bytes | None, **headers: str) -> Request:
    """A request whose body comes in parts; None: the client leaves."""
    names = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    left = iter(parts)
    last = len(parts) - 1

    async def receive() -> dict[str, Any]:
        number, part = next(numbered)
        if part is None:
            return {"type": "http.disconnect"}
        # What is empty and the last has nothing to say, and says so.
        more = {"more_body": True} if number < last else {}
        return {"type": "http.request", **({"body": part} if part else {}), **more}

    numbered = enumerate(left)
    raw = [(name.encode(), value.encode()) for name, value in names.items()]
    return Request({"type": "http", "headers": raw}, receive)


def run(work: Awaitable[Any]) -> Any:
    return asyncio.run(cast("Any", work))


async def refused(reader: BodyReader, request: Request) -> Refusal:
    with pytest.raises(Refusal) as caught:
        async with reader.read(request):
            pass
    return caught.value


def test_a_body_is_its_parts_and_may_be_as_large_as_allowed() -> None:
    async def work() -> None:
        reader = BodyReader(LIMITS)
        for request, body in (
            (sent(b"01234" * K, b"", b"56789" * K), b"01234" * K + b"56789" * K),
            (sent(b"0123456789" * K, content_length=str(10 * K)), b"0123456789" * K),
            (sent(b""), b""),
            (sent(b"{}", content_type="Application/JSON ; charset=utf-8"), b"{}"),
        ):
            async with reader.read(request) as found:
                assert found == body

    run(work())


@pytest.mark.parametrize(
    "request_", [sent(b"0" * 5 * K, b"1" * 5 * K + b"2"), sent(b"0" * 11 * K, content_length=str(11 * K))]
)
def test_a_larger_one_is_refused_with_what_to_do(request_: Request) -> None:
    found = run(refused(BodyReader(LIMITS), request_))
    assert (found.status, found.code, found.headers["Connection"]) == (413, "body_too_large", "close")
    assert "larger than the 10,240 bytes allowed" in found.message


def test_what_is_announced_too_large_is_not_waited_for_if_the_client_waits_or_it_is_huge() -> None:
    """Of the parts nothing is asked for: the client of `Expect` has not sent any."""
    huge = str(request_module._DISCARDED_BYTES + 1)
    for headers in ({"content_length": "10241", "expect": "100-continue"}, {"content_length": huge}):
        assert run(refused(BodyReader(LIMITS), sent(**headers))).status == 413
    # One that is larger and does not wait is read to its end, so that its client sees the answer.
    with pytest.raises((RuntimeError, StopIteration)):
        run(refused(BodyReader(LIMITS), sent(content_length="10241")))


def test_no_more_than_so_much_is_thrown_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_module, "_DISCARDED_BYTES", 30 * K)
    assert run(refused(BodyReader(LIMITS), sent(b"0" * 20 * K, b"1" * 10 * K + b"2", None))).status == 413
    with pytest.raises(ClientGoneError):
        run(refused(BodyReader(LIMITS), sent(b"0" * 20 * K, b"1" * 10 * K, None)))


def test_all_bodies_together_hold_so_much_and_give_it_back() -> None:
    async def work() -> None:
        reader = BodyReader(LIMITS)
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(reader.read(sent(b"0" * 10 * K)))
            found = await refused(reader, sent(b"0" * 4 * K, b"1" * 3 * K))
            assert (found.status, found.code) == (429, "overloaded")
            assert found.headers == {"Connection": "close", "Retry-After": "1"}
            # What was refused holds nothing any more, and what is too large holds nothing while it is thrown away.
            await refused(reader, sent(b"0" * 6 * K, b"1" * 6 * K))
            await stack.enter_async_context(reader.read(sent(b"0" * 6 * K)))
            assert (await refused(reader, sent(b"0"))).status == 429
        for _ in range(3):
            async with reader.read(sent(b"0" * 10 * K)) as body:
                assert len(body) == 10 * K

    run(work())


def test_who_leaves_or_is_slow_holds_nothing_any_more() -> None:
    async def work() -> None:
        reader = BodyReader(LIMITS)
        for _ in range(3):
            with pytest.raises(ClientGoneError):
                async with reader.read(sent(b"0" * 9 * K, None)):
                    pass
        slow = BodyReader(ServerLimits(max_body_bytes=10 * K, max_held_bytes=16 * K, body_timeout_s=0.02))
        request = sent(b"0")

        async def never() -> dict[str, Any]:
            await asyncio.sleep(5)
            return {}

        request._receive = never
        found = await refused(slow, request)
        assert (found.status, found.code) == (408, "too_slow") and "within 0.02 s" in found.message
        assert found.headers == {"Connection": "close"}

    run(work())


@pytest.mark.parametrize("kind", ["text/plain", "", "application/json5"])
def test_what_is_not_said_to_be_json_is_not_read(kind: str) -> None:
    assert run(refused(BodyReader(LIMITS), sent(content_type=kind))).code == "not_json"
