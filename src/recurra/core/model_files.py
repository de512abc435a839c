"""Files by size and hash, and the seal of a run's model: a flipped bit in its weights does not go unnoticed."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path
from typing import Annotated, Literal

from pydantic import StringConstraints
from tokenizers import Tokenizer

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


# The largest that are published have 30 MiB.
MOST_BYTES = 256 * 2**20
# Some settings are looked at only when a text comes, some only when one has pieces that the vocabulary lacks.
PROBE = ("a", "zq \u8aad \U0001f40d")


def is_broken_tokenizer(error: BaseException) -> bool:
    """Whether an error is how the tokenizers library, in Rust, says that a file is broken.

    It raises the bare class `Exception`, or panics with a class that is no `Exception` and has no public name.
    """
    return type(error) is Exception or type(error).__name__ == "PanicException"


def read_tokenizer_text(path: Path) -> str:
    """The content of a ``tokenizer.json``.

    Raises:
        CheckpointError: If it is no regular file, or larger than `MOST_BYTES`.
        OSError: If it cannot be read.
        UnicodeDecodeError: If it is not UTF-8.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
        raise CheckpointError(
            f"'{path}' is no regular file of at most {MOST_BYTES:,} bytes: not the tokenizer of a model; copy it again"
        )
    return path.read_bytes().decode("utf-8")


def read_tokenizer_file(path: Path, cure: str) -> Tokenizer:
    """Reads a tokenizer and tries it.

    Args:
        path: A ``tokenizer.json``.
        cure: What to do if it is broken, for the message.

    Raises:
        CheckpointError: If it is missing, too large, or broken.
    """
    try:
        tokenizer = Tokenizer.from_str(read_tokenizer_text(path))
        tokenizer.encode_batch_fast(PROBE)
    except BaseException as error:
        if not is_broken_tokenizer(error) and not isinstance(error, OSError | ValueError):
            raise
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"'{path}' holds no tokenizer that can be read: {reason}; {cure}") from error
    return tokenizer
