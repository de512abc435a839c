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

from recurra.deployment.serving.asked import Asked
from recurra.deployment.serving.asked import answer as ask_model
from recurra.deployment.serving.batching import Batcher, Computed
from recurra.deployment.serving.body import BodyReader, ClientGoneError
from recurra.deployment.serving.gate import Gate, answer
from recurra.deployment.serving.key import ApiKey
from recurra.deployment.serving.log import EventLog
from recurra.deployment.serving.metrics import CONTENT_TYPE, Metrics
from recurra.deployment.serving.occlusion import Occluded
from recurra.deployment.serving.openapi import CLASSIFY, GUARDED, METRICS, PAGE, describe
from recurra.deployment.serving.page import read_page
from recurra.deployment.serving.predictions import predictions_of
from recurra.deployment.serving.refusals import Refusal, encode, stopping
from recurra.deployment.serving.request import parse_request
from recurra.deployment.serving.schema import Health, ModelDescription, ModelsResponse, unknown_model
from recurra.deployment.serving.served import ServedModel
from recurra.deployment.serving.settings import Limits


def create_application(
    models: Sequence[ServedModel],
    limits: Limits | None = None,
    *,
    key: ApiKey | None = None,
    log: EventLog | None = None,
) -> Gate:
    """Puts the server together.

    Args:
        models: In the order that they are listed in; the first answers where none is named.
        limits: Bounds; none takes the defaults.
        key: What opens ``/v1`` and ``/metrics``; none leaves them open.
        log: Where events go; none takes standard error.
    """
    limits, log, metrics = limits or Limits(), log or EventLog(), Metrics()
    batchers = {model.name: _make_batcher(model, limits, metrics, log) for model in models}
    service = _Service(models, batchers, limits, metrics)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        for batcher in batchers.values():
            batcher.start()
        yield
        await asyncio.gather(*(asyncio.to_thread(batcher.stop) for batcher in batchers.values()))

    # No docs_url: its page would load scripts from elsewhere. No redirects: they would go where the header Host says.
    application = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False)
    service.add_routes(application)
    application.add_exception_handler(Refusal, _refuse)
    application.add_exception_handler(HTTPException, _refuse_route)
    application.add_exception_handler(ClientGoneError, _nobody_listens)
    describe(application, limits, [model.name for model in models], with_key=key is not None)
    # Four fifths of what FastAPI does for a request is for requests that it reads itself: this one we read.
    direct = {("POST", "/v1/classify"): service.answer_classify}
    return Gate(application, key=key, log=log, metrics=metrics, direct=direct)


def _make_batcher(model: ServedModel, limits: Limits, metrics: Metrics, log: EventLog) -> Batcher:
    def failed(error: Exception) -> None:
        log.failure("computation", error, model=model.name)

    computation = model.description.computation
    # The activations of an int8 batch share a scale: results would depend on what others happen to ask.
    alone = (
        computation is not None and computation.compute_precision == "int8" if limits.alone is None else limits.alone
    )
    batcher = Batcher(
        model.name,
        lambda texts, asked: ask_model(model.classifier, texts, asked),
        limits,
        alone=alone,
        workers=model.classifier.concurrency if alone else 1,
        observe=metrics.batches(model.name),
        failed=failed,
    )
    metrics.show_queue(model.name, lambda: batcher.waiting_texts)
    return batcher


class _Service:
    def __init__(
        self, models: Sequence[ServedModel], batchers: dict[str, Batcher], limits: Limits, metrics: Metrics
    ) -> None:
        self._models = {model.name: model for model in models}
        self._batchers = batchers
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
        add("/health/ready", self.ready, methods=["GET"], response_model=Health, responses={503: {"model": Health}})
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
            names = wanted.chosen(list(self._models))
            for key, given in (("abstain_below", wanted.abstain_below is not None), ("explain", wanted.explain)):
                if given:
                    self._check_one_label(names, key)
            occluded = Occluded.of(texts, self._limits) if wanted.explain else None
            changed = [] if occluded is None else occluded.changed()
            futures: list[Future[Computed]] = []
            try:
                futures.extend(self._batchers[name].submit(texts, wanted.asked) for name in names)
                if changed:
                    alone = Asked(exits=wanted.asked.exits)
                    futures.extend(self._batchers[name].submit(changed, alone) for name in names)
                request.state.seen = {"models": names, "texts": len(texts), "characters": sum(map(len, texts))}
                computed = await _wait(futures, request, self._limits.timeout_s)
            finally:
                # Nobody waits for what is left of a request that was refused, is too late, or whose client is gone.
                for future in futures:
                    future.cancel()
        results = [self._result(name, one, wanted.abstain_below) for name, one in zip(names, computed, strict=False)]
        if occluded is not None:
            for place, (name, result) in enumerate(zip(names, results, strict=True)):
                rest = computed[len(names) + place].answers if changed else None
                words = occluded.words(computed[place].answers, rest, self._models[name].classifier.decision)
                for prediction, effects in zip(result["predictions"], words, strict=True):
                    prediction["words"] = effects
        return Response(encode({"results": results}), media_type="application/json")

    def _check_one_label(self, names: Sequence[str], key: str) -> None:
        several = next((name for name in names if not self._models[name].classifier.decision.exclusive), None)
        if several is not None:
            raise Refusal(
                422,
                "invalid",
                f"'{key}' is not for the multi-label model '{several}', which gives any number of labels",
            )

    def _result(self, name: str, computed: Computed, abstain_below: float | None) -> dict[str, Any]:
        return {
            "model": name,
            "predictions": predictions_of(computed.answers, self._models[name].classifier.decision, abstain_below),
            "waited_ms": round(computed.waited_ms, 3),
            "computed_ms": round(computed.computed_ms, 3),
            "batch_texts": computed.batch_texts,
        }

    async def models(self) -> ModelsResponse:
        """Lists the models, and what a request may hold."""
        return ModelsResponse(
            models=[model.description for model in self._models.values()],
            max_body_bytes=self._limits.max_body_bytes,
            max_texts=self._limits.max_texts,
            max_characters=self._limits.max_characters,
        )

    async def model(self, name: str) -> ModelDescription:
        """Describes one model."""
        if name not in self._models:
            raise unknown_model(name, list(self._models))
        return self._models[name].description

    async def live(self) -> Health:
        """Answers while the process works."""
        return Health(status="ok")

    async def ready(self) -> Response:
        """Answers 200 while every model takes requests."""
        if all(batcher.ready for batcher in self._batchers.values()):
            return Response(encode({"status": "ok"}), media_type="application/json")
        return Response(encode({"status": "stopping"}), status_code=503, media_type="application/json")

    async def metrics(self) -> Response:
        """Counters for Prometheus."""
        return Response(self._metrics.page(), headers={"Content-Type": CONTENT_TYPE})

    async def page(self) -> Response:
        """A page to try the models in a browser."""
        return Response(self._page.content, headers=self._page.headers)


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
