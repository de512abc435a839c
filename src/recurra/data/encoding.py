"""Tokenises texts once, and caches expensive arrays on disk, whole or absent, keyed by their sources."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from recurra.data.tokenization import tokenizer_hash
from recurra.data.windows import cut_windows, first_windows, most_tokens, share_weights

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast


logger = logging.getLogger(__name__)

# A tokenizer's truncation is set for each call, so threads must not share one meanwhile.
_settings = threading.Lock()

Arrays = dict[str, npt.NDArray[Any]]


def cache_path(key: str, cache_dir: Path | None) -> Path:
    """The file of a key's arrays; in ``~/.cache/recurra/tokens`` if no folder is given."""
    return (cache_dir or Path.home() / ".cache" / "recurra" / "tokens") / f"{key}.safetensors"


def cached_arrays(path: Path, names: Sequence[str], make: Callable[[], Arrays]) -> Arrays:
    """Reads arrays from the cache; if they are missing or damaged, they are made and written."""
    arrays = read_arrays(path, names)
    if arrays is None:
        arrays = make()
        write_arrays(path, arrays)
    return arrays


def read_arrays(path: Path, names: Sequence[str]) -> Arrays | None:
    """Returns the arrays, or None if there is no file, or it is damaged or cannot be read (which is logged)."""
    # The format allows shapes and types that numpy refuses.
    broken = (SafetensorError, OSError, ValueError, KeyError, TypeError)
    with contextlib.suppress(*broken):
        # A folder that may not be entered raises here.
        if not path.exists():
            return None
        with safe_open(path, framework="np") as file:
            arrays = {name: file.get_tensor(name) for name in names}
            if _checksum(arrays) == (file.metadata() or {}).get("sha256"):
                return arrays
    logger.warning("'%s' is damaged, or cannot be read, and is made again", path)
    return None


def write_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Writes the arrays atomically; a failure is logged and not raised, because it costs time only."""
    try:
        with atomic_path(path) as temporary:
            save_file(dict(arrays), temporary, metadata={"sha256": _checksum(arrays)})
    except StorageError as error:
        logger.warning("tokenised rows were not cached: %s", error)


def _checksum(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()


# The key of a row's weight in a batch.
WEIGHTS = "row_weights"
# Rows handed to the tokenizer at once, which bounds the memory of its intermediate objects.
_CHUNK_ROWS = 8192


@dataclass(frozen=True, eq=False)
class EncodedSplit:
    """Token ids of a split, laid end to end; a map-style dataset for a torch ``DataLoader``.

    Attributes:
        input_ids: int32, ``(tokens,)``; each row is ``[CLS] text [SEP]``, or a window of a text.
        offsets: Row ``i`` is ``input_ids[offsets[i]:offsets[i + 1]]``; int64, ``(rows + 1,)``.
        labels: int64, ``(rows,)``, or 0 and 1 a label, ``(rows, labels)``.
        weights: Weight of each row's loss in training, float32, ``(rows,)``; None weights all rows alike.
        window_counts: Windows of each text, int64, ``(texts,)``, whose rows follow each other; None if all have one.
    """

    input_ids: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32] | None = field(default=None, kw_only=True)
    window_counts: npt.NDArray[np.int64] | None = field(default=None, kw_only=True)

    def __len__(self) -> int:
        return len(self.labels)

    def followed_by(self, other: EncodedSplit) -> EncodedSplit:
        """Joins these texts and others, in this order; neither may have weights."""
        ids = np.concatenate([self.input_ids, other.input_ids])
        offsets = np.concatenate([self.offsets, self.offsets[-1] + other.offsets[1:]])
        counts = None
        if self.window_counts is not None or other.window_counts is not None:
            counts = np.concatenate([self.windows_of_texts, other.windows_of_texts])
        return EncodedSplit(ids, offsets, np.concatenate([self.labels, other.labels]), window_counts=counts)

    def weighed(self, weights: npt.NDArray[np.float32] | None) -> EncodedSplit:
        """These rows with the weight of each text, ``(texts,)``, shared among its windows; None weights all alike."""
        return replace(self, weights=share_weights(self.window_counts, weights))

    @cached_property
    def windows_of_texts(self) -> npt.NDArray[np.int64]:
        """Windows of each text, shape ``(texts,)``."""
        return np.ones(len(self), dtype=np.int64) if self.window_counts is None else self.window_counts

    @cached_property
    def text_rows(self) -> npt.NDArray[np.int64]:
        """The first row of each text, shape ``(texts,)``."""
        return first_windows(self.windows_of_texts)

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each row, shape ``(rows,)``."""
        return np.diff(self.offsets)

    def __getitem__(self, index: int) -> dict[str, Any]:
        index = range(len(self))[index]
        row: dict[str, Any] = {
            "input_ids": self.input_ids[self.offsets[index] : self.offsets[index + 1]],
            "labels": self.labels[index] if self.labels.ndim == 2 else int(self.labels[index]),
        }
        return row if self.weights is None else {**row, WEIGHTS: self.weights[index]}

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Returns the rows of a whole batch; the ``DataLoader`` prefers this method."""
        return [self[index] for index in indices]


def encode_texts(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerFast | Tokenizer, max_length: int | None
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Tokenises cleaned texts: flat ids ``(tokens,)`` and offsets ``(rows + 1,)``.

    Rows are cut at ``max_length`` tokens, special tokens included. With None, nothing is cut or added, and text that
    looks like a special token is read as plain text.
    """
    input_ids, offsets, _ = _encode_rows(texts, tokenizer, max_length)
    return input_ids, offsets


