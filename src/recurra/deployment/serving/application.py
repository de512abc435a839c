"""The routes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from recurra.deployment.serving.answers import Asked, Occluded, predictions_of
from recurra.deployment.serving.batching import Computed
from recurra.deployment.serving.clients import ApiKeys
from recurra.deployment.serving.gate import Gate, answer
from recurra.deployment.serving.headers import read_page
from recurra.deployment.serving.log import EventLog
from recurra.deployment.serving.metrics import CONTENT_TYPE, Metrics
from recurra.deployment.serving.models import Answering, Models
from recurra.deployment.serving.openapi import CLASSIFY, GUARDED, METRICS, PAGE, READY, describe
from recurra.deployment.serving.refusals import Refusal, encode, stopping
from recurra.deployment.serving.request import BodyReader, ClientGoneError, parse_request
from recurra.deployment.serving.schema import (
    Health,
    ModelDescription,
    ModelsResponse,
    Readiness,
    unknown_model,
)
from recurra.deployment.serving.served import ServedModel
from recurra.deployment.serving.settings import ServerLimits


def create_application(
    models: Sequence[ServedModel],
    limits: ServerLimits | None = None,
    *,
    keys: ApiKeys | None = None,
    log: EventLog | None = None,
) -> Gate:
    """Puts the server together.

    Args:
        models: In the order that they are listed in; the first answers where none is named.
        limits: Bounds; none takes the defaults.
        keys: What opens ``/v1`` and ``/metrics``; none leaves them open.
        log: Where events go; none takes standard error.
    """
    limits, log, metrics = limits or ServerLimits(), log or EventLog(), Metrics()
    answering = Models(models, limits, metrics, log)
    service = _Service(answering, limits, metrics)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        answering.start()
        yield
        await answering.stop()

    # No docs_url: its page would load scripts from elsewhere. No redirects: they would go where the header Host says.
    application = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False)
    service.add_routes(application)
    application.add_exception_handler(Refusal, _refuse)
    application.add_exception_handler(HTTPException, _refuse_route)
    application.add_exception_handler(ClientGoneError, _nobody_listens)
    describe(application, limits, answering.names, with_key=keys is not None)
    # Four fifths of what FastAPI does for a request is for requests that it reads itself: this one we read.
    direct = {("POST", "/v1/classify"): service.answer_classify}
    return Gate(
        application,
        keys=keys,
        rate=limits.rate,
        log=log,
        metrics=metrics,
        reload=answering.reload,
        direct=direct,
    )


class _Service:
    def __init__(self, models: Models, limits: ServerLimits, metrics: Metrics) -> None:
        self._models = models
        self._limits = limits
        self._metrics = metrics
        self._bodies = BodyReader(limits)
        self._page = read_page()

    def add_routes(self, application: FastAPI) -> None:
        add: Callable[..., None] = application.add_api_route
        add("/v1/classify", self.classify, methods=["POST"], **CLASSIFY)
        add("/v1/models", self.models, methods=["GET"], response_model=ModelsResponse, **GUARDED)
        add("/v1/models/{name}", self.model, methods=["GET"], response_model=ModelDescription, **GUARDED)
        add("/health/live", self.live, methods=["GET"], response_model=Health)
        add("/health/ready", self.ready, methods=["GET"], response_model=Readiness, **READY)
        add("/metrics", self.metrics, methods=["GET"], response_class=Response, **METRICS)
        add("/", self.page, methods=["GET"], response_class=Response, **PAGE)

    async def answer_classify(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`classify` as an application of its own, with the refusals of all routes."""
        request = Request(scope, receive, send)
        try:
            response = await self.classify(request)
        except Refusal as error:
            response = await _refuse(request, error)
        except ClientGoneError as error:
            response = await _nobody_listens(request, error)
        await response(scope, receive, send)

    async def classify(self, request: Request) -> Response:
        """Classifies one text or many by one model or several."""
        async with self._bodies.read(request) as body:
            wanted = parse_request(body, self._limits)
            texts = wanted.texts
            # From here on to the last text that is submitted nothing is waited for: these models answer, or none.
            models = self._models.chosen(wanted.chosen(self._models.names))
            if wanted.abstain_below is not None:
                _check_one_label(models)
            occluded = Occluded.of(texts, self._limits) if wanted.explain else None
            changed = [] if occluded is None else occluded.changed()
            futures: list[Future[Computed]] = []
            try:
                futures.extend(one.batcher.submit(texts, wanted.asked) for one in models)
                if changed:
                    alone = Asked(exits=wanted.asked.exits)
                    futures.extend(one.batcher.submit(changed, alone) for one in models)
                names = [one.model.name for one in models]
                request.state.seen = {"models": names, "texts": len(texts), "characters": sum(map(len, texts))}
                computed = await _wait(futures, request, self._limits.timeout_s)
            finally:
                # Nobody waits for what is left of a request that was refused, is too late, or whose client is gone.
                for future in futures:
                    future.cancel()
        results = [_result(one, said, wanted.abstain_below) for one, said in zip(models, computed, strict=False)]
        if occluded is not None:
            for place, (one, result) in enumerate(zip(models, results, strict=True)):
                rest = computed[len(models) + place].answers if changed else None
                told = occluded.explanations(computed[place].answers, rest, one.model.classifier.decision)
                for prediction, words in zip(result["predictions"], told, strict=True):
                    prediction[words.key] = words.plain()
        return Response(encode({"results": results}), media_type="application/json")

    async def models(self) -> ModelsResponse:
        """Lists the models, and what a request may hold."""
        return ModelsResponse(
            models=self._models.descriptions(),
            max_body_bytes=self._limits.max_body_bytes,
            max_texts=self._limits.max_texts,
            max_characters=self._limits.max_characters,
        )

    async def model(self, name: str) -> ModelDescription:
        """Describes one model."""
        if name not in self._models.names:
            raise unknown_model(name, self._models.names)
        return self._models.chosen([name])[0].description

    async def live(self) -> Health:
        """Answers while the process works."""
        return Health(status="ok")

    async def ready(self) -> Response:
        """Answers 200 while every model takes requests, and says which they are."""
        ready = self._models.ready
        said = Readiness(status="ok" if ready else "stopping", models=[*self._models.descriptions()])
        return Response(said.model_dump_json(), 200 if ready else 503, media_type="application/json")

    async def metrics(self) -> Response:
        """Counters for Prometheus."""
        return Response(self._metrics.page(), headers={"Content-Type": CONTENT_TYPE})

    async def page(self) -> Response:
        """A page to try the models in a browser."""
        return Response(self._page.content, headers=self._page.headers)


