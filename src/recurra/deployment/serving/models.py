"""The models of a server: opening, naming, describing, warming up, and replacing them during requests.

Each model computes texts of many requests together, with its own threads, a bounded queue and a bounded waiting time.
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

from recurra.core.best_run import find_run
from recurra.core.configuration import content_hash
from recurra.core.environment import limit_fragmentation, return_freed_memory
from recurra.core.errors import CheckpointError, ConfigurationError, RecurraError
from recurra.core.sealed import MODEL_NAME, hash_model_files
from recurra.deployment.classifier import Classifier
from recurra.deployment.engines.computation import Classified
from recurra.deployment.export.manifest import is_export, needs_torch, read_manifest, read_run, read_source_record
from recurra.deployment.serving.bodies import Exits, Extras, ModelDescription, Quality, answer
from recurra.deployment.serving.limits import Refusal, ServerLimits, stopping, try_again
from recurra.deployment.serving.observation import EventLog, Metrics

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
_FIRST_TEXTS = ("a first text", "another, a little longer than the first, so that there is something to pad")
# A folder that is replaced this often while it is read is an error.
_MOST_READINGS = 3


@dataclass(eq=False)
class ServedModel:
    """A classifier, the source that it and its successors are read from, and a note on the chosen run of a comparison.

    A server sets ``batcher``, its queue: a holder of this object uses this model, even if another is loaded meanwhile.
    """

    classifier: Classifier
    description: ModelDescription
    source: ModelSource | None = None
    note: str = ""
    batcher: Batcher = field(init=False)


@dataclass(frozen=True)
class ModelSource:
    """A run, export or comparison that a model is read from, repeatedly, because it may be replaced."""

    name: str
    folder: Path
    threads: int = 0

    def open(self, known: str = "") -> ServedModel | None:
        """Reads the model and computes a first text, so that no user waits for what is set up on first use.

        A model that is replaced while it is read is read again, so that the result never mixes two models.

        Returns none if the folder still has the content with the hash ``known``.
        """
        for _ in range(_MOST_READINGS):
            hash_before = self._content_hash()
            if hash_before == known:
                return None
            try:
                model = self._read(hash_before)
            except RecurraError:
                if self._content_hash() == hash_before:
                    raise
            else:
                if self._content_hash() == hash_before:
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
        given_name, separator, given_folder = argument.partition("=")
        named = bool(separator) and _NAME.match(given_name) is not None and not Path(argument).exists()
        folder = Path(given_folder if named else argument)
        name = given_name if named else folder.resolve().name
        if not _NAME.match(name):
            raise ConfigurationError(
                f"'{name}' cannot name a model: letters, digits, '.', '_' and '-' are allowed; give NAME={folder}"
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
    """The hash of everything that determines a run's or an export's answers, from its sealed hashes."""
    if is_export(folder):
        return read_manifest(folder).content_hash
    return content_hash({"record": read_run(folder).hashed(), "files": hash_model_files(folder)}, length=64)


def _describe(name: str, folder: Path, classifier: Classifier, model_hash: str) -> ModelDescription:
    record = read_source_record(folder)
    if is_export(folder):
        manifest = read_manifest(folder)
        kind, size = manifest.format, manifest.size_bytes
    else:
        kind, size = "run", sum(path.stat().st_size for path in (folder / MODEL_NAME).rglob("*") if path.is_file())
    split, judged_before = record.data.headline_split, record.data.judged_before
    metrics = record.metrics[split]
    return describe_model(
        name,
        classifier,
        content_hash=model_hash,
        kind=kind,
        size_bytes=size,
        run_id=record.run_id,
        # From the engine: the recorded values do not apply to linear models, or models joined with one.
        max_length_tokens=classifier.engine.max_length,
        windows=classifier.engine.windows,
        # The rows left to report of such a model chose its epoch and temperature.
        quality=None if judged_before else Quality(split, metrics.rows, metrics.figures()),
        judged_before=judged_before,
    )


def describe_model(name: str, classifier: Classifier, **known: Any) -> ModelDescription:
    """Describes a classifier; ``known`` are the fields of `ModelDescription` that it does not have."""
    depth, calibration, rule = classifier.engine.depth, classifier.calibration, classifier.calibrated_rule
    exits = None
    if depth is not None and classifier.may_leave:
        exits = Exits(list(depth.exits))
        if calibration is not None and rule is not None:
            bound = rule.as_bound(depth.exits[0])
            exits.rule, exits.threshold = rule.describe(), None if bound is None else bound.value
            exits.agreement_asked, exits.agreement = calibration.asked, calibration.agreement
            exits.rows, exits.confidence = calibration.rows, calibration.confidence
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
    """The predictions for one request's texts, with times and batch size; see `ModelResult`."""

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
    """Computes texts with a model in its own threads.

    A free thread takes the waiting requests, so that batches grow with the load; a request is never split. Requests
    with different extras are in different batches, and no request overtakes an earlier one. Cancelled and late requests
    are left out. If a batch fails, its requests are computed one by one, so that a text can only spoil its own
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
        failed: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._ask = ask
        self._limits = limits
        self._observe = observe
        self._failed = failed
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        # Accepted texts that are not being computed yet.
        self.waiting_texts = 0
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

    def submit(self, texts: Sequence[str], extras: Extras, *, admitted: bool = False) -> Future[Computed]:
        """Accepts one text or more, or refuses them at once: 429 if too many wait, 503 if it is being stopped.

        Further texts of an ``admitted`` request are always accepted, because the waiting texts may be its own.
        """
        now = time.monotonic()
        job = _Job(texts, extras, now, now + self._limits.timeout_s)
        with self._changed:
            if self._stopping:
                raise stopping()
            texts_ahead = self.waiting_texts + self._computing_texts
            expected_s = texts_ahead * self._seconds_a_text / len(self._threads)
            is_full = self.waiting_texts + len(texts) > self._limits.max_waiting_texts
            # An empty queue accepts any request; otherwise one slow batch could block all later ones forever.
            if not admitted and self._jobs and (is_full or expected_s > self._limits.max_wait_s):
                raise try_again("overloaded", "too many texts are waiting", expected_s)
            self._jobs.append(job)
            self.waiting_texts += len(texts)
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
        """The next batch of waiting requests; empty if all were cancelled or late."""
        taken: list[_Job] = []
        texts = 0
        while self._jobs:
            job = self._jobs[0]
            fits = texts + len(job.texts) <= self._limits.batch_texts and not self._limits.alone
            if taken and not (fits and job.extras == taken[0].extras):
                break
            self._jobs.popleft()
            self.waiting_texts -= len(job.texts)
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
        except BaseException as error:  # noqa: BLE001 - the thread must outlive any text, and panics of tokenizers
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
        newest, average = seconds / len(texts), self._seconds_a_text
        self._seconds_a_text = newest if average == 0 else (1 - _NEWEST) * average + _NEWEST * newest
        if self._observe is not None:
            # The exits of occluded texts, or those that a request fixes itself, say nothing about drift.
            extras = jobs[0].extras
            exited_after = None if extras.exit_after or extras.occluded else answers.exited_after
            self._observe(len(texts), seconds, None if exited_after is None else exited_after.tolist())
        start = 0
        for job in jobs:
            end = start + len(job.texts)
            waited_ms = 1000 * (started - job.arrived)
            job.future.set_result(Computed(answers[start:end], waited_ms, 1000 * seconds, len(texts)))
            start = end


class Models:
    """Maps names to the models that answer to them.

    Everything but the computation runs on the event loop. So a caller that gets models from `by_name` and submits texts
    before its next await never uses a model that is being stopped. The first model answers if none is named.
    """

    def __init__(self, models: Sequence[ServedModel], limits: ServerLimits, metrics: Metrics, log: EventLog) -> None:
        self._limits = limits
        self._metrics = metrics
        self._log = log
        self.by_name: dict[str, ServedModel] = {}
        for model in models:
            self._install(model, start=False)
        self._requested = asyncio.Event()
        self.request_reload = self._requested.set

    def start(self) -> None:
        """Starts the queues, and waits for requests to reload; on the event loop."""
        for model in self.by_name.values():
            model.batcher.start()
        self._reloads = asyncio.get_running_loop().create_task(self._reload_on_request())

    async def stop(self) -> None:
        """Finishes accepted requests and ends the queues."""
        self._reloads.cancel()
        await asyncio.gather(*(asyncio.to_thread(model.batcher.stop) for model in self.by_name.values()))

    @property
    def ready(self) -> bool:
        """Whether all models take requests."""
        return all(model.batcher.ready for model in self.by_name.values())

    async def _reload_on_request(self) -> None:
        """Loads the models that are in the folders now, one after the other, whenever that is requested.

        An incomplete model does not take over, and the old one keeps answering. A reload requested during another one
        follows it. At most one model more than there are names is in memory, besides those that requests in progress
        hold.
        """
        while await self._requested.wait():
            self._requested.clear()
            try:
                for name in list(self.by_name):
                    if await self._reload(name):
                        limit_fragmentation()
                        await asyncio.to_thread(return_freed_memory)
            except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
                raise
            # Such as a panic of a tokenizer: the next request counts.
            except BaseException as error:  # noqa: BLE001
                context = {"message": "reload", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)

    async def _reload(self, name: str) -> bool:
        """Reloads one model; returns whether anything was read."""
        old = self.by_name[name]
        old_hash = old.description.content_hash
        outcome = "failed"
        try:
            new = None if old.source is None else await asyncio.to_thread(old.source.open, old_hash)
            if new is None:
                self._log.write("reload", model=name, message="unchanged", content_hash=old_hash)
            else:
                await self._replace(old, new)
            outcome = "unchanged" if new is None else "taken_up"
        except RecurraError as error:
            self._log.write("reload", level="error", model=name, message=str(error), content_hash=old_hash)
        except Exception as error:  # noqa: BLE001 - whatever lies in a folder, the old model goes on
            self._log.failure("reload", error, model=name, content_hash=old_hash)
        self._metrics.reloads.labels(name, outcome).inc()
        return outcome != "unchanged"

    async def _replace(self, old: ServedModel, new: ServedModel) -> None:
        self._install(new, start=True)
        name, labels = new.description.name, new.description.labels
        labels_changed = labels != old.description.labels
        self._log.write(
            "reload",
            level="warning" if labels_changed else "info",
            model=name,
            message="another model with other labels" if labels_changed else "another model",
            content_hash=new.description.content_hash,
            before=old.description.content_hash,
            **({"labels": labels} if labels_changed else {}),
            **({"note": new.note} if new.note else {}),
        )
        await asyncio.to_thread(old.batcher.stop)

    def _install(self, model: ServedModel, *, start: bool) -> None:
        """Gives a model its own queue, and makes it answer to its name."""
        description, classifier = model.description, model.classifier
        name, calibration = description.name, classifier.calibration
        model.batcher = batcher = Batcher(
            name,
            lambda texts, extras: answer(classifier, texts, extras),
            self._limits,
            workers=classifier.engine.concurrency,
            observe=self._metrics.batches(name, None if calibration is None else calibration.taken),
            failed=lambda error: self._log.failure("computation", error, model=name),
        )
        if start:
            batcher.start()
        self._metrics.show_model(name, description.content_hash, description.loaded_at, lambda: batcher.waiting_texts)
        self.by_name[name] = model
