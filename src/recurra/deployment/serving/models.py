"""The models of a server: opened, named, described, warmed up; each with its queue, replaced while requests go on."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
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
from recurra.data.windows import recorded_reading
from recurra.deployment.classifier import Classifier
from recurra.deployment.export.manifest import is_export, needs_torch, read_manifest, read_source_record
from recurra.deployment.serving.batching import Batcher
from recurra.deployment.serving.bodies import Exits, ModelDescription, Quality, answer
from recurra.deployment.serving.limits import ServerLimits
from recurra.deployment.serving.observation import EventLog, Metrics

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
_FIRST_TEXTS = ("a first text", "another, a little longer than the first, so that there is something to pad")
# Whoever replaces a folder so often while it is read is asked to stop.
_MOST_READINGS = 3


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A classifier, where it comes from and its successor may, and which run of a comparison was taken."""

    classifier: Classifier
    description: ModelDescription
    source: ModelSource | None = None
    note: str = ""


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
        kind, size, longest, windows = manifest.format, manifest.size_bytes, manifest.max_length, manifest.windows
    else:
        kind, size = "run", sum(path.stat().st_size for path in (folder / "model").rglob("*") if path.is_file())
        reading = recorded_reading(record.config)
        longest, windows = reading["max_length"], reading["windows"]
    split = record.data.reported_splits[-1]
    metrics = record.metrics[split]
    return describe_model(
        name,
        classifier,
        content_hash=hashed,
        kind=kind,
        size_bytes=size,
        run_id=record.run_id,
        max_length_tokens=longest,
        windows=windows,
        quality=Quality(split, metrics.rows, metrics.figures()),
    )


def describe_model(name: str, classifier: Classifier, **known: Any) -> ModelDescription:
    """Describes a classifier, given the fields of `ModelDescription` that it does not know itself."""
    depth, record, rule = classifier.engine.depth, classifier.calibration, classifier.calibrated_rule
    exits = None
    if depth is not None and depth.exits:
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


@dataclass(frozen=True, eq=False)
class QueuedModel(ServedModel):
    """A model and the queue of its texts: who holds it asks this one, whatever is loaded meanwhile."""

    batcher: Batcher = field(kw_only=True)


class Models:
    """Knows which model answers to a name.

    All but the computation happens on the event loop, so that whoever takes models with `chosen` and asks them before
    it waits for anything never asks one that is being put away. The first answers where none is named.
    """

    def __init__(self, models: Sequence[ServedModel], limits: ServerLimits, metrics: Metrics, log: EventLog) -> None:
        self._limits = limits
        self._metrics = metrics
        self._log = log
        self._models = {model.description.name: self._queued(model) for model in models}
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

    def chosen(self, names: Sequence[str]) -> list[QueuedModel]:
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

    async def _replace(self, old: QueuedModel, model: ServedModel) -> None:
        new = self._queued(model)
        new.batcher.start()
        name, labels = new.description.name, new.description.labels
        self._models[name] = new
        other_labels = labels != old.description.labels
        self._log.write(
            "reload",
            level="warning" if other_labels else "info",
            model=name,
            message="another model with other labels" if other_labels else "another model",
            content_hash=new.description.content_hash,
            before=old.description.content_hash,
            **({"labels": labels} if other_labels else {}),
            **({"note": model.note} if model.note else {}),
        )
        await asyncio.to_thread(old.batcher.stop)

    def _queued(self, model: ServedModel) -> QueuedModel:
        description, classifier = model.description, model.classifier
        name = description.name
        calibrated = None if classifier.calibration is None else classifier.calibration.taken
        batcher = Batcher(
            name,
            lambda texts, extras: answer(classifier, texts, extras),
            self._limits,
            workers=classifier.engine.concurrency,
            observe=self._metrics.batches(name, calibrated),
            failed=lambda error: self._log.failure("computation", error, model=name),
        )
        self._metrics.show_model(name, description.content_hash, description.loaded_at, lambda: batcher.waiting_texts)
        return QueuedModel(classifier, description, model.source, batcher=batcher)
