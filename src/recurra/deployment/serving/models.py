"""The models of a server: opened, named, described, warmed up, replaced while requests go on.

Each computes texts of many requests together: threads of its own, a bounded queue, a bound on waiting.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from recurra.core.best_run import find_run, no_run
from recurra.core.configuration import content_hash
from recurra.core.environment import limit_fragmentation, return_freed_memory
from recurra.core.errors import CheckpointError, ConfigurationError, RecurraError
from recurra.core.record import RECORD_NAME, read_record
from recurra.core.sealed import MODEL_NAME, hash_model_files
from recurra.deployment.classifier import Classifier
from recurra.deployment.engines.computation import Classified
from recurra.deployment.export.manifest import is_export, needs_torch, read_manifest, read_source_record
from recurra.deployment.serving.bodies import Exits, Extras, ModelDescription, Quality, answer
from recurra.deployment.serving.limits import Refusal, ServerLimits, stopping, try_again
from recurra.deployment.serving.observation import EventLog, Metrics

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
_FIRST_TEXTS = ("a first text", "another, a little longer than the first, so that there is something to pad")
# Whoever replaces a folder so often while it is read is asked to stop.
_MOST_READINGS = 3


@dataclass(eq=False)
class ServedModel:
    """A classifier, where it comes from and its successor may, and which run of a comparison was taken.

    A server gives it the queue of its texts: who holds the model asks this one, whatever is loaded meanwhile.
    """

    classifier: Classifier
    description: ModelDescription
    source: ModelSource | None = None
    note: str = ""
    batcher: Batcher = field(init=False)


@dataclass(frozen=True)
class ModelSource:
    """A run, export or comparison that a model is read from, now and again: what lies there may be replaced."""

    name: str
    folder: Path
    threads: int = 0

    def open(self, known: str = "") -> ServedModel | None:
        """Reads what lies there and computes a first text with it, so that no user waits for what is made on first use.

        What is replaced while it is read is read again: the answer is one model, never parts of two.

        Nothing is returned if the content whose hash is ``known`` is still there.
        """
        for _ in range(_MOST_READINGS):
            before = self._content_hash()
            if before == known:
                return None
            try:
                model = self._read(before)
            except RecurraError:
                if self._content_hash() == before:
                    raise
            else:
                if self._content_hash() == before:
                    return model
        raise CheckpointError(f"'{self.folder}' was replaced {_MOST_READINGS} times while it was read; try again")

    def _content_hash(self) -> str:
        return hash_model(find_run(self.folder).folder)

    def _read(self, content_hash: str) -> ServedModel:
        run = find_run(self.folder)
        if needs_torch(run.folder):
            from recurra.models.quiet import quieten_libraries

            quieten_libraries()
        classifier = Classifier.open(run.folder, threads=self.threads)
        classifier.predict_proba(_FIRST_TEXTS)
        if classifier.calibrated_rule is not None:
            classifier.classify(_FIRST_TEXTS, rule=classifier.calibrated_rule)
        return ServedModel(classifier, _describe(self.name, run.folder, classifier, content_hash), self, run.note)


def name_folders(arguments: Sequence[str]) -> dict[str, Path]:
    """Gives each folder of a command line (``FOLDER`` or ``NAME=FOLDER``) its name."""
    folders: dict[str, Path] = {}
    for argument in arguments:
        before, equals, after = argument.partition("=")
        named = bool(equals) and _NAME.match(before) is not None and not Path(argument).exists()
        folder = Path(after if named else argument)
        name = before if named else folder.resolve().name
        if not _NAME.match(name):
            raise ConfigurationError(
                f"'{name}' is no name for a model: letters, digits, '.', '_' and '-' are allowed; give NAME={folder}"
            )
        if name in folders:
            raise ConfigurationError(
                f"two models are called '{name}' ('{folders[name]}' and '{folder}'); give one another name: "
                f"{name}-2={folder}"
            )
        folders[name] = folder
    if not folders:
        raise ConfigurationError("no model to serve; give a run or an export")
    return folders


def open_models(folders: dict[str, Path], *, threads: int = 0) -> list[ServedModel]:
    """Opens models by name; see `ModelSource.open`."""
    opened = [ModelSource(name, folder, threads).open() for name, folder in folders.items()]
    return [model for model in opened if model is not None]


def hash_model(folder: Path) -> str:
    """The hash of all that makes a run or an export answer as it does, as its own seals have it."""
    if is_export(folder):
        return read_manifest(folder).content_hash
    if not (folder / RECORD_NAME).exists() and not (folder / MODEL_NAME).is_dir():
        raise no_run(folder)
    record = read_record(folder)
    return content_hash({"record": record.hashed(), "files": hash_model_files(folder)}, length=64)


def _describe(name: str, folder: Path, classifier: Classifier, hashed: str) -> ModelDescription:
    record = read_source_record(folder)
    if is_export(folder):
        manifest = read_manifest(folder)
        kind, size = manifest.format, manifest.size_bytes
    else:
        kind, size = "run", sum(path.stat().st_size for path in (folder / "model").rglob("*") if path.is_file())
    split = record.data.reported_splits[-1]
    metrics = record.metrics[split]
    return describe_model(
        name,
        classifier,
        content_hash=hashed,
        kind=kind,
        size_bytes=size,
        run_id=record.run_id,
        # What is recorded of the data is not how a linear model, or one with words beside it, reads a text.
        max_length_tokens=classifier.engine.max_length,
        windows=classifier.engine.windows,
        quality=Quality(split, metrics.rows, metrics.figures()),
    )


def describe_model(name: str, classifier: Classifier, **known: Any) -> ModelDescription:
    """Describes a classifier, given the fields of `ModelDescription` that it does not know itself."""
    depth, record, rule = classifier.engine.depth, classifier.calibration, classifier.calibrated_rule
    exits = None
    if depth is not None and classifier.may_leave:
        exits = Exits(list(depth.exits))
        if rule is not None:
            bound = rule.as_bound(depth.exits[0])
            exits.rule, exits.threshold = rule.describe(), None if bound is None else bound.value
            if record is not None:
                exits.agreement_asked, exits.agreement, exits.rows = record.asked, record.agreement, record.rows
                exits.confidence = record.confidence
    return ModelDescription(
        name=name,
        loaded_at=datetime.now(UTC),
        labels=classifier.classes_.tolist(),
        computation=dict(classifier.computation),
        num_recurrences=None if depth is None else depth.num_recurrences,
        own_heads=depth is not None and depth.own_heads,
        exits=exits,
        **known,
    )


# Weight of the last batch in the moving average of the time that a text takes.
_NEWEST = 0.2


@dataclass(frozen=True, eq=False)
class Computed:
    """The answers to one request's texts, and how they came about; see `ModelResult`."""

    answers: Classified
    waited_ms: float
    computed_ms: float
    batch_texts: int


