"""Files that carry a hash of their content, and the seal of a run's model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import StringConstraints, ValidationError
from pydantic_core import from_json

from recurra.core.configuration import HashedSettings, content_hash
from recurra.core.errors import CheckpointError
from recurra.core.files import write_json
from recurra.core.packed import read_study_bytes


class Sealed(HashedSettings):
    """Base of files with a hash, which depends neither on white space nor on the order of keys.

    A subclass lists the versions that it reads in ``schema_version``; the newest one is the default.
    """

    _FIRST_KEYS: ClassVar[frozenset[str]] = frozenset({"schema_version", "content_hash"})

    schema_version: int
    content_hash: str = ""

    @classmethod
    def hash_of(cls, values: dict[str, Any]) -> str:
        """The hash of plain values without the hash itself."""
        return content_hash({**values, "content_hash": ""}, length=64)

    @classmethod
    def fits(cls, _: bytes, values: dict[str, Any]) -> bool:
        """Whether a file, given as bytes and as the values in them, is as it was written."""
        # The values in the file are hashed, not the parsed object, which may have newer keys.
        return bool(values.get("content_hash") == cls.hash_of(values))

    def hashed(self) -> str:
        """The hash of everything except the hash itself."""
        return self.hash_of(self.plain())

    def write(self, path: Path) -> Self:
        """Writes the file atomically with the hash of its content; returns the written object."""
        values = self.plain()
        values["content_hash"] = self.hash_of(values)
        write_json(path, values)
        return self.model_copy(update={"content_hash": values["content_hash"]})

    @classmethod
    def read(cls, path: Path, *, what: str, cure: str) -> Self:
        """Reads a file of this class; see `read_sealed`."""
        return read_sealed(path, lambda _: cls, what=what, cure=cure)


AnySealed = TypeVar("AnySealed", bound=Sealed)


def read_sealed(
    path: Path,
    choose: Callable[[Any], type[AnySealed]],
    *,
    what: str,
    cure: str,
    missing: str = "",
) -> AnySealed:
    """Reads a file as the class that ``choose`` returns for its values; ``missing`` is the error if there is no file.

    Raises:
        CheckpointError: If it cannot be read, is another kind of file, has a newer schema, or was changed.
    """
    try:
        text = read_study_bytes(path)
    except FileNotFoundError as error:
        raise CheckpointError(f"'{path}' is missing: {missing or cure}") from error
    except OSError as error:
        raise CheckpointError(f"'{path}' cannot be read as {what}: {error.strerror or error}; {cure}") from error
    try:
        # It takes half the time of the json module, which matters for studies with thousands of records.
        values = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise CheckpointError(
            f"'{path}' cannot be read as {what}: it is not valid JSON ({error}), truncated or changed; {cure}"
        ) from error
    cls = choose(values)
    version = values.get("schema_version") if isinstance(values, dict) else None
    newest = cls.model_fields["schema_version"].default
    if isinstance(version, bool):
        # Python takes true for 1, the schema version whose records have no hash.
        raise CheckpointError(f"'{path}' is not {what}: 'schema_version' is {version}, no number; {cure}")
    if isinstance(version, int) and version > newest:
        raise CheckpointError(f"'{path}' has schema {version}, this version reads up to {newest}; upgrade recurra")
    try:
        sealed = cls.model_validate(values)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        location = ".".join(str(part) for part in problem["loc"])
        raise CheckpointError(f"'{path}' is not {what}: '{location}': {problem['msg']}; {cure}") from error
    if not cls.fits(text, values):
        raise CheckpointError(f"'{path}' was changed after it was written: its content does not match its hash; {cure}")
    return sealed


MODEL_NAME = "model"
SEAL_NAME = "model-files.json"
# A name without a folder: a list must not point outside its own folder.
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
    """Compares a file with its recorded size and hash; raises a `CheckpointError` if it is missing or differs."""
    if wanted is None or not path.is_file():
        raise CheckpointError(f"'{path}' is missing: the {of} is incomplete; {cure}")
    actual_bytes = path.stat().st_size
    if actual_bytes != wanted.size_bytes:
        raise CheckpointError(
            f"'{path}' has {actual_bytes:,} bytes instead of {wanted.size_bytes:,}: truncated or changed; {cure}"
        )
    if describe_file(path).sha256 != wanted.sha256:
        raise CheckpointError(f"'{path}' was changed after the {of} was made: its hash does not match; {cure}")


def seal_model(run: Path) -> None:
    """Writes the list of the files of a run's model folder beside the folder."""
    ModelFiles(files=_describe_model(run)).write(run / SEAL_NAME)


def _describe_model(run: Path) -> dict[FileName, FileEntry]:
    return {path.name: describe_file(path) for path in sorted((run / MODEL_NAME).iterdir()) if path.is_file()}


def _read_seal(run: Path) -> ModelFiles:
    return ModelFiles.read(run / SEAL_NAME, what="the seal of a model", cure="copy the run again, or train it again")


def hash_model_files(run: Path) -> str:
    """The hash of a run's model files at the end of training, from its seal; without a seal, of the current files."""
    if (run / SEAL_NAME).exists():
        return _read_seal(run).content_hash
    return ModelFiles(files=_describe_model(run)).hashed()


def sealed_model(run: Path) -> Path:
    """Returns the model folder of a run after checking that its files are those that training wrote.

    Runs without a seal, from older versions, are not checked. Files that were added to the folder later are ignored.
    """
    if (run / SEAL_NAME).exists():
        for name, entry in _read_seal(run).files.items():
            verify_file(run / MODEL_NAME / name, entry, of="run", cure="copy the run again, or train it again")
    return run / MODEL_NAME
