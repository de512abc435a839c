"""Files by size and hash, and the seal of a run's model: a flipped bit in its weights does not go unnoticed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import StringConstraints

from recurra.core.configuration import HashedSettings
from recurra.core.errors import CheckpointError
from recurra.core.sealed import SealedByValues

MODEL_NAME = "model"
SEAL_NAME = "model-files.json"
# One name, no folder: a list must not point outside its own.
FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$", max_length=100)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class FileEntry(HashedSettings):
    """One file: its size and the SHA-256 of its content."""

    size_bytes: int
    sha256: Sha256


class ModelFiles(SealedByValues):
    """The files of a run's model folder, as they were when its training ended."""

    schema_version: Literal[1] = 1
    files: dict[FileName, FileEntry]


def describe_file(path: Path) -> FileEntry:
    """Size and hash of a file."""
    with path.open("rb") as stream:
        return FileEntry(size_bytes=path.stat().st_size, sha256=hashlib.file_digest(stream, "sha256").hexdigest())


def verify_file(path: Path, wanted: FileEntry | None, *, of: str, cure: str) -> None:
    """Holds a file against what was written down of it.

    Args:
        path: The file.
        wanted: What was written down; none if nothing was.
        of: What it is part of, for the message.
        cure: What to do, for the message.

    Raises:
        CheckpointError: If it is missing, truncated or changed.
    """
    if wanted is None or not path.is_file():
        raise CheckpointError(f"'{path}' is missing: the {of} is not whole; {cure}")
    found = path.stat().st_size
    if found != wanted.size_bytes:
        raise CheckpointError(
            f"'{path}' has {found:,} bytes instead of {wanted.size_bytes:,}: truncated or changed; {cure}"
        )
    if describe_file(path).sha256 != wanted.sha256:
        raise CheckpointError(f"'{path}' was changed after the {of} was made: its hash does not fit; {cure}")


def seal_model(run: Path) -> None:
    """Writes down the files of a run's model folder, beside it."""
    ModelFiles(files=_describe_model(run)).write(run / SEAL_NAME)


def _describe_model(run: Path) -> dict[FileName, FileEntry]:
    return {path.name: describe_file(path) for path in sorted((run / MODEL_NAME).iterdir()) if path.is_file()}


def _read_seal(run: Path) -> ModelFiles:
    return ModelFiles.read(run / SEAL_NAME, what="the seal of a model", cure="copy the run again, or train it again")


def hash_model_files(run: Path) -> str:
    """The hash of a run's model files as they were when its training ended, by its seal; without one, as they are.

    Raises:
        CheckpointError: If the seal was changed.
    """
    if (run / SEAL_NAME).exists():
        return _read_seal(run).content_hash
    return ModelFiles(files=_describe_model(run)).hashed()


def sealed_model(run: Path) -> Path:
    """Returns the model folder of a run, once its files are what its training wrote.

    Runs from before there was a seal are taken as they are. Files that came into the folder later are not looked at.

    Raises:
        CheckpointError: If a file is missing, truncated or changed.
    """
    if (run / SEAL_NAME).exists():
        for name, entry in _read_seal(run).files.items():
            verify_file(run / MODEL_NAME / name, entry, of="run", cure="copy the run again, or train it again")
    return run / MODEL_NAME