@dataclass(eq=False)
class _Job:
    texts: Sequence[str]
    extras: Extras
    arrived: float
    deadline: float
    future: Future[Computed] = field(default_factory=Future)


class Batcher:
    """Asks a model about texts in threads of its own.

    A thread that is free takes what waits, so that batches grow with the load; a request is never cut.
    Requests for other extras are another batch; none overtakes an earlier one. A request that was cancelled or is too
    late is left out. If a batch fails, its requests are computed one by one, so that a text only ever spoils its own
    request. ``observe`` is called with each successful batch's texts, seconds and recurrences taken.
    """

    def __init__(
        self,
        name: str,
        ask: Callable[[list[str], Extras], Classified],
        limits: ServerLimits,
        *,
        workers: int = 1,
        observe: Callable[[int, float, Sequence[int] | None], None] | None = None,
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        self._ask = ask
        self._limits = limits
        self._observe = observe
        self._failed = failed
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._waiting_texts = 0
        self._computing_texts = 0
        self._seconds_a_text = 0.0
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._work, name=f"batches-{name}-{number}", daemon=True)
            for number in range(workers)
        ]

    def start(self) -> None:
        """Starts the threads, all of them or none."""
        try:
            for thread in self._threads:
                thread.start()
        except RuntimeError:
            self.stop()
            raise

    def stop(self) -> None:
        """Takes no more requests, finishes those that were accepted, and ends the threads."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    @property
    def ready(self) -> bool:
        """Whether it takes requests."""
        return all(thread.is_alive() for thread in self._threads) and not self._stopping

    @property
    def waiting_texts(self) -> int:
        """Texts that are accepted and not yet computed on."""
        return self._waiting_texts

    def submit(self, texts: Sequence[str], extras: Extras | None = None, *, admitted: bool = False) -> Future[Computed]:
        """Accepts one text or more, or turns them away at once: 429 if too many wait, 503 if it is being stopped.

        More texts of a request that was ``admitted`` are never too many: what waits may be its own.
        """
        now = time.monotonic()
        job = _Job(texts, extras or Extras(), now, now + self._limits.timeout_s)
        with self._changed:
            if self._stopping:
                raise stopping()
            ahead = self._waiting_texts + self._computing_texts
            expected_s = ahead * self._seconds_a_text / len(self._threads)
            full = self._waiting_texts + len(texts) > self._limits.max_waiting_texts
            # An empty queue takes any request: otherwise one slow batch could shut the door for good.
            if not admitted and self._jobs and (full or expected_s > self._limits.max_wait_s):
                raise try_again("overloaded", "too many texts are waiting", expected_s)
            self._jobs.append(job)
            self._waiting_texts += len(texts)
            self._changed.notify()
        return job.future

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._jobs and not self._stopping:
                    self._changed.wait()
                if not self._jobs:
                    return
                jobs = self._take()
            if jobs:
                self._compute(jobs)
                with self._changed:
                    self._computing_texts -= sum(len(job.texts) for job in jobs)

    def _take(self) -> list[_Job]:
        """A batch of what waits; empty if all were given up."""
        taken: list[_Job] = []
        texts = 0
        while self._jobs:
            job = self._jobs[0]
            fits = texts + len(job.texts) <= self._limits.batch_texts and not self._limits.alone
            if taken and not (fits and job.extras == taken[0].extras):
                break
            self._jobs.popleft()
            self._waiting_texts -= len(job.texts)
            if not job.future.set_running_or_notify_cancel():
                continue
            if time.monotonic() > job.deadline:
                job.future.set_exception(TimeoutError())
                continue
            taken.append(job)
            texts += len(job.texts)
        self._computing_texts += texts
        return taken

    def _compute(self, jobs: Sequence[_Job]) -> None:
        texts = [text for job in jobs for text in job.texts]
        started = time.monotonic()
        try:
            answers = self._ask(texts, jobs[0].extras)
        except Exception as error:  # noqa: BLE001 - the thread must outlive any text
            if len(jobs) > 1:
                for job in jobs:
                    self._compute([job])
                return
            if self._failed is not None:
                self._failed(error)
            message = "these texts could not be computed; the server's log says why"
            jobs[0].future.set_exception(Refusal(500, "failed", message))
            return
        seconds = time.monotonic() - started
        self._learn(seconds / len(texts))
        if self._observe is not None:
            # Where a request says itself where texts stop, nothing can be read of them.
            after = None if jobs[0].extras.exit_after else answers.exited_after
            self._observe(len(texts), seconds, None if after is None else after.tolist())
        start = 0
        for job in jobs:
            end = start + len(job.texts)
            waited_ms = 1000 * (started - job.arrived)
            job.future.set_result(Computed(_part(answers, start, end), waited_ms, 1000 * seconds, len(texts)))
            start = end

    def _learn(self, seconds: float) -> None:
        old = self._seconds_a_text
        self._seconds_a_text = seconds if old == 0 else (1 - _NEWEST) * old + _NEWEST * seconds


def _part(answers: Classified, start: int, end: int) -> Classified:
    exited_after, trace = answers.exited_after, answers.trace
    return Classified(
        answers.probabilities[start:end],
        None if exited_after is None else exited_after[start:end],
        None if trace is None else trace.part(start, end),
        None if answers.cut is None else answers.cut[start:end],
    )


class Models:
    """Knows which model answers to a name.

    All but the computation happens on the event loop, so that whoever takes models with `chosen` and asks them before
    it waits for anything never asks one that is being put away. The first answers where none is named.
    """

    def __init__(self, models: Sequence[ServedModel], limits: ServerLimits, metrics: Metrics, log: EventLog) -> None:
        self._limits = limits
        self._metrics = metrics
        self._log = log
        self._models: dict[str, ServedModel] = {}
        for model in models:
            self._queue(model)
            self._name(model)
        self.names = list(self._models)
        self._asked_to_reload = False
        self._reloading = False
        self._stopping = False

    def start(self) -> None:
        """Starts the queues."""
        for model in self._models.values():
            model.batcher.start()

    async def stop(self) -> None:
        """Finishes what was accepted and ends the queues."""
        self._stopping = True
        await asyncio.gather(*(asyncio.to_thread(model.batcher.stop) for model in self._models.values()))

    @property
    def ready(self) -> bool:
        """Whether all take requests."""
        return all(model.batcher.ready for model in self._models.values())

    def chosen(self, names: Sequence[str]) -> list[ServedModel]:
        """Those that answer to some names now, in order."""
        return [self._models[name] for name in names]

    def descriptions(self) -> list[ModelDescription]:
        """Those of all models."""
        return [model.description for model in self._models.values()]

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
        old = self._models[name]
        known = old.description.content_hash
        outcome = "failed"
        try:
            new = None if old.source is None else await asyncio.to_thread(old.source.open, known)
            if self._stopping:
                return False
            if new is not None:
                await self._replace(old, new)
            outcome = "unchanged" if new is None else "taken_up"
        except RecurraError as error:
            self._log.write("reload", level="error", model=name, message=str(error), content_hash=known)
        except Exception as error:  # noqa: BLE001 - whatever lies in a folder, the old model goes on
            self._log.failure("reload", error, model=name, content_hash=known)
        else:
            if new is None:
                self._log.write("reload", model=name, message="unchanged", content_hash=known)
        self._metrics.reloads.labels(name, outcome).inc()
        return outcome != "unchanged"

    async def _replace(self, old: ServedModel, new: ServedModel) -> None:
        self._queue(new)
        new.batcher.start()
        self._name(new)
        name, labels = new.description.name, new.description.labels
        other_labels = labels != old.description.labels
        self._log.write(
            "reload",
            level="warning" if other_labels else "info",
            model=name,
            message="another model with other labels" if other_labels else "another model",
            content_hash=new.description.content_hash,
            before=old.description.content_hash,
            **({"labels": labels} if other_labels else {}),
            **({"note": new.note} if new.note else {}),
        )
        await asyncio.to_thread(old.batcher.stop)

    def _queue(self, model: ServedModel) -> None:
        """Gives a model a queue of its own."""
        name, classifier = model.description.name, model.classifier
        calibrated = None if classifier.calibration is None else classifier.calibration.taken
        model.batcher = Batcher(
            name,
            lambda texts, extras: answer(classifier, texts, extras),
            self._limits,
            workers=classifier.engine.concurrency,
            observe=self._metrics.batches(name, calibrated),
            failed=lambda error: self._log.failure("computation", error, model=name),
        )

    def _name(self, model: ServedModel) -> None:
        """Lets a model answer to its name."""
        described, batcher = model.description, model.batcher
        self._metrics.show_model(
            described.name, described.content_hash, described.loaded_at, lambda: batcher.waiting_texts
        )
        self._models[described.name] = model
