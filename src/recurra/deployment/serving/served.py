"""The models of a server: opened, named, described, warmed up."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from recurra.core.best_run import find_run, no_run
from recurra.core.configuration import content_hash
from recurra.core.errors import CheckpointError, ConfigurationError, RecurraError
from recurra.core.model_files import MODEL_NAME, hash_model_files
from recurra.core.record import RECORD_NAME, read_record
from recurra.data.windows import recorded_reading
from recurra.deployment.classifier import Classifier
from recurra.deployment.export.manifest import is_export, needs_torch, read_manifest, read_source_record
from recurra.deployment.serving.schema import ExitsDescription, ModelDescription, QualityDescription

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
_FIRST_TEXTS = ("a first text", "another, a little longer than the first, so that there is something to pad")
# Whoever replaces a folder so often while it is read is asked to stop.
_MOST_READINGS = 3


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A classifier and what is told about it.

    Attributes:
        classifier: Answers.
        description: What is told.
        source: Where it comes from, and its successor may; none for one that stays as it is.
        note: Which run of a comparison was taken; empty if the folder is none.
    """

    classifier: Classifier
    description: ModelDescription
    source: ModelSource | None = None
    note: str = ""

    @property
    def name(self) -> str:
        """What users call it."""
        return self.description.name


@dataclass(frozen=True)
class ModelSource:
    """Where a model is read from, now and again.

    Attributes:
        name: What users call the model.
        folder: Run, export or comparison; what lies there may be replaced.
        threads: Threads of a computation of ONNX Runtime; 0 takes all cores.
    """

    name: str
    folder: Path
    threads: int = 0

    def open(self, known: str = "") -> ServedModel | None:
        """Reads what lies there and computes a first text with it, so that no user waits for what is made on first use.

        What is replaced while it is read is read again: the answer is one model, never parts of two.

        Args:
            known: Hash of the content that is wanted no more.

        Returns:
            The model; none if its content is that which is known.

        Raises:
            CheckpointError: If it is not a run or an export of ours, is not whole, or was changed.
        """
        for _ in range(_MOST_READINGS):
            before = self._content_hash()
            if before == known:
                return None
            try:
                found = self._read(before)
            except RecurraError:
                if self._content_hash() == before:
                    raise
            else:
                if self._content_hash() == before:
                    return found
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
    """Gives each folder of a command line its name: what stands before ``=``, or the folder's own.

    Args:
        arguments: ``FOLDER`` or ``NAME=FOLDER`` each.

    Raises:
        ConfigurationError: If a name is none, or is there twice.
    """
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
    """Opens models; see `ModelSource.open`.

    Args:
        folders: Run or export by name.
        threads: Threads of a computation of ONNX Runtime; 0 takes all cores.

    Raises:
        CheckpointError: If a folder is not a run or an export of ours, or was changed.
    """
    opened = [ModelSource(name, folder, threads).open() for name, folder in folders.items()]
    return [model for model in opened if model is not None]


def hash_model(folder: Path) -> str:
    """The hash of all that makes a run or an export answer as it does, as its own seals have it.

    Raises:
        CheckpointError: If the folder is neither.
    """
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
    described = describe_model(
        name,
        classifier,
        content_hash=hashed,
        kind=kind,
        size_bytes=size,
        run_id=record.run_id,
        max_length_tokens=longest,
        windows=windows,
    )
    split = record.data.reported_splits[-1]
    metrics = record.metrics[split]
    quality = QualityDescription(split=split, rows=metrics.rows, figures=metrics.figures())
    return described.model_copy(update={"quality": quality})


def describe_model(
    name: str,
    classifier: Classifier,
    *,
    content_hash: str,
    kind: str,
    size_bytes: int,
    run_id: str,
    max_length_tokens: int = 512,
    windows: int = 1,
) -> ModelDescription:
    """Says what a server tells of a model.

    Args:
        name: What users call it.
        classifier: The model.
        content_hash: See `hash_model`.
        kind: What it was read from: ``run``, or the format of an export.
        size_bytes: Of the files that it was read from.
        run_id: The run that it comes from.
        max_length_tokens: Where a text is cut, or a window of it.
        windows: Most windows that a text is read in.
    """
    depth = classifier.depth
    return ModelDescription(
        name=name,
        content_hash=content_hash,
        loaded_at=datetime.now(UTC),
        labels=classifier.classes_.tolist(),
        kind=kind,
        size_bytes=size_bytes,
        max_length_tokens=max_length_tokens,
        windows=windows,
        run_id=run_id,
        computation=classifier.computation,
        num_recurrences=None if depth is None else depth.num_recurrences,
        own_heads=depth is not None and depth.own_heads,
        exits=_describe_exits(classifier),
    )


def _describe_exits(classifier: Classifier) -> ExitsDescription | None:
    depth, record, rule = classifier.depth, classifier.calibration, classifier.calibrated_rule
    if depth is None or not depth.exits:
        return None
    chosen = None if rule is None else record
    bound = None if rule is None else rule.as_bound(depth.exits[0])
    return ExitsDescription(
        after=list(depth.exits),
        rule=None if rule is None else rule.describe(),
        threshold=None if bound is None else bound.value,
        agreement_asked=None if chosen is None else chosen.asked,
        agreement=None if chosen is None else chosen.agreement,
        rows=None if chosen is None else chosen.rows,
    )
