"""JSON files that carry the hash of their own content, so that what was changed by hand is found out.

Records of runs, of exports and of exits, manifests: all are written and read here, atomically, and refused in one line.
What is hashed differs, and stays, for files of both kinds lie on disks: `SealedByText` hashes the bytes of the file,
which is checked without looking inside and pays where thousands are read; `SealedByValues` hashes the values.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from recurra.core.configuration import HashedSettings, content_hash
from recurra.core.errors import CheckpointError
from recurra.core.files import write_text
from recurra.core.packed import read_study_bytes

_HASH_DIGITS = 64
# The line of the hash in the file as it is written: what is hashed by text is the rest.
_HASH_LINE = re.compile(rb'^ "content_hash": (?:"[0-9a-f]*"|null),\n', re.MULTILINE)


class Sealed(HashedSettings):
    """Base of such a file. A subclass gives ``schema_version`` the versions that it reads, the newest as the default.

    Attributes:
        schema_version: Of the file.
    """

    _FIRST_KEYS: ClassVar[frozenset[str]] = frozenset({"schema_version"})

    schema_version: int

    @classmethod
    @abstractmethod
    def hash_of(cls, values: dict[str, Any]) -> str:
        """The hash of everything but the hash in plain values."""

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
        write_text(path, _text(values))
        return self.model_copy(update={"content_hash": values["content_hash"]})

    @classmethod
    def read(cls, path: Path, *, what: str, cure: str) -> Self:
        """Reads a file that is there; see `read_sealed`."""
        return read_sealed(path, lambda _: cls, what=what, cure=cure)


class SealedByValues(Sealed):
    """Base of a file whose values are hashed: neither white space nor the order of keys counts.

    Attributes:
        content_hash: Hash of everything else in it; set by `write`.
    """

    _FIRST_KEYS: ClassVar[frozenset[str]] = frozenset({"content_hash"})

    content_hash: str = ""

    @classmethod
    def hash_of(cls, values: dict[str, Any]) -> str:
        """The hash of the values in a canonical form."""
        return content_hash({**values, "content_hash": ""}, length=_HASH_DIGITS)


class SealedByText(Sealed):
    """Base of a file whose bytes are hashed; one whose white space was changed is known by its values.

    Attributes:
        content_hash: SHA-256 of everything else in it, set by `write`; none in files from before there was one.
    """

    _FIRST_KEYS: ClassVar[frozenset[str]] = frozenset({"content_hash"})

    content_hash: str | None = None

    @classmethod
    def hash_of(cls, values: dict[str, Any]) -> str:
        """The hash of the file that `write` makes of the values."""
        return hash_of_text(_text({**values, "content_hash": None}).encode("utf-8", "surrogatepass"))

    @classmethod
    def fits(cls, text: bytes, values: dict[str, Any]) -> bool:
        """Whether a file, as bytes and as the values in them, is what was written."""
        return values.get("content_hash") == hash_of_text(text) or super().fits(text, values)


def hash_of_text(text: bytes) -> str:
    """The hash of a file of `SealedByText`, from its bytes."""
    return hashlib.sha256(_HASH_LINE.sub(b"", text, count=1)).hexdigest()


def _text(values: dict[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


AnySealed = TypeVar("AnySealed", bound=Sealed)


def read_sealed(
    path: Path, choose: Callable[[Any], type[AnySealed]], *, what: str, cure: str, missing: str = ""
) -> AnySealed:
    """Reads a file.

    Args:
        path: The file.
        choose: Says of which class it is, from its plain values, whatever they are.
        what: What it should be, for the message.
        cure: What to do if it is not, for the message.
        missing: What to say if there is none, instead of the cure.

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
        found = cls.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CheckpointError(f"'{path}' is not {what}: '{where}': {first['msg']}; {cure}") from error
    if not cls.fits(text, values):
        raise CheckpointError(f"'{path}' was changed after it was written: its content does not fit its hash; {cure}")
    return found
