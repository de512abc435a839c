"""Reading a ``tokenizer.json``: within a bound, tried on texts, with one error for whatever its library does then."""

from __future__ import annotations

import stat
from pathlib import Path

from tokenizers import Tokenizer

from recurra.core.errors import CheckpointError

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
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
        raise CheckpointError(
            f"'{path}' is no regular file of at most {MOST_BYTES:,} bytes: not the tokenizer of a model; copy it again"
        )
    return path.read_bytes().decode("utf-8")


def read_tokenizer_file(path: Path, cure: str) -> Tokenizer:
    """Reads a tokenizer and tries it.

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
