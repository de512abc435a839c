"""The models that answer now, each with its queue; any of them is replaced while requests go on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from recurra.core.errors import RecurraError
from recurra.core.memory import limit_fragmentation, return_freed_memory
from recurra.deployment.serving.answers import answer
from recurra.deployment.serving.batching import Batcher
from recurra.deployment.serving.log import EventLog
from recurra.deployment.serving.metrics import Metrics
from recurra.deployment.serving.schema import ModelDescription
from recurra.deployment.serving.served import ServedModel
from recurra.deployment.serving.settings import ServerLimits


@dataclass(frozen=True, eq=False)
class Answering:
    """A model and the queue of its texts: who holds it asks this one, whatever is loaded meanwhile."""

    model: ServedModel
    batcher: Batcher

    @property
    def description(self) -> ModelDescription:
        """What is told of the model."""
        return self.model.description


class Models:
    """Knows which model answers to a name.

    All but the computation happens on the event loop, so that whoever takes models with `chosen` and asks them before
    it waits for anything never asks one that is being put away.

    Args:
        models: In the order that they are listed in; the first answers where none is named.
        limits: Of their queues.
        metrics: Shows queues, batches, which model is loaded, and reloads.
        log: Gets what became of a reload.
    """

    def __init__(self, models: Sequence[ServedModel], limits: ServerLimits, metrics: Metrics, log: EventLog) -> None:
        self._limits = limits
        self._metrics = metrics
        self._log = log
        self._answering = {model.name: self._queued(model) for model in models}
        self.names = list(self._answering)
        self._asked_to_reload = False
        self._reloading = False
        self._stopping = False

    def start(self) -> None:
        """Starts the queues."""
        for one in self._answering.values():
            one.batcher.start()

    async def stop(self) -> None:
        """Finishes what was accepted and ends the queues."""
        self._stopping = True
        await asyncio.gather(*(asyncio.to_thread(one.batcher.stop) for one in self._answering.values()))

    @property
    def ready(self) -> bool:
        """Whether all take requests."""
        return all(one.batcher.ready for one in self._answering.values())

    def chosen(self, names: Sequence[str]) -> list[Answering]:
        """Those that answer to some names now, in order."""
        return [self._answering[name] for name in names]

    def descriptions(self) -> list[ModelDescription]:
        """What is told of all."""
        return [one.description for one in self._answering.values()]

    async def reload(self) -> None:
        """Takes up what lies in the folders now, one model after the other.

        A model that is not whole does not take over, and the old one goes on. Who asks for a reload during another has
        it once that is done. At most one model more than there are names lies in memory, beside those that requests
        in flight hold.
        """
        self._asked_to_reload = True
        if self._reloading:
            return
        self._reloading = True
        try:
            while self._asked_to_reload and not self._stopping:
                self._asked_to_reload = False
                for name in self.names:
                    if await self._reload(name):
                        limit_fragmentation()
                        await asyncio.to_thread(return_freed_memory)
        finally:
            self._reloading = False

    async def _reload(self, name: str) -> bool:
        """Whether anything was read."""
        old = self._answering[name]
        known = old.description.content_hash
        outcome = "failed"
        try:
            new = None if old.model.source is None else await asyncio.to_thread(old.model.source.open, known)
            outcome = "unchanged" if new is None else "taken_up"
        except RecurraError as error:
            self._log.write("reload", level="error", model=name, message=str(error), content_hash=known)
        except Exception as error:  # noqa: BLE001 - whatever lies in a folder, the old model goes on
            self._log.failure("reload", error, model=name, content_hash=known)
        else:
            if self._stopping:
                return False
            if new is None:
                self._log.write("reload", model=name, message="unchanged", content_hash=known)
            else:
                await self._replace(old, new)
        self._metrics.reloads.labels(name, outcome).inc()
        return outcome != "unchanged"

    async def _replace(self, old: Answering, model: ServedModel) -> None:
        new = self._queued(model)
        new.batcher.start()
        self._answering[model.name] = new
        labels = {} if new.description.labels == old.description.labels else {"labels": new.description.labels}
        self._log.write(
            "reload",
            level="warning" if labels else "info",
            model=model.name,
            message="another model with other labels" if labels else "another model",
            content_hash=new.description.content_hash,
            before=old.description.content_hash,
            **labels,
            **({"note": model.note} if model.note else {}),
        )
        await asyncio.to_thread(old.batcher.stop)

    def _queued(self, model: ServedModel) -> Answering:
        limits, name = self._limits, model.name

        def failed(error: Exception) -> None:
            self._log.failure("computation", error, model=name)

        batcher = Batcher(
            name,
            lambda texts, asked: answer(model.classifier, texts, asked),
            limits,
            workers=model.classifier.concurrency,
            observe=self._metrics.batches(name),
            failed=failed,
        )
        self._metrics.show_model(name, model.description, lambda: batcher.waiting_texts)
        return Answering(model, batcher)
