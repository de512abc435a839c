"""The models of a server: opened, named, described, warmed up."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from recurra.core.errors import ConfigurationError
from recurra.data.windows import recorded_reading
from recurra.deployment.classifier import Classifier
from recurra.deployment.export.manifest import is_export, needs_torch, read_manifest, read_source_record
from recurra.deployment.serving.schema import ExitsDescription, ModelDescription, QualityDescription

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
_FIRST_TEXTS = ("a first text", "another, a little longer than the first, so that there is something to pad")


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A classifier and what is told about it."""

    classifier: Classifier
    description: ModelDescription

    @property
    def name(self) -> str:
        """What users call it."""
        return self.description.name


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
    """Opens models and computes a first text with each, so that no user waits for what is made on first use.

    Args:
        folders: Run or export by name.
        threads: Threads of a computation of ONNX Runtime; 0 takes all cores.

    Raises:
        CheckpointError: If a folder is not a run or an export of ours, or was changed.
    """
    if any(needs_torch(folder) for folder in folders.values()):
        from recurra.models.quiet import quieten_libraries

        quieten_libraries()
    models = []
    for name, folder in folders.items():
        classifier = Classifier.open(folder, threads=threads)
        classifier.predict_proba(_FIRST_TEXTS)
        if classifier.calibrated_rule is not None:
            classifier.classify(_FIRST_TEXTS, rule=classifier.calibrated_rule)
        models.append(ServedModel(classifier, _describe(name, folder, classifier)))
    return models


def _describe(name: str, folder: Path, classifier: Classifier) -> ModelDescription:
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
        kind: What it was read from: ``run``, or the format of an export.
        size_bytes: Of the files that it was read from.
        run_id: The run that it comes from.
        max_length_tokens: Where a text is cut, or a window of it.
        windows: Most windows that a text is read in.
    """
    depth = classifier.depth
    return ModelDescription(
        name=name,
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
