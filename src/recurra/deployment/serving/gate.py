"""What every request passes: the key, a number of its own, headers, the log, the metrics, and a net under all."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Mapping
from typing import Any

from fastapi import Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recurra.deployment.serving.key import ApiKey
from recurra.deployment.serving.log import EventLog
from recurra.deployment.serving.metrics import Metrics
from recurra.deployment.serving.refusals import Refusal

_KNOWN_PATHS = frozenset(
    {"/", "/v1/classify", "/v1/models", "/health/live", "/health/ready", "/metrics", "/openapi.json"}
)
_KNOWN_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}


def answer(refusal: Refusal) -> Response:
    """Returns a refusal as a response."""
    return Response(refusal.body(), refusal.status, headers=refusal.headers, media_type="application/json")


class Gate:
    """An ASGI application around another.

    Args:
        application: What answers.
        key: What opens ``/v1`` and ``/metrics``; none leaves them open.
        log: Gets a line a request.
        metrics: Counts requests.
        direct: What answers in its place, by method and path: where much is asked, its routing costs as much as ours.
    """

    def __init__(
        self,
        application: ASGIApp,
        *,
        key: ApiKey | None,
        log: EventLog,
        metrics: Metrics,
        direct: Mapping[tuple[str, str], ASGIApp] | None = None,
    ) -> None:
        self.application = application
        self._key = key
        self._log = log
        self._metrics = metrics
        self._direct = dict(direct or {})
        self._numbers = itertools.count()
        self._prefix = secrets.token_hex(5)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on one request, or the start and the end of the server."""
        if scope["type"] != "http":
            await self.application(scope, receive, send)
            return
        started = time.monotonic()
        # Known to nobody before, and no two alike; random digits for each would ask the system each time.
        request_id = f"{self._prefix}{next(self._numbers):06x}"
        state: dict[str, Any] = scope.setdefault("state", {})
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._pass(scope, receive, send_with_headers)
        except Exception as error:  # noqa: BLE001 - no error of ours may reach a user, nor end the connection unanswered
            self._log.failure("request", error, request_id=request_id)
            if status == 0:
                state["refused"] = "failed"
                refusal = Refusal(500, "failed", f"the server failed; its log says why under {request_id}")
                await answer(refusal)(scope, receive, send_with_headers)
        finally:
            self._note(scope, state, status, time.monotonic() - started, request_id)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        guarded = path.startswith("/v1") or path == "/metrics"
        if self._key is not None and guarded and not self._key.opens(Headers(scope=scope)):
            scope["state"]["refused"] = "no_key"
            refusal = Refusal(
                401,
                "no_key",
                "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await answer(refusal)(scope, receive, send)
            return
        application = self._direct.get((scope["method"], path), self.application)
        await application(scope, receive, send)

    def _note(self, scope: Scope, state: dict[str, Any], status: int, seconds: float, request_id: str) -> None:
        path = _known_path(scope["path"])
        method = scope["method"] if scope["method"] in _KNOWN_METHODS else "other"
        self._metrics.requests.labels(path, method, str(status)).inc()
        self._metrics.request_seconds.labels(path).observe(seconds)
        refused = state.get("refused")
        if refused is not None:
            self._metrics.refused.labels(refused).inc()
        self._log.write(
            "request",
            request_id=request_id,
            method=method,
            path=path,
            status=status,
            ms=round(1000 * seconds, 3),
            **state.get("seen", {}),
            **({} if refused is None else {"refused": refused}),
        )


def _known_path(path: str) -> str:
    """The path, where it is one of ours: others may hold anything, a text among it."""
    if path in _KNOWN_PATHS:
        return path
    return "/v1/models/{name}" if path.startswith("/v1/models/") else "other"
