"""Counters for Prometheus; none has a label that a user can choose."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector, generate_latest

from recurra.deployment.serving.schema import ModelDescription

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        registry = self.registry
        self.requests = Counter(
            "recurra_requests", "Answered requests.", ["path", "method", "status"], registry=registry
        )
        self.request_seconds = Histogram(
            "recurra_request_seconds", "Time from head to answer.", ["path"], buckets=_SECONDS, registry=registry
        )
        self.refused = Counter("recurra_refused", "Requests turned away, by reason.", ["code"], registry=registry)
        self.texts = Counter("recurra_texts", "Texts computed.", ["model"], registry=registry)
        self.batch_texts = Histogram(
            "recurra_batch_texts", "Texts of a batch.", ["model"], buckets=_TEXTS, registry=registry
        )
        self.batch_seconds = Histogram(
            "recurra_batch_seconds", "Time to compute a batch.", ["model"], buckets=_SECONDS, registry=registry
        )
        self.reloads = Counter("recurra_reloads", "Reloads, by outcome.", ["model", "outcome"], registry=registry)
        self._waiting = Gauge("recurra_waiting_texts", "Texts in the queue.", ["model"], registry=registry)
        self._loaded = Gauge(
            "recurra_model_loaded_timestamp_seconds", "When a model was loaded.", ["model"], registry=registry
        )
        self._which = Info("recurra_model", "Which model answers.", ["model"], registry=registry)

    def show_model(self, model: str, description: ModelDescription, waiting: Callable[[], int]) -> None:
        """Shows which model answers to a name, and the texts that wait for it, asked for when the page is."""
        self._waiting.labels(model).set_function(waiting)
        self._loaded.labels(model).set(description.loaded_at.timestamp())
        self._which.labels(model).info({"content_hash": description.content_hash})

    def batches(self, model: str) -> Callable[[int, float], None]:
        """Returns what is to be called with the texts and seconds of each batch of a model."""
        texts, sizes = self.texts.labels(model), self.batch_texts.labels(model)
        times = self.batch_seconds.labels(model)

        def observe(number: int, seconds: float) -> None:
            texts.inc(number)
            sizes.observe(number)
            times.observe(seconds)

        return observe

    def page(self) -> bytes:
        """Everything, as Prometheus reads it."""
        return generate_latest(self.registry)
