"""The record of a run: what was run, on what, with which result. Written last and atomically.

A run without a record did not happen. Everything that the report, the README tables and the studies show is read from
records; nothing is computed twice.

Schema 2 added ``content_hash`` and ``wall_s``, schema 3 ``task`` and with it the records of language models
(`recurra.core.language_record`), schema 4 the status ``note`` of audits and what is measured of
calibration. Older records are read as they are. A change that an older version would read wrongly raises the number; so
does a new field of a part, because unknown keys are refused. A new field of the record itself needs a default only, at
which it is left out (`recurra.core.configuration.HashedSettings`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from recurra.core.errors import CheckpointError
from recurra.core.label_record import (
    DataRecord,
    EpochRecord,
    LabelRunRecord,
    LengthSummary,
    MetricsRecord,
    RunRecord,
    SplitRecord,
    TeacherRecord,
    TrainingRecord,
)
from recurra.core.language_record import LanguageRunRecord
from recurra.core.packed import in_study, read_study_bytes
from recurra.core.record_parts import (
    AnyDecisionRecord,
    AuditResult,
    CodeRecord,
    DecisionRecord,
    EncoderRecord,
    EnvironmentRecord,
    LatencyRecord,
    ModelRecord,
    OneLabelRecord,
)
from recurra.core.sealed import hash_of_text, read_sealed
from recurra.core.tasks import TASKS, load_class

__all__ = [
    "RECORD_NAME",
    "SCHEMA_VERSION",
    "AnyDecisionRecord",
    "AnyRecord",
    "AuditResult",
    "CodeRecord",
    "DataRecord",
    "DecisionRecord",
    "EncoderRecord",
    "EnvironmentRecord",
    "EpochRecord",
    "LabelRunRecord",
    "LanguageRunRecord",
    "LatencyRecord",
    "LengthSummary",
    "MetricsRecord",
    "ModelRecord",
    "OneLabelRecord",
    "RunRecord",
    "SplitRecord",
    "TeacherRecord",
    "TrainingRecord",
    "holds_any_record",
    "holds_record",
    "read_any_record",
    "read_language_record",
    "read_record",
    "write_record",
]

SCHEMA_VERSION = 4
RECORD_NAME = "record.json"
# How a record begins as it is written; before schema 3 without a task.
_HEAD = re.compile(
    rb'\{\n "schema_version": (?P<schema>\d+),\n "content_hash": "(?P<hash>[0-9a-f]+)",\n'
    rb'(?: "task": "(?P<task>[^"]*)",\n)?'
)


AnyRecord = LabelRunRecord | LanguageRunRecord
# Schema and task of what can be known by its hash alone.
_HASHED = {(b"2", None), *((schema, task.encode()) for schema in (b"3", b"4") for task in TASKS)}


def write_record(folder: Path | str, record: AnyRecord) -> Path:
    """Writes ``record.json`` into a run folder, atomically and with the hash of its content, and returns its path."""
    path = Path(folder) / RECORD_NAME
    record.model_copy(update={"schema_version": SCHEMA_VERSION}).write(path)
    return path


def read_record(folder: Path | str) -> LabelRunRecord:
    """Reads the record of the run folder (or a record file) of a model that labels texts.

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
    if isinstance(record, LabelRunRecord):
        raise CheckpointError(f"'{folder}' is a run of a classifier, and a language model is needed")
    return record


def read_any_record(folder: Path | str) -> AnyRecord:
    """Reads the record of a run folder (or a record file), whatever was trained.

    Raises:
        CheckpointError: If there is none, it is not a record that this version can read, or it was changed after it
            was written.
    """
    path = _record_path(folder)
    return read_sealed(
        path,
        lambda values: _class_of(values, path),
        what="a record of ours",
        cure="restore it, or delete it to run again",
        missing="not a finished run; give a folder made by 'recurra train', "
        "or start the same command again to finish it",
    )


def _class_of(values: Any, path: Path) -> type[AnyRecord]:
    task = values.get("task") if isinstance(values, dict) else None
    if not isinstance(task, str):
        return RunRecord
    # The task of a record says of which class it is; before schema 3, no record names it and all are of classifiers.
    if task not in TASKS:
        raise CheckpointError(
            f"'{path}' is a record of the task '{task}', which this version does not know "
            f"(known: {', '.join(sorted(TASKS))}); upgrade recurra"
        )
    found: type[AnyRecord] = load_class(TASKS[task].record)
    return found


def holds_any_record(folder: Path | str) -> bool:
    """Whether there is a record in a folder, of whatever run."""
    return in_study(_record_path(folder))


def holds_record(folder: Path | str, config_hash: str) -> bool:
    """Whether a folder holds the record of a run of this configuration; as strict as reading it, and faster.

    Raises:
        CheckpointError: If there is a record that `read_any_record` refuses.
    """
    path = _record_path(folder)
    try:
        text = read_study_bytes(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return read_any_record(path).config_hash == config_hash
    # A file whose hash fits is what `write_record` wrote: no need to look inside.
    head = _HEAD.match(text)
    if head and (head["schema"], head["task"]) in _HASHED and head["hash"] == hash_of_text(text).encode():
        return f'\n "config_hash": "{config_hash}",\n'.encode() in text
    return read_any_record(path).config_hash == config_hash


def _record_path(folder: Path | str) -> Path:
    path = Path(folder)
    return path if path.suffix == ".json" and not path.is_dir() else path / RECORD_NAME
