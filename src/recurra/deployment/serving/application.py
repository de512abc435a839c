"""The ASGI application: admission of requests, the routes, and their OpenAPI document.

Every request gets its own number, the headers of `HEADERS`, a line in the log and its counts in the metrics, whatever
its result. Exceptions of routes are answered in one place.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import itertools
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

from recurra.core.errors import ConfigurationError, DataError
from recurra.core.version import __version__
from recurra.data.tables import TABLE_FORMATS, format_of, stream_texts
from recurra.deployment.explanation import MOST_PARTS, Span, explanations_of, occluded, spans_of
from recurra.deployment.export.formats import FORMATS
from recurra.deployment.serving.bodies import (
    BodyReader,
    ClassifyRequest,
    ClassifyResponse,
    ErrorResponse,
    Extras,
    Health,
    LoadedModel,
    ModelDescription,
    ModelResult,
    ModelsResponse,
    Readiness,
    parse_request,
    predictions_of,
    unknown_model,
)
from recurra.deployment.serving.limits import (
    HEADERS,
    ApiKeys,
    RateLimiter,
    Refusal,
    ServerLimits,
    error_body,
    network_of,
    stopping,
    try_again,
)
from recurra.deployment.serving.models import Computed, Models, ServedModel
from recurra.deployment.serving.observation import METRICS_TYPE, EventLog, Metrics
from recurra.models.exits.rules import FixedExit

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_MODEL_PATH = "/v1/models/{name}"
# Examples on the page: their number, the most characters of each, and the most characters and rows read of their file.
_EXAMPLES, _EXAMPLE_CHARACTERS, _EXAMPLES_READ, _EXAMPLE_ROWS = 6, 1000, 2**20, 10_000
_JSON = "application/json"
_TEXT = "The opening is slow, but the last act is worth the wait."
_REASONS = {
    400: "The body is not JSON in UTF-8.",
    401: "The API key is missing or wrong.",
    404: "There is no such model, or it has no such exit.",
    408: "The body came too slowly.",
    413: "The body is too large.",
    415: "The body is not declared to be JSON in UTF-8, or is compressed.",
    422: "The body is not valid, or it is beyond a limit.",
    429: "Too many texts are waiting, or this client sends too many requests; Retry-After says when to try again.",
    500: "The server failed; its log says why under the number in X-Request-ID.",
    503: "The texts were not computed in time, or the server is being stopped.",
}
# For each path its method, its answer as type or media type, and its errors besides 500.
_OPERATIONS: dict[str, tuple[str, Any, tuple[int, ...]]] = {
    "/v1/classify": ("post", ClassifyResponse, (400, 401, 404, 408, 413, 415, 422, 429, 503)),
    "/v1/models": ("get", ModelsResponse, (401, 429)),
    _MODEL_PATH: ("get", ModelDescription, (401, 404, 429)),
    "/health/live": ("get", Health, ()),
    "/health/ready": ("get", Readiness, ()),
    "/metrics": ("get", "text/plain", (401, 429)),
    "/": ("get", "text/html", (429,)),
}
_PATHS = frozenset({*_OPERATIONS, "/openapi.json"}) - {_MODEL_PATH}


class Application:
    """Answers requests to models; the first model answers requests that name none.

    ``/v1`` and ``/metrics`` need one of the keys; without keys they are open. The page shows the examples.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        limits: ServerLimits | None = None,
        *,
        keys: ApiKeys | None = None,
        log: EventLog | None = None,
        examples: Sequence[str] = (),
    ) -> None:
        self._limits = limits = limits or ServerLimits()
        self._keys = keys
        self._log = log = log or EventLog()
        self.metrics = Metrics()
        self._limiter = None if limits.rate is None else RateLimiter(limits.rate)
        self._registry = registry = Models(models, limits, self.metrics, log)
        self._models = registry.by_name
        self.request_reload = registry.request_reload
        self._bodies = BodyReader(limits)
        openapi = msgspec.json.encode(describe(limits, [*self._models], with_key=keys is not None))
        page, page_headers = read_page(examples)
        self._numbers = itertools.count()
        self._prefix = secrets.token_hex(5)
        routes = [
            Route("/v1/classify", self._classify, methods=["POST"]),
            Route("/v1/models", _endpoint(self._list_models)),
            Route(_MODEL_PATH, self._describe_model),
            Route("/health/live", _endpoint(lambda: _respond(Health()))),
            Route("/health/ready", _endpoint(self._readiness)),
            Route("/metrics", _endpoint(lambda: _respond(self.metrics.page(), headers={"Content-Type": METRICS_TYPE}))),
            Route("/openapi.json", _endpoint(lambda: _respond(openapi))),
            Route("/", _endpoint(lambda: _respond(page, headers=page_headers))),
        ]
        # No redirects, because they would go to the address in the header Host.
        self.router = Router(routes, redirect_slashes=False, lifespan=self._lifespan)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on one request, or the start and the end of the server."""
        scope["app"] = self  # asks the router to raise what it would answer itself
        if scope["type"] != "http":
            await self.router(scope, receive, send)
            return
        started = time.monotonic()
        # Unpredictable and unique; random digits for each request would need a system call each time.
        request_id = f"{self._prefix}{next(self._numbers):06x}"
        state: dict[str, Any] = scope.setdefault("state", {})
        status = 0

        async def send_numbered(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode("ascii"))]
            await send(message)

        try:
            self._admit(scope)
            await self.router(scope, receive, send_numbered)
        except ClientDisconnect:
            # Proxies log 499 for this; nobody receives it. The protocol may already have set the reason.
            state.setdefault("refused", "client_gone")
            await Response(status_code=499)(scope, receive, send_numbered)
        except Exception as error:  # noqa: BLE001 - no error of ours may reach a user, nor end the connection unanswered
            refusal = _refusal_of(error, scope)
            if refusal is None:
                self._log.failure("request", error, request_id=request_id)
                refusal = Refusal(500, "failed", f"the server failed; its log says why under {request_id}")
            if status == 0:
                state["refused"] = refusal.code
                response = _respond(error_body(refusal.code, refusal.message), refusal.status, refusal.headers)
                await response(scope, receive, send_numbered)
        finally:
            self._note(scope, state, status, time.monotonic() - started, request_id)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: object) -> AsyncIterator[None]:
        self._registry.start()
        yield
        await self._registry.stop()

    def _admit(self, scope: Scope) -> None:
        path = scope["path"]
        guarded = self._keys is not None and _is_guarded(path)
        owner = self._keys.owner(Headers(scope=scope)) if self._keys is not None and guarded else None
        if self._limiter is not None and not path.startswith("/health/"):
            # Clients without a valid key must not use up the rate of a key.
            client = network_of((scope.get("client") or ("",))[0]) if owner is None else owner
            wait_s = self._limiter.wait_s(client)
            if wait_s:
                raise try_again("rate_limited", f"more than {self._limits.rate} came from this client", wait_s)
        if guarded and owner is None:
            message = "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'"
            raise Refusal(401, "no_key", message, {"WWW-Authenticate": "Bearer"})

    def _note(self, scope: Scope, state: dict[str, Any], status: int, seconds: float, request_id: str) -> None:
        # Unknown paths and methods are logged as "other", because they may contain a text.
        path, method = scope["path"], scope["method"]
        if path not in _PATHS:
            path = _MODEL_PATH if path.startswith("/v1/models/") else "other"
        method = method if method in _METHODS else "other"
        self.metrics.requests.labels(path, method, str(status)).inc()
        self.metrics.request_seconds.labels(path).observe(seconds)
        refused = state.get("refused")
        if refused is not None:
            self.metrics.refused.labels(refused).inc()
        self._log.write(
            "request",
            request_id=request_id,
            method=method,
            path=path,
            status=status,
            ms=round(1000 * seconds, 3),
            **state.get("counts", {}),
            **({} if refused is None else {"refused": refused}),
        )

    async def _classify(self, request: Request) -> Response:
        body = await self._bodies.read(request)
        try:
            results = await self._results(parse_request(body, self._limits), request)
        finally:
            self._bodies.release(len(body))
        return _respond(ClassifyResponse(results))

    async def _results(self, query: ClassifyRequest, request: Request) -> list[ModelResult]:
        texts, exit_after = query.texts, None if query.exit_after is None else int(query.exit_after)
        extras = Extras(query.exit_rule is not None or exit_after is not None, query.recurrences, exit_after, query.cut)
        # No await from here until all texts are submitted, so that a reload cannot replace these models.
        models = [self._models[name] for name in query.model_names([*self._models])]
        for model in models:
            if query.abstain_below is not None and not model.classifier.decision.exclusive:
                name = model.description.name
                message = f"'abstain_below' is not for the multi-label model '{name}', which gives any number of labels"
                raise Refusal(422, "invalid", message)
            if exit_after is not None:
                try:
                    model.classifier.check_rule(FixedExit(exit_after))
                except ConfigurationError as error:
                    raise Refusal(404, "unknown_exit", f"'exit_after', {model.description.name}: {error}") from None
        spans = _occluded_spans(texts, models, self._limits) if query.explain else []
        occluded_texts = [cut for text, cuts in zip(texts, spans, strict=False) for cut in occluded(text, cuts)]
        futures: list[Future[Computed]] = []
        try:
            futures.extend(model.batcher.submit(texts, extras) for model in models)
            if occluded_texts:
                occluded_extras = replace(extras, recurrences=False, cut=False, occluded=extras.exits)
                futures.extend(model.batcher.submit(occluded_texts, occluded_extras, admitted=True) for model in models)
            request.state.counts = {
                "models": [model.description.name for model in models],
                "texts": len(texts),
                "characters": sum(map(len, texts)),
            }
            computed = await _wait(futures, request, self._limits.timeout_s)
        finally:
            # Cancels the rest of a request that was refused, is too late, or whose client has left.
            for future in futures:
                future.cancel()
        results = [_result(*pair, query.abstain_below) for pair in zip(models, computed, strict=False)]
        for index, model in enumerate(models if query.explain else ()):
            probabilities = computed[index].answers.probabilities
            changed = computed[len(models) + index].answers.probabilities if occluded_texts else probabilities[:0]
            explanations = explanations_of(texts, spans, probabilities, changed, model.classifier.decision)
            for prediction, explanation in zip(results[index].predictions, explanations, strict=True):
                if explanation.exclusive:
                    prediction.words = explanation.labels[0].words
                    prediction.remainder = explanation.labels[0].remainder
                else:
                    prediction.words_by_label = explanation.labels
        return results

    def _list_models(self) -> Response:
        limits = self._limits
        descriptions = [model.description for model in self._models.values()]
        return _respond(ModelsResponse(descriptions, limits.max_body_bytes, limits.max_texts, limits.max_characters))

    async def _describe_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._models:
            raise unknown_model(name, [*self._models])
        return _respond(self._models[name].description)

    def _readiness(self) -> Response:
        ready = self._registry.ready
        loaded = [
            LoadedModel(name=name, content_hash=model.description.content_hash, loaded_at=model.description.loaded_at)
            for name, model in self._models.items()
        ]
        return _respond(Readiness("ok" if ready else "stopping", loaded), 200 if ready else 503)


def _endpoint(answer: Callable[[], Response]) -> Callable[[Request], Awaitable[Response]]:
    """A route whose answer does not depend on the request."""

    async def respond(_: Request) -> Response:
        return answer()

    return respond


def _respond(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    body = content if isinstance(content, bytes) else msgspec.json.encode(content)
    return Response(body, status, headers={**HEADERS, "Content-Type": _JSON, **(headers or {})})


def _refusal_of(error: Exception, scope: Scope) -> Refusal | None:
    """The refusal for an expected error; none for a failure of the server."""
    if not isinstance(error, HTTPException):
        return error if isinstance(error, Refusal) else None
    if error.status_code == 405:
        headers = dict(error.headers or {})
        message = f"the method {scope['method'][:20]} is not allowed here; use {headers['Allow']}"
        return Refusal(405, "wrong_method", message, headers)
    return Refusal(404, "not_found", "there is nothing under this address; /openapi.json lists the addresses")


def _occluded_spans(texts: Sequence[str], models: Sequence[ServedModel], limits: ServerLimits) -> list[list[Span]]:
    """Words or runs of words to leave out, each once and all of a text once more.

    These are at most as many texts as a request may have, within its body size.

    Parts of a text that none of the models reads have no spans.
    """
    characters = max(1, sum(map(len, texts)))
    most_spans = min(MOST_PARTS, limits.max_texts // len(texts) - 1, limits.max_body_bytes // characters - 1)
    ends = ([model.classifier.most_read(text) for model in models] for text in texts)
    return [
        spans_of(text, max(1, most_spans), None if None in text_ends else max(filter(None, text_ends)))
        for text, text_ends in zip(texts, ends, strict=True)
    ]


def _result(model: ServedModel, computed: Computed, abstain_below: float | None) -> ModelResult:
    decision = model.classifier.decision
    if abstain_below is not None:
        decision = decision.abstaining_below(abstain_below)
    return ModelResult(
        model.description.name,
        model.description.content_hash,
        predictions_of(computed.answers, decision),
        round(computed.waited_ms, 3),
        round(computed.computed_ms, 3),
        computed.batch_texts,
    )


async def _wait(futures: Sequence[Future[Computed]], request: Request, timeout_s: float) -> list[Computed]:
    """Waits for all futures, until the time limit or until the client leaves."""
    wrapped = [asyncio.wrap_future(future) for future in futures]
    results: asyncio.Future[Any] = wrapped[0] if len(wrapped) == 1 else asyncio.gather(*wrapped)
    disconnect = asyncio.ensure_future(request.receive())
    try:
        done, _ = await asyncio.wait((results, disconnect), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if results in done:
            return [await results] if len(wrapped) == 1 else await results
        if disconnect in done:
            raise ClientDisconnect
        raise TimeoutError
    except TimeoutError:
        message = f"the texts were not computed within {timeout_s:g} s; try again with fewer, or later"
        raise Refusal(503, "too_late", message, {"Retry-After": "1"}) from None
    except asyncio.CancelledError:
        raise stopping() from None
    finally:
        disconnect.cancel()
        # Retrieves exceptions of abandoned futures, which asyncio would otherwise report.
        results.add_done_callback(lambda given_up: given_up.cancelled() or given_up.exception())
        results.cancel()


def read_examples(path: Path) -> list[str]:
    """The first texts of a table with a column ``text``, or of a file with one text per line.

    Raises:
        ConfigurationError: If it cannot be read as such a file.
    """
    try:
        if format_of(path) in TABLE_FORMATS:
            lines = list(itertools.islice(itertools.chain.from_iterable(stream_texts(path)), _EXAMPLE_ROWS))
        else:
            with path.open(encoding="utf-8-sig") as file:
                lines = file.read(_EXAMPLES_READ).split("\n")
    except (DataError, OSError, UnicodeDecodeError) as error:
        cure = "give a .txt file with a text a line, or a table with a column 'text'"
        raise ConfigurationError(f"'{path}' has no examples ({error}); {cure}") from error
    texts = (line.strip()[:_EXAMPLE_CHARACTERS] for line in lines)
    return list(itertools.islice(filter(None, texts), _EXAMPLES))


def read_page(examples: Sequence[str]) -> tuple[bytes, dict[str, str]]:
    """Reads the page and creates its headers, whose policy only allows its own script and style, by their hashes."""
    folder = resources.files("recurra.deployment.serving")
    text = (folder / "page.html").read_text(encoding="utf-8")
    text = text.replace("/* table.js */", (folder / "table.js").read_text(encoding="utf-8"))
    # Escaped, so that no text can end the script.
    encoded = msgspec.json.encode(list(examples)).decode("utf-8").replace("<", r"\u003c")
    text = text.replace("EXAMPLES = []", f"EXAMPLES = {encoded}")

    def hashes(tag: str) -> str:
        blocks = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digests = (base64.b64encode(hashlib.sha256(block.encode("utf-8")).digest()) for block in blocks)
        return " ".join(f"'sha256-{digest.decode('ascii')}'" for digest in digests)

    policy = (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text.encode("utf-8"), {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": policy,
        "Cache-Control": "no-cache",
    }


def describe(limits: ServerLimits, names: Sequence[str], *, with_key: bool) -> dict[str, Any]:
    """Returns the OpenAPI document, with the limits and models of this server."""
    types = [result for _, result, _ in _OPERATIONS.values() if not isinstance(result, str)]
    _, schemas = msgspec.json.schema_components(
        [ClassifyRequest, ErrorResponse, *types], ref_template="#/components/schemas/{name}"
    )
    request = schemas["ClassifyRequest"]
    text, texts = request["properties"]["text"]["anyOf"]
    text["maxLength"] = texts["items"]["maxLength"] = limits.max_characters
    texts["maxItems"] = limits.max_texts
    name, several, _ = request["properties"]["model"]["anyOf"]
    name["enum"] = several["items"]["enum"] = [*names]
    several["uniqueItems"] = True
    schemas["ModelDescription"]["properties"]["kind"]["enum"] = ["run", *FORMATS]
    request["examples"] = [
        {"text": _TEXT},
        {"text": ["not bad at all", "far from good"], "model": names[0] if names else None},
        {"text": _TEXT, "model": [*names[:2]] or None},
        {"text": _TEXT, "exit_rule": "calibrated", "recurrences": True},
        {"text": "not bad at all", "explain": True},
    ]
    paths: dict[str, Any] = {}
    for path, (method, result, errors) in _OPERATIONS.items():
        responses = {200: _content("The answer.", result)}
        responses |= {status: _content(_REASONS[status], ErrorResponse) for status in (*errors, 500)}
        if path == "/health/ready":
            responses[503] = _content("A model takes no requests.", result)
        operation: dict[str, Any] = {"responses": {str(status): value for status, value in responses.items()}}
        if path == "/v1/classify":
            operation["requestBody"] = {"required": True, **_content("Texts and models.", ClassifyRequest)}
        if path == _MODEL_PATH:
            schema = {"type": "string", "enum": [*names]}
            operation["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": schema}]
        if with_key and _is_guarded(path):
            operation["security"] = [{"key": []}]
        paths[path] = {method: operation}
    components: dict[str, Any] = {"schemas": schemas}
    if with_key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    about = "Text classification by Transformers that reuse their layers."
    info = {"title": "Recurra", "version": __version__, "description": about}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": components}


def _content(description: str, kind: Any) -> dict[str, Any]:
    if isinstance(kind, str):
        return {"description": description, "content": {kind: {"schema": {"type": "string"}}}}
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {"description": description, "content": {_JSON: {"schema": schema}}}


def _is_guarded(path: str) -> bool:
    """Whether a path needs a key, if there are keys."""
    return path.startswith("/v1") or path == "/metrics"
