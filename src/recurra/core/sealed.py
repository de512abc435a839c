"""Small JSON files that carry the hash of their own content, so that what was changed by hand is found out."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import ValidationError

from recurra.core.configuration import Settings, content_hash
from recurra.core.errors import CheckpointError
from recurra.core.files import read_json, write_json

_HASH_DIGITS = 64


class Sealed(Settings):
    """Base of such a file. A subclass gives ``schema_version`` the versions that it reads, the newest as the default.

    Attributes:
        schema_version: Of the file.
        content_hash: Hash of everything else in it; set by `write`.
    """

    schema_version: int
    content_hash: str = ""

    def hashed(self) -> str:
        """The hash of everything but the hash."""
        return content_hash({**self.plain(), "content_hash": ""}, length=_HASH_DIGITS)

    def write(self, path: Path) -> Self:
        """Writes the file atomically with the hash of its content; returns what was written."""
        sealed = self.model_copy(update={"content_hash": self.hashed()})
        write_json(path, sealed.plain())
        return sealed

    @classmethod
    def read(cls, path: Path, *, what: str, cure: str) -> Self:
        """Reads a file that is there.

        Args:
            path: The file.
            what: What it should be, for the message.
            cure: What to do if it is not, for the message.

        Raises:
            CheckpointError: If it cannot be read, is something else, a newer version wrote it, or it was changed.
        """
        try:
            values = read_json(path)
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"'{path}' cannot be read as {what}: it is not valid JSON ({error}), truncated or changed; {cure}"
            ) from error
        version = values.get("schema_version") if isinstance(values, dict) else None
        newest = cls.model_fields["schema_version"].default
        if isinstance(version, int) and version > newest:
            raise CheckpointError(f"'{path}' has schema {version}, this version reads up to {newest}; upgrade recurra")
        try:
            found = cls.model_validate(values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise CheckpointError(f"'{path}' is not {what}: '{where}': {first['msg']}; {cure}") from error
        if found.content_hash != found.hashed():
            raise CheckpointError(
                f"'{path}' was changed after it was written: its content does not fit its hash; {cure}"
            )
        return found
