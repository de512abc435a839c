"""Files that carry a hash of their content, and the seal of a run's model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import StringConstraints, ValidationError
from pydantic_core import from_json

from recurra.core.configuration import HashedSettings, content_hash
from recurra.core.errors import CheckpointError
from recurra.core.files import write_text
from recurra.core.packed import read_study_bytes


class Sealed(HashedSettings):
    """Base of such a file: neither white space nor the order of keys counts for the hash.

    A subclass gives ``schema_version`` the versions that it reads, the newest by default.
    """

    _FIRST_KEYS: ClassVar[frozenset[str]] = frozenset({"schema_version", "content_hash"})

    schema_version: int
    content_hash: str = ""

    @classmethod
    def hash_of(cls, values: dict[str, Any]) -> str:
        """The hash of everything but the hash in plain values."""
        return content_hash({**values, "content_hash": ""}, length=64)

    @classmethod
    def fits(cls, _: bytes, values: dict[str, Any]) -> bool:
        """Whether a file, as bytes and as the values in them, is what was written."""
        # Of the values in the file, not of what is made of them, which may have got keys since.
        return bool(values.get("content_hash") == cls.hash_of(values))

    def hashed(self) -> str:
        """The hash of everything but the hash."""
        return self.hash_of(self.plain())

    def write(self, path: Path) -> Self:
        """Writes the file atomically with the hash of its content; returns what was written."""
        values = self.plain()
        values["content_hash"] = self.hash_of(values)
        write_text(path, text_of(values))
        return self.model_copy(update={"content_hash": values["content_hash"]})

    @classmethod
    def read(cls, path: Path, *, what: str, cure: str) -> Self:
        """Reads a file that is there; see `read_sealed`."""
        return read_sealed(path, lambda _: cls, what=what, cure=cure)


def text_of(values: dict[str, Any]) -> str:
    """A file with these values."""
    return json.dumps(values, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


AnySealed = TypeVar("AnySealed", bound=Sealed)


def read_sealed(
    path: Path,
    choose: Callable[[Any], type[AnySealed]],
    *,
    what: str,
    cure: str,
    missing: str = "",
) -> AnySealed:
    """Reads a file of the class that ``choose`` finds for its values; ``missing`` is said if none is there.

    Raises:
        CheckpointError: If it cannot be read, is something else, a newer version wrote it, or it was changed.
    """
    try:
        text = read_study_bytes(path)
    except FileNotFoundError as error:
        raise CheckpointError(f"'{path}' is missing: {missing or cure}") from error
    except OSError as error:
        raise CheckpointError(f"'{path}' cannot be read as {what}: {error.strerror or error}; {cure}") from error
    try:
        # Half the time of the json module, which counts when a study has thousands of records.
        values = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise CheckpointError(
            f"'{path}' cannot be read as {what}: it is not valid JSON ({error}), truncated or changed; {cure}"
        ) from error
    cls = choose(values)
    version = values.get("schema_version") if isinstance(values, dict) else None
    newest = cls.model_fields["schema_version"].default
    if isinstance(version, bool):
        # Python takes true for 1, of which records had no hash.
        raise CheckpointError(f"'{path}' is not {what}: 'schema_version' is {version}, no number; {cure}")
    if isinstance(version, int) and version > newest:
        raise CheckpointError(f"'{path}' has schema {version}, this version reads up to {newest}; upgrade recurra")
    try:
        sealed = cls.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CheckpointError(f"'{path}' is not {what}: '{where}': {first['msg']}; {cure}") from error
    if not cls.fits(text, values):
        raise CheckpointError(f"'{path}' was changed after it was written: its content does not fit its hash; {cure}")
    return sealed


MODEL_NAME = "model"
SEAL_NAME = "model-files.json"
# One name, no folder: a list must not point outside its own.
FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$", max_length=100)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class FileEntry(HashedSettings):
    """One file: its size and the SHA-256 of its content."""

    size_bytes: int
    sha256: Sha256


class ModelFiles(Sealed):
    """The files of a run's model folder, as they were when its training ended."""

    schema_version: Literal[1] = 1
    files: dict[FileName, FileEntry]


def describe_file(path: Path) -> FileEntry:
    """Size and hash of a file."""
    with path.open("rb") as stream:
        return FileEntry(size_bytes=path.stat().st_size, sha256=hashlib.file_digest(stream, "sha256").hexdigest())


def verify_file(path: Path, wanted: FileEntry | None, *, of: str, cure: str) -> None:
    """Holds a file against what was written down of it; a `CheckpointError` says if it is missing or another."""
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
    """The hash of a run's model files as they were when its training ended, by its seal; without one, as they are."""
    if (run / SEAL_NAME).exists():
        return _read_seal(run).content_hash
    return ModelFiles(files=_describe_model(run)).hashed()


def sealed_model(run: Path) -> Path:
    """Returns the model folder of a run, once its files are what its training wrote.

    Runs from before there was a seal are taken as they are. Files that came into the folder later are not looked at.
    """
    if (run / SEAL_NAME).exists():
        for name, entry in _read_seal(run).files.items():
            verify_file(run / MODEL_NAME / name, entry, of="run", cure="copy the run again, or train it again")
    return run / MODEL_NAME
