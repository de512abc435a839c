"""Reading a request: no more than is allowed, no longer than is allowed, and no more of all together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.requests import Request

from recurra.deployment.serving.refusals import Refusal
from recurra.deployment.serving.settings import Limits

# A body that is too large is read and thrown away up to here: a client that is cut off while it sends sees a broken
# connection instead of the answer.
_DISCARDED_BYTES = 32 * 2**20


class ClientGoneError(Exception):
    """The client left before its request was whole."""


class BodyReader:
    """Reads bodies and counts what all of them hold in memory.

    Args:
        limits: The bounds.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._held_bytes = 0

    @contextlib.asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """Yields the body; its bytes count as held until the block ends.

        Raises:
            Refusal: 413 if it is too large, 408 if it comes too slowly, 429 if too much is held, 415 if it is not JSON.
            ClientGoneError: If the client left.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refusal(415, "not_json", "the body must be JSON; send the header Content-Type: application/json")
        held = _Held(self)
        try:
            yield await self._read(request, held)
        finally:
            held.give_back()

    async def _read(self, request: Request, held: _Held) -> bytes:
        limits = self._limits
        announced = _announced(request)
        large = announced > limits.max_body_bytes
        if large and (announced > _DISCARDED_BYTES or "expect" in request.headers):
            raise self._too_large()
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + limits.body_timeout_s):
                while True:
                    message = await request.receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGoneError
                    part = message.get("body", b"")
                    size += len(part)
                    large = large or size > limits.max_body_bytes
                    if large:
                        parts.clear()
                        held.give_back()
                        if size > _DISCARDED_BYTES:
                            raise self._too_large()
                    elif part:
                        held.take(len(part))
                        parts.append(part)
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise Refusal(
                408,
                "too_slow",
                f"the body did not arrive within {limits.body_timeout_s:g} s",
                headers={"Connection": "close"},
            ) from None
        if large:
            raise self._too_large()
        return b"".join(parts)

    def hold(self, size: int) -> None:
        """Counts bytes as held, or refuses them."""
        if self._held_bytes + size > self._limits.max_held_bytes:
            raise Refusal(
                429,
                "overloaded",
                "too many bytes of requests are held; try again in 1 s",
                retry_after_s=1,
                headers={"Connection": "close"},
            )
        self._held_bytes += size

    def release(self, size: int) -> None:
        """Counts bytes as held no more."""
        self._held_bytes -= size

    def _too_large(self) -> Refusal:
        return Refusal(
            413,
            "body_too_large",
            f"the body is larger than the {self._limits.max_body_bytes:,} bytes allowed; send several requests",
            headers={"Connection": "close"},
        )


class _Held:
    """What one request holds."""

    def __init__(self, reader: BodyReader) -> None:
        self._reader = reader
        self.size = 0

    def take(self, size: int) -> None:
        self._reader.hold(size)
        self.size += size

    def give_back(self) -> None:
        self._reader.release(self.size)
        self.size = 0


def _announced(request: Request) -> int:
    """What ``Content-Length`` says; 0 if it is not there."""
    value = request.headers.get("content-length", "")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 20 else 0
