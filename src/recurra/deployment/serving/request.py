"""From what a client sends to a request: no more than is allowed, no longer than is allowed, at a bounded cost.

Whoever sends what is large, slow or wrong must not hold up others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json
from starlette.requests import Request

from recurra.core.errors import did_you_mean
from recurra.deployment.serving.refusals import Refusal, shortened
from recurra.deployment.serving.schema import ClassifyRequest
from recurra.deployment.serving.settings import ServerLimits

_FIELDS = tuple(ClassifyRequest.model_fields)
_MUST_BE = {
    "exit_rule": "'calibrated' or null",
    "recurrences": "true or false",
    "explain": "true or false",
    "abstain_below": "a number from 0 to 1, or null",
}
# JSON values of a body that are no texts: keys, names of models, what stands beside them.
_OTHER_VALUES = 256
# Of a body with too many values this much is read, to say what is wrong with it.
_BEGINNING_BYTES = 16 * 1024
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

    def __init__(self, limits: ServerLimits) -> None:
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


def parse_request(body: bytes, limits: ServerLimits) -> ClassifyRequest:
    """Reads a request's body.

    A body with many more values than a request may have is not parsed but for its beginning. What is parsed is checked
    from the outside in, and up to the first mistake: the length of a list before its items.

    Args:
        body: JSON in UTF-8.
        limits: Bounds of texts.

    Raises:
        Refusal: 400 if it is no JSON, 422 if it is not what is asked for or beyond a limit.
    """
    most = limits.max_texts + _OTHER_VALUES
    whole = _has_at_most(body, most)
    try:
        value = from_json(body) if whole else from_json(body[:_BEGINNING_BYTES], allow_partial="trailing-strings")
    except ValueError as error:
        raise Refusal(400, "malformed", f"the body is not JSON in UTF-8 ({error})") from None
    if isinstance(value, dict):
        texts = value.get("text")
        if isinstance(texts, list) and len(texts) > limits.max_texts:
            number = f"{len(texts):,}" if whole else f"more than {limits.max_texts:,}"
            raise _too_many(f"'text' has {number} texts; at most {limits.max_texts:,} are allowed")
        value = _shortest_with_its_mistakes(value)
    try:
        request = ClassifyRequest.model_validate(value)
    except ValidationError as error:
        first = _first(error, whole)
        if first is not None:
            raise _explain(first) from None
    if not whole:
        raise _too_many(f"the body has more than {most:,} values; at most {limits.max_texts:,} texts are allowed")
    _check_characters(request, limits)
    return request


def _has_at_most(body: bytes, most: int) -> bool:
    """Whether a body has no more JSON values than that, found out without parsing it."""
    if _count_values(body) <= most:
        return True
    # Commas and brackets may be those of texts. Without what is escaped, quotes only begin and end strings, and every
    # second part lies outside of them. Strings are at most two for each value: its key and itself.
    parts = body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"', 4 * most + 4)
    return _count_values(b"".join(parts[::2])) <= most


def _count_values(outside: bytes) -> int:
    return 1 + outside.count(b",") + outside.count(b"[") + outside.count(b"{")


def _shortest_with_its_mistakes(value: dict[str, Any]) -> dict[str, Any]:
    """The keys that there are, and the first that there is not: one is told of, however many were sent."""
    unknown = next((key for key in value if key not in _FIELDS), None)
    wanted = _FIELDS if unknown is None else (*_FIELDS, unknown)
    return {key: value[key] for key in wanted if key in value}


def _check_characters(request: ClassifyRequest, limits: ServerLimits) -> None:
    for number, text in enumerate(request.texts):
        if len(text) > limits.max_characters:
            where = "'text'" if isinstance(request.text, str) else f"'text[{number}]'"
            raise Refusal(
                422,
                "text_too_long",
                f"{where} has {len(text):,} characters; at most {limits.max_characters:,} are allowed",
            )


def _too_many(what: str) -> Refusal:
    return Refusal(422, "too_many_texts", f"{what}: send several requests")


def _first(error: ValidationError, whole: bool) -> Any:
    """The complaint to tell; none if the rest of the body may put it right."""
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    if not whole:
        problems = [problem for problem in problems if problem["type"] != "missing"]
    first = max(problems, key=_depth, default=None)
    return first if whole or first is None or not first["type"].endswith("too_short") else None


def _explain(first: Any) -> Refusal:
    """A complaint in words, without what the user sent."""
    kind, where = first["type"], first["loc"]
    if not where:
        return Refusal(422, "invalid", 'the body must be a JSON object, such as {"text": "not bad at all"}')
    name = shortened(str(where[0]))
    position = next((f"[{part}]" for part in where[1:] if isinstance(part, int)), "")
    messages = {
        "extra_forbidden": f"unknown key '{name}'{did_you_mean(name, _FIELDS)}; allowed: {', '.join(_FIELDS)}",
        "missing": f"'{name}' is missing; add it",
        "too_short": f"'{name}' is an empty list; give at least one",
        "string_too_short": f"'{name}' holds an empty name; leave '{name}' out for the first model",
    }
    types = f"'{name}{position}' must be a string" + ("" if position else " or a list of strings")
    if name in _MUST_BE:
        types = f"'{name}' must be {_MUST_BE[name]}"
    return Refusal(422, "invalid", messages.get(kind, types))


def _depth(problem: Any) -> float:
    # Of a union, the branch that came furthest is the one that was meant. A misspelt key says more than that the right
    # one is missing.
    depth = len(problem["loc"]) + (problem["type"] in {"too_short", "string_too_short"})
    return depth + (0.5 if problem["type"] == "extra_forbidden" else 0.0)
