"""Answers that are not results: a status, a word for programs, a sentence for people."""

from __future__ import annotations

import json
import math
from typing import Any


class Refusal(Exception):  # noqa: N818 - it is an answer, not a failure of the server
    """Ends a request with an answer that says what is wrong.

    Args:
        status: HTTP status.
        code: One word for programs.
        message: One sentence: what is wrong, what is allowed, what to do.
        retry_after_s: Seconds after which it may be tried again, if that makes sense.
        headers: Further headers of the answer.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        retry_after_s: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})
        if retry_after_s is not None:
            self.headers["Retry-After"] = str(retry_after_s)

    def body(self) -> bytes:
        """The JSON document of the answer."""
        return error_body(self.code, self.message)


def error_body(code: str, message: str) -> bytes:
    """Returns the JSON document of every answer that is not a result."""
    return encode({"error": {"code": code, "message": message}})


def encode(value: Any) -> bytes:
    """Returns compact JSON; what is no Unicode text is escaped, so that every answer can be sent."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")


def overloaded(expected_wait_s: float) -> Refusal:
    """The answer to who comes while too many wait."""
    seconds = _whole(expected_wait_s)
    return Refusal(429, "overloaded", f"too many texts are waiting; try again in {seconds} s", retry_after_s=seconds)


def too_often(allowed: str, wait_s: float) -> Refusal:
    """The answer to who asks more often than is allowed."""
    seconds = _whole(wait_s)
    message = f"more than {allowed} came from this client; try again in {seconds} s"
    return Refusal(429, "rate_limited", message, retry_after_s=seconds)


def _whole(seconds: float) -> int:
    return max(1, math.ceil(seconds))


def stopping() -> Refusal:
    """The answer to who comes while the server ends."""
    return Refusal(503, "stopping", "the server is being stopped; try again in a moment", retry_after_s=1)


def shortened(value: str, most: int = 100) -> str:
    """Cuts a user's word before it is quoted back."""
    return value if len(value) <= most else value[:most] + "…"
