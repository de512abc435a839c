"""Arrays on disk that were expensive to make: whole or absent, keyed by what they were made from."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from recurra.core.errors import StorageError
from recurra.core.files import atomic_path

logger = logging.getLogger(__name__)
CACHE_FORMAT = "recurra-tokens-1"

Arrays = dict[str, npt.NDArray[Any]]


def cache_path(key: str, cache_dir: Path | None) -> Path:
    """Where the arrays of a key lie; in ``~/.cache/recurra/tokens`` if no folder is given."""
    return (cache_dir or Path.home() / ".cache" / "recurra" / "tokens") / f"{key}.safetensors"


def read_arrays(path: Path, key: str, names: Sequence[str]) -> Arrays | None:
    """Returns the arrays, or None if there are none or the file is not whole (which is logged)."""
    if not path.exists():
        return None
    # numpy itself refuses shapes and kinds of numbers that the format allows.
    broken = (SafetensorError, OSError, ValueError, KeyError, TypeError)
    with contextlib.suppress(*broken), safe_open(path, framework="np") as file:
        metadata = file.metadata() or {}
        if metadata.get("format") == CACHE_FORMAT and metadata.get("key") == key:
            arrays = {name: file.get_tensor(name) for name in names}
            if _checksum(arrays) == metadata.get("sha256"):
                return arrays
    logger.warning("'%s' is damaged and is made again", path)
    return None


def write_arrays(path: Path, key: str, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Writes the arrays atomically; a cache that cannot be written costs time only, so that is logged, not raised."""
    metadata = {"format": CACHE_FORMAT, "key": key, "sha256": _checksum(arrays)}
    try:
        with atomic_path(path) as temporary:
            try:
                save_file(dict(arrays), temporary, metadata=metadata)
            except SafetensorError as error:
                raise StorageError(f"cannot write '{path}': {error}") from error
    except StorageError as error:
        logger.warning("tokenised rows were not cached: %s", error)


def _checksum(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()
