"""Whom a run learns from, as its configuration names them. Imports no torch."""

from __future__ import annotations

import hashlib
from pathlib import Path

from recurra.core.configuration import HashedSettings, content_hash
from recurra.core.errors import ConfigurationError
from recurra.core.record import LabelRunRecord, holds_any_record, read_any_record
from recurra.deployment.export.manifest import is_export, read_manifest
from recurra.models.folder import CONFIG_NAME, WEIGHTS_NAME


def teacher_names(text: str) -> list[str]:
    """Names or folders of teachers, separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


class TeacherConfig(HashedSettings):
    """One teacher of a run.

    Attributes:
        name: Where it is shown: the name of a model of the same study, or that of the folder.
        run_id: If it is a run of the same study, which lies beside the run; empty if it is a folder.
        folder: Else where it lies: a run, an export, or a Hugging Face classifier.
        identity: Hash of what lies there, so that another teacher is another run.
    """

    name: str
    run_id: str = ""
    folder: str = ""
    identity: str = ""


def locate_teacher(folder: str) -> TeacherConfig:
    """Looks at the folder of a teacher.

    Raises:
        ConfigurationError: If it holds no classifier.
        CheckpointError: If what it holds cannot be read.
    """
    place = Path(folder)
    if is_export(place):
        identity = content_hash(["export", read_manifest(place).content_hash])
    elif holds_any_record(place):
        record = read_any_record(place)
        if not isinstance(record, LabelRunRecord):
            raise ConfigurationError(f"teacher '{folder}' is a run of {record.task}; a classifier is needed")
        identity = content_hash(["run", record.content_hash])
    elif (place / CONFIG_NAME).is_file() and (place / WEIGHTS_NAME).is_file():
        with (place / WEIGHTS_NAME).open("rb") as stream:
            identity = content_hash(["folder", hashlib.file_digest(stream, "sha256").hexdigest()])
    else:
        raise ConfigurationError(
            f"teacher '{folder}' is neither a run, nor an export, nor a Hugging Face folder with {CONFIG_NAME} and "
            f"{WEIGHTS_NAME}; in a study it may be the name of one of its models"
        )
    return TeacherConfig(name=place.resolve().name[:100], folder=folder, identity=identity)
