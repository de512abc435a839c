"""The record of a run: what was run, on what, with which result. Written last and atomically.

A run without a record did not happen. Everything that the report, the README tables and the studies show is read from
records; nothing is computed twice.

Schema 2 added ``content_hash`` and ``wall_s``, schema 3 ``task`` and with it the records of language models
(`recurra.core.language_record`). Older records are read as they are. A change that an older version would read wrongly
raises the number; a new optional field raises it as well, because unknown keys are refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError
from pydantic_core import from_json

from recurra.core.errors import CheckpointError
from recurra.core.files import write_text
from recurra.core.language_record import LanguageRunRecord
from recurra.core.record_parts import (
    AnyRunRecord,
    AnyTrainingRecord,
    AuditResult,
    CodeRecord,
    EnvironmentRecord,
    LatencyRecord,
    ModelRecord,
    Part,
)

__all__ = [
    "RECORD_NAME",
    "SCHEMA_VERSION",
    "AnyRecord",
    "AuditResult",
    "CodeRecord",
    "DataRecord",
    "EnvironmentRecord",
    "EpochRecord",
    "LanguageRunRecord",
    "LatencyRecord",
    "LengthSummary",
    "MetricsRecord",
    "ModelRecord",
    "RunRecord",
    "SplitRecord",
    "TrainingRecord",
    "holds_record",
    "read_any_record",
    "read_language_record",
    "read_record",
    "write_record",
]

SCHEMA_VERSION = 3
RECORD_NAME = "record.json"
_FIRST_HASHED_VERSION = 2
# The line of the hash in the file as we write it: what is hashed is the rest.
_HASH_LINE = re.compile(rb'^ "content_hash": (?:"[0-9a-f]*"|null),\n', re.MULTILINE)


class LengthSummary(Part):
    """Lengths of the texts of a split in words. ``counts[i]`` texts have ``edges[i] <= words < edges[i + 1]``."""

    mean: float
    median: float
    p90: float
    max: int
    edges: list[int]
    counts: list[int]


class SplitRecord(Part):
    """One split: fingerprint (content and order), rows, rows a label, lengths in words."""

    fingerprint: str
    rows: int
    label_counts: dict[str, int]
    words: LengthSummary


class DataRecord(Part):
    """What it ran on. ``selection_split`` chose the checkpoint; ``reported_splits`` are evaluated."""

    name: str
    protocol: str
    fingerprint: str
    label_names: list[str]
    selection_split: str
    reported_splits: list[str]
    splits: dict[str, SplitRecord]
    dropped: dict[str, int] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)
    tokenizer: dict[str, Any] = Field(default_factory=dict)


class EpochRecord(Part):
    """One epoch. Losses are means over examples; ``wall_s`` is the epoch's own."""

    epoch: int
    train_loss: float
    validation_loss: float
    validation_accuracy: float
    learning_rate: float
    wall_s: float


class TrainingRecord(AnyTrainingRecord):
    """How a classifier's training went, epoch by epoch."""

    history: list[EpochRecord] = Field(default_factory=list)


class MetricsRecord(Part):
    """Quality on one split.

    Attributes:
        rows: Examples evaluated.
        accuracy: Share that is right.
        precision: Of the positive class (label 1) for two classes, macro mean for more; so are ``recall`` and ``f1``.
        recall: See ``precision``.
        f1: See ``precision``.
        loss: Mean cross-entropy in nats.
        accuracy_interval: 95 % interval over examples (Wilson).
        confusion_matrix: ``[true][predicted]`` counts.
    """

    rows: int
    accuracy: float
    precision: float
    recall: float
    f1: float
    loss: float
    accuracy_interval: tuple[float, float]
    confusion_matrix: list[list[int]]


class RunRecord(AnyRunRecord):
    """Everything about one run of a classifier. See the parts."""

    schema_version: Literal[1, 2, 3] = 3
    task: Literal["classification"] = "classification"
    data: DataRecord
    training: TrainingRecord
    metrics: dict[str, MetricsRecord]


AnyRecord = RunRecord | LanguageRunRecord
_OF_TASK: dict[str, type[RunRecord] | type[LanguageRunRecord]] = {
    "classification": RunRecord,
    "language modelling": LanguageRunRecord,
}


