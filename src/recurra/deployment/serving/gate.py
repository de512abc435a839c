"""What every request passes: key and rate, a number of its own, headers, the log, the metrics, and a net under all."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from fastapi import Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recurra.deployment.serving.clients import ApiKeys, RateLimiter, network_of
from recurra.deployment.serving.headers import HEADERS
from recurra.deployment.serving.log import EventLog
from recurra.deployment.serving.metrics import Metrics
from recurra.deployment.serving.refusals import Refusal, too_often
from recurra.deployment.serving.settings import Rate

_KNOWN_PATHS = frozenset(
    {"/", "/v1/classify", "/v1/models", "/health/live", "/health/ready", "/metrics", "/openapi.json"}
)
_KNOWN_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def answer(refusal: Refusal) -> Response:
    """Returns a refusal as a response."""
    return Response(refusal.body(), refusal.status, headers=refusal.headers, media_type="application/json")


class Gate:
    """An ASGI application around another.

    Args:
        application: What answers.
        keys: What opens ``/v1`` and ``/metrics``; none leaves them open.
        rate: How often a key may ask, or an address without one; none is no limit.
        log: Gets a line a request.
        metrics: Counts requests.
        reload: Takes up models that were replaced; see `recurra.deployment.serving.models.Models`.
        direct: What answers in its place, by method and path: where much is asked, its routing costs as much as ours.
    """

    def __init__(
        self,
        application: ASGIApp,
        *,
        keys: ApiKeys | None,
        rate: Rate | None,
        log: EventLog,
        metrics: Metrics,
        reload: Callable[[], Coroutine[Any, Any, None]],
        direct: Mapping[tuple[str, str], ASGIApp] | None = None,
    ) -> None:
        self.application = application
        self.reload = reload
        self._keys = keys
        self._rate = rate
        self._limiter = None if rate is None else RateLimiter(rate)
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
                for name, value in HEADERS.items():
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
        refusal = self._refuse(scope, guarded=guarded, counted=guarded or not path.startswith("/health/"))
        if refusal is not None:
            scope["state"]["refused"] = refusal.code
            await answer(refusal)(scope, receive, send)
            return
        application = self._direct.get((scope["method"], path), self.application)
        await application(scope, receive, send)

    def _refuse(self, scope: Scope, *, guarded: bool, counted: bool) -> Refusal | None:
        owner = None if self._keys is None or not guarded else self._keys.owner(Headers(scope=scope))
        if self._limiter is not None and counted:
            # Who has no key, or a wrong one, must not use up what those have who own it.
            client = network_of((scope.get("client") or ("",))[0]) if owner is None else owner
            wait_s = self._limiter.wait_s(client)
            if wait_s:
                return too_often(str(self._rate), wait_s)
        if self._keys is not None and guarded and owner is None:
            return Refusal(
                401,
                "no_key",
                "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return None

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
