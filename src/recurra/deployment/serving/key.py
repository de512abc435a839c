"""The API key: from a file or the environment, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping
from pathlib import Path

from recurra.core.errors import ConfigurationError

_LEAST_CHARACTERS = 16


class ApiKey:
    """Knows a key when it sees it, and holds nothing but its hash.

    Args:
        key: The key.

    Raises:
        ConfigurationError: If it is too short or cannot stand in a header.
    """

    def __init__(self, key: str) -> None:
        if len(key) < _LEAST_CHARACTERS or not key.isascii() or not key.isprintable() or " " in key:
            raise ConfigurationError(
                f"the API key has {len(key)} characters; at least {_LEAST_CHARACTERS} printable ASCII characters "
                "without blanks are needed; make one with: openssl rand -hex 32"
            )
        self._digest = hashlib.sha256(key.encode("ascii")).digest()

    def opens(self, headers: Mapping[str, str]) -> bool:
        """Whether ``Authorization: Bearer KEY`` or ``X-API-Key: KEY`` is there and right.

        Hashes are compared, in constant time: neither the place of the first wrong character nor the length can be
        measured.
        """
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        given = credentials.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        digest = hashlib.sha256(given.encode("utf-8", "surrogatepass")).digest()
        return hmac.compare_digest(digest, self._digest)


def read_key(file: Path | None, variable: str | None) -> ApiKey | None:
    """Reads the key from where the user says it is; none if neither is named.

    Args:
        file: A file with the key and nothing else.
        variable: Name of an environment variable.

    Raises:
        ConfigurationError: If both are named, or there is no key there.
    """
    if file is not None and variable is not None:
        raise ConfigurationError("--api-key-file and --api-key-env are both given; give one of the two")
    if file is not None:
        try:
            return ApiKey(file.read_text(encoding="utf-8").strip())
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"cannot read the API key from '{file}': {error}") from error
    if variable is not None:
        if variable not in os.environ:
            raise ConfigurationError(f"the environment variable '{variable}' of --api-key-env is not set; set it")
        return ApiKey(os.environ[variable].strip())
    return None