def write_record(folder: Path | str, record: AnyRecord) -> Path:
    """Writes ``record.json`` into a run folder, atomically and with the hash of its content, and returns its path."""
    path = Path(folder) / RECORD_NAME
    values = record.model_copy(update={"schema_version": SCHEMA_VERSION, "content_hash": None}).model_dump(mode="json")
    write_text(path, _text({**values, "content_hash": _hash(values)}))
    return path


def read_record(folder: Path | str) -> RunRecord:
    """Reads the record of a classifier's run folder (or a record file).

    Raises:
        CheckpointError: As `read_any_record`, or if it is the record of a language model.
    """
    record = read_any_record(folder)
    if isinstance(record, LanguageRunRecord):
        raise CheckpointError(
            f"'{folder}' is a run of a language model, and a classifier is needed; "
            "'recurra evaluate' and 'recurra audit model' take it"
        )
    return record


def read_language_record(folder: Path | str) -> LanguageRunRecord:
    """Reads the record of a language model's run folder (or a record file).

    Raises:
        CheckpointError: As `read_any_record`, or if it is the record of a classifier.
    """
    record = read_any_record(folder)
    if isinstance(record, RunRecord):
        raise CheckpointError(f"'{folder}' is a run of a classifier, and a language model is needed")
    return record


def read_any_record(folder: Path | str) -> AnyRecord:
    """Reads the record of a run folder (or a record file), whatever was trained.

    Raises:
        CheckpointError: If there is none, it is not a record that this version can read, or it was changed after it
            was written.
    """
    path = _record_path(folder)
    text = _read(path)
    try:
        # Half the time of the json module, which counts when a study has thousands of records.
        values = from_json(text)
    except ValueError as error:
        raise CheckpointError(f"'{path}' cannot be read as a record ({error}); run it again") from error
    version = values.get("schema_version") if isinstance(values, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise CheckpointError(
            f"'{path}' has record schema {version}, this version reads up to {SCHEMA_VERSION}; upgrade recurra"
        )
    task = values.get("task") if isinstance(values, dict) else None
    try:
        record = _OF_TASK.get(str(task), RunRecord).model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CheckpointError(f"'{path}' is not a record of ours: '{where}': {first['msg']}; run it again") from error
    hashed = record.content_hash is not None or record.schema_version >= _FIRST_HASHED_VERSION
    # The second hash is for a file whose white space was changed, which changes no figure.
    if hashed and record.content_hash != _hash_of_file(text) and record.content_hash != _hash(values):
        raise CheckpointError(
            f"'{path}' was changed after it was written: its content does not fit its hash; restore it, "
            "or delete it to run again"
        )
    return record


def holds_record(folder: Path | str, config_hash: str) -> bool:
    """Whether a folder holds the record of a run of this configuration; as strict as reading it, and faster.

    Raises:
        CheckpointError: If there is a record that `read_any_record` refuses.
    """
    path = _record_path(folder)
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return False
    except OSError:
        return read_any_record(path).config_hash == config_hash
    # A file whose hash fits is what `write_record` wrote: no need to look inside.
    if f'\n "content_hash": "{_hash_of_file(text)}",\n'.encode() in text[:200]:
        return f'\n "config_hash": "{config_hash}",\n'.encode() in text
    return read_any_record(path).config_hash == config_hash


def _record_path(folder: Path | str) -> Path:
    path = Path(folder)
    return path if path.suffix == ".json" and not path.is_dir() else path / RECORD_NAME


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise CheckpointError(
            f"'{path}' is missing: not a finished run; give a folder made by 'recurra train', "
            "or start the same command again to finish it"
        ) from error
    except OSError as error:
        raise CheckpointError(f"'{path}' cannot be read as a record ({error}); run it again") from error


def _text(values: dict[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def _hash(values: dict[str, Any]) -> str:
    """The hash of plain values as we would write them: white space in the file does not matter, all else does."""
    return _hash_of_file(_text({**values, "content_hash": None}).encode("utf-8", "surrogatepass"))


def _hash_of_file(text: bytes) -> str:
    return hashlib.sha256(_HASH_LINE.sub(b"", text, count=1)).hexdigest()