def _check_one_label(models: Sequence[Answering]) -> None:
    several = next((one.model.name for one in models if not one.model.classifier.decision.exclusive), None)
    if several is not None:
        message = f"'abstain_below' is not for the multi-label model '{several}', which gives any number of labels"
        raise Refusal(422, "invalid", message)


def _result(one: Answering, computed: Computed, abstain_below: float | None) -> dict[str, Any]:
    decision = one.model.classifier.decision
    if abstain_below is not None:
        decision = decision.abstaining_below(abstain_below)
    return {
        "model": one.model.name,
        "content_hash": one.description.content_hash,
        "predictions": predictions_of(computed.answers, decision),
        "waited_ms": round(computed.waited_ms, 3),
        "computed_ms": round(computed.computed_ms, 3),
        "batch_texts": computed.batch_texts,
    }


async def _wait(futures: Sequence[Future[Computed]], request: Request, timeout_s: float) -> list[Computed]:
    """Waits for all, but no longer than is allowed, nor for a client that has left."""
    waiting = [asyncio.wrap_future(future) for future in futures]
    results: asyncio.Future[Any] = waiting[0] if len(waiting) == 1 else asyncio.gather(*waiting)
    gone = asyncio.ensure_future(request.receive())
    try:
        done, _ = await asyncio.wait((results, gone), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if results in done:
            return [await results] if len(waiting) == 1 else await results
        if gone in done:
            raise ClientGoneError
        raise _late(timeout_s)
    except TimeoutError:
        raise _late(timeout_s) from None
    except asyncio.CancelledError:
        raise stopping() from None
    finally:
        gone.cancel()
        # Of several that are given up, asyncio wants to be asked what became of them.
        results.add_done_callback(lambda given_up: given_up.cancelled() or given_up.exception())
        results.cancel()


def _late(timeout_s: float) -> Refusal:
    message = f"the texts were not computed within {timeout_s:g} s; try again with fewer, or later"
    return Refusal(503, "too_late", message, retry_after_s=1)


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    request.state.refused = error.code
    return answer(error)


async def _refuse_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        message = f"the method {request.method[:20]} is not allowed here; use {allowed}"
        refusal = Refusal(405, "wrong_method", message, headers=dict(error.headers or {}))
    else:
        message = "there is nothing under this address; /openapi.json lists what there is"
        refusal = Refusal(error.status_code, "not_found", message)
    request.state.refused = refusal.code
    return answer(refusal)


async def _nobody_listens(request: Request, _: Exception) -> Response:
    # 499 is what proxies log for it; nobody receives it. The protocol may have said why it listens no more.
    if not hasattr(request.state, "refused"):
        request.state.refused = "client_gone"
    return Response(status_code=499)