def added_tokens(tokenizer: PreTrainedTokenizerFast | Tokenizer) -> int:
    """Tokens that a tokenizer adds to each text."""
    return int(getattr(tokenizer, "backend_tokenizer", tokenizer).num_special_tokens_to_add(False))


def encode_windows(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerFast | Tokenizer, max_length: int, windows: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.int64] | None]:
    """Tokenises cleaned texts, long ones in windows, see `recurra.data.windows`.

    Returns:
        Flat ids ``(tokens,)``, offsets ``(rows + 1,)``, and windows of each text ``(texts,)``; None if all have one.
    """
    if windows == 1:
        return *encode_texts(texts, tokenizer, max_length), None
    added = added_tokens(tokenizer)
    most = most_tokens(max_length, windows, added)
    input_ids, offsets, before = _encode_rows(texts, tokenizer, most, longer_than=max_length)
    if before is None:
        return input_ids, offsets, None
    return cut_windows(input_ids, offsets, before=before, added=added, max_length=max_length)


def are_cut(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerFast | Tokenizer, max_length: int, windows: int
) -> npt.NDArray[np.bool_]:
    """Whether each cleaned text has more tokens than `encode_windows` takes, ``(texts,)``."""
    added = added_tokens(tokenizer)
    most = most_tokens(max_length, windows, added)
    # A token has at least one byte, and most texts have so few bytes that no tokens need be counted.
    long = np.array([len(text.encode()) > most - added for text in texts], dtype=np.bool_)
    _, offsets = encode_texts([texts[index] for index in np.flatnonzero(long).tolist()], tokenizer, most + 1)
    long[long] = np.diff(offsets) > most
    return long


def _encode_rows(
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerFast | Tokenizer,
    max_length: int | None,
    *,
    longer_than: int | None = None,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], int | None]:
    """Returns ids and offsets, and the special tokens before a text of more than ``longer_than`` tokens, if any is."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    whole_texts = max_length is None
    rows: list[npt.NDArray[np.int32]] = []
    offsets = np.zeros(len(texts) + 1, dtype=np.int64)
    before: int | None = None
    with _settings:
        as_text = backend.encode_special_tokens
        backend.no_padding()
        backend.no_truncation()
        if max_length is not None:
            backend.enable_truncation(max_length)
        backend.encode_special_tokens = whole_texts or as_text
        try:
            for start in range(0, len(texts), _CHUNK_ROWS):
                chunk: Sequence[str] = texts[start : start + _CHUNK_ROWS]
                if max_length is not None:
                    chunk = [_shorten(text, max_length) for text in chunk]
                if len(chunk) == 1:
                    # The library's threads would cost more than they save.
                    encodings = [backend.encode(chunk[0], add_special_tokens=not whole_texts)]
                else:
                    encodings = backend.encode_batch_fast(chunk, add_special_tokens=not whole_texts)
                encoded = [encoding.ids for encoding in encodings]
                offsets[start + 1 : start + 1 + len(chunk)] = [len(ids) for ids in encoded]
                rows.append(np.fromiter(itertools.chain.from_iterable(encoded), dtype=np.int32))
                if longer_than is not None and before is None:
                    long = (
                        encoding for encoding, ids in zip(encodings, encoded, strict=True) if len(ids) > longer_than
                    )
                    before = next((encoding.sequence_ids.index(0) for encoding in long), None)
        finally:
            # Both settings would else be saved into the model folder and change other people's inputs.
            backend.no_truncation()
            backend.encode_special_tokens = as_text
    flat = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int32)
    return flat, np.cumsum(offsets), before


def _shorten(text: str, max_length: int) -> str:
    """Drops words far beyond ``max_length``: each word gives a token unless the normaliser removes its characters."""
    if len(text) <= 64 * max_length:
        return text
    last = next(itertools.islice(re.finditer(r"\S+", text), 4 * max_length - 1, None), None)
    return text if last is None else text[: last.end()]


def encode_split(
    split: TextSplit,
    tokenizer: PreTrainedTokenizerFast,
    max_length: int,
    cache_dir: Path | None = None,
    *,
    windows: int = 1,
) -> EncodedSplit:
    """Tokenises a split, or reads it from the cache, keyed by split, tokenizer and lengths."""
    key = f"{split.fingerprint}-{tokenizer_hash(tokenizer)}-{max_length}" + (f"x{windows}" if windows > 1 else "")
    names = ["input_ids", "offsets", "labels", *(["window_counts"] if windows > 1 else [])]

    def encode() -> Arrays:
        input_ids, offsets, counts = encode_windows(split.texts, tokenizer, max_length, windows)
        counts = np.ones(len(split), dtype=np.int64) if counts is None else counts
        encoded: Arrays = {"input_ids": input_ids, "offsets": offsets, "labels": split.labels, "window_counts": counts}
        return {name: encoded[name] for name in names}

    arrays = cached_arrays(cache_path(key, cache_dir), names, encode)
    counts = arrays.pop("window_counts", None)
    if counts is None or (counts == 1).all():
        return EncodedSplit(**arrays)
    return EncodedSplit(**{**arrays, "labels": np.repeat(arrays["labels"], counts, axis=0)}, window_counts=counts)
