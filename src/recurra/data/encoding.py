"""Texts tokenised once and cached by content."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from recurra.core.errors import StorageError
from recurra.core.files import atomic_path
from recurra.data.dataset import TextSplit
from recurra.data.vocabulary import tokenizer_hash

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

logger = logging.getLogger(__name__)
CACHE_FORMAT = "recurra-tokens-1"
# Rows handed to the tokenizer at a time: bounds the memory that its intermediate objects take.
_CHUNK_ROWS = 8192


@dataclass(frozen=True, eq=False)
class EncodedSplit:
    """Token ids of a split, laid end to end; a map-style dataset for a torch ``DataLoader``.

    Attributes:
        input_ids: Token ids of all rows, int32, shape ``(tokens,)``; each row is ``[CLS] text [SEP]``.
        offsets: Row ``i`` is ``input_ids[offsets[i]:offsets[i + 1]]``; int64, shape ``(rows + 1,)``.
        labels: Label of each row, int64, shape ``(rows,)``.
    """

    input_ids: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each row, shape ``(rows,)``."""
        return np.diff(self.offsets)

    def __getitem__(self, index: int) -> dict[str, Any]:
        index = range(len(self))[index]
        return {
            "input_ids": self.input_ids[self.offsets[index] : self.offsets[index + 1]],
            "labels": int(self.labels[index]),
        }

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Rows of a whole batch at once; the ``DataLoader`` calls it if it is there."""
        return [self[index] for index in indices]


def encode_texts(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerFast | Tokenizer, max_length: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Tokenises cleaned texts.

    Args:
        texts: Cleaned texts.
        tokenizer: Any fast tokenizer, or one of the tokenizers library itself.
        max_length: Longest row in tokens, special tokens included; what is beyond is cut.

    Returns:
        Flat ids ``(tokens,)`` and offsets ``(rows + 1,)``.
    """
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    rows: list[npt.NDArray[np.int32]] = []
    offsets = np.zeros(len(texts) + 1, dtype=np.int64)
    backend.no_padding()
    backend.enable_truncation(max_length)
    try:
        for start in range(0, len(texts), _CHUNK_ROWS):
            chunk = [_shorten(text, max_length) for text in texts[start : start + _CHUNK_ROWS]]
            encoded = [encoding.ids for encoding in backend.encode_batch_fast(chunk)]
            offsets[start + 1 : start + 1 + len(chunk)] = [len(ids) for ids in encoded]
            rows.append(np.fromiter(itertools.chain.from_iterable(encoded), dtype=np.int32))
    finally:
        # Left on, truncation would be saved into the model folder and cut other people's inputs.
        backend.no_truncation()
    flat = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int32)
    return flat, np.cumsum(offsets)


def _shorten(text: str, max_length: int) -> str:
    """Drops words far beyond ``max_length`` before the tokenizer works through them.

    A word gives at least one token (unless the normaliser removes all of its characters, hence the margin of four), so
    the words that are kept fill the row.
    """
    if len(text) <= 64 * max_length:
        return text
    return " ".join(text.split(" ", 4 * max_length)[: 4 * max_length])


def encode_split(
    split: TextSplit, tokenizer: PreTrainedTokenizerFast, max_length: int, cache_dir: Path | None = None
) -> EncodedSplit:
    """Tokenises a split, or reads it from the cache.

    The cache is keyed by the split's fingerprint, the tokenizer's hash and ``max_length``. A damaged file is made
    again; a cache that cannot be written costs time only and is logged.

    Args:
        split: Cleaned rows.
        tokenizer: From `recurra.data.tokenization.load_tokenizer`.
        max_length: Longest row in tokens, special tokens included.
        cache_dir: Folder of the cache; ``~/.cache/recurra/tokens`` if None.
    """
    key = f"{split.fingerprint}-{tokenizer_hash(tokenizer)}-{max_length}"
    path = (cache_dir or Path.home() / ".cache" / "recurra" / "tokens") / f"{key}.safetensors"
    cached = _read_cache(path, key)
    if cached is not None and np.array_equal(cached.labels, split.labels):
        return cached
    input_ids, offsets = encode_texts(split.texts, tokenizer, max_length)
    encoded = EncodedSplit(input_ids=input_ids, offsets=offsets, labels=split.labels)
    try:
        _write_cache(path, key, encoded)
    except StorageError as error:
        logger.warning("tokenised rows were not cached: %s", error)
    return encoded


def _checksum(tensors: dict[str, npt.NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(np.ascontiguousarray(tensors[name]).tobytes())
    return digest.hexdigest()


def _write_cache(path: Path, key: str, encoded: EncodedSplit) -> None:
    tensors: dict[str, npt.NDArray[Any]] = {
        "input_ids": encoded.input_ids,
        "offsets": encoded.offsets,
        "labels": encoded.labels,
    }
    metadata = {"format": CACHE_FORMAT, "key": key, "sha256": _checksum(tensors)}
    with atomic_path(path) as temporary:
        try:
            save_file(tensors, temporary, metadata=metadata)
        except SafetensorError as error:
            raise StorageError(f"cannot write '{path}': {error}") from error


def _read_cache(path: Path, key: str) -> EncodedSplit | None:
    """The cached rows, or None if there are none or the file is not whole."""
    if not path.exists():
        return None
    with contextlib.suppress(SafetensorError, OSError), safe_open(path, framework="np") as file:
        metadata = file.metadata() or {}
        if metadata.get("format") == CACHE_FORMAT and metadata.get("key") == key:
            tensors = {name: file.get_tensor(name) for name in ("input_ids", "offsets", "labels")}
            if _checksum(tensors) == metadata.get("sha256"):
                return EncodedSplit(**tensors)
    logger.warning("'%s' is damaged and is made again", path)
    return None
