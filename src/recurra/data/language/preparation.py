"""Turns a configuration into training samples and into text for evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from recurra.core.errors import DataError
from recurra.data.batching import pad_rows
from recurra.data.configuration import LINES, LanguageDataConfig
from recurra.data.language.corpora import RunningText
from recurra.data.language.tokenization import (
    EncodedText,
    Tokens,
    encode_running_text,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


IGNORED = -100


class Samples:
    """Rows of a stream of tokens; a map-style dataset that can return a whole batch at once to the ``DataLoader``.

    ``lengths`` are the tokens of each sample, ``(samples,)``.
    """

    dropped_tokens = cut = 0

    def __init__(
        self, stream: Tokens, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], context: int
    ) -> None:
        self._stream, self._starts, self.lengths, self.context = stream, starts, lengths, context

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Tokens]:
        start = self._starts[range(len(self))[index]]
        return {"input_ids": self._stream[start : start + self.lengths[index]]}

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Tokens]]:
        return [self[index] for index in indices]


class PackedBlocks(Samples):
    """Texts joined by end-of-text and cut in blocks of ``context`` tokens; the remainder is dropped."""

    def __init__(self, encoded: EncodedText, context: int) -> None:
        stream = encoded.joined
        blocks, self.dropped_tokens = divmod(len(stream), context)
        if not blocks:
            raise DataError(
                f"the text has {len(stream)} tokens, which do not fill one block of {context}; "
                f"set context to at most {len(stream)}, or give more text"
            )
        super().__init__(stream, np.arange(blocks) * context, np.full(blocks, context, dtype=np.int64), context)


class LineSamples(Samples):
    """One sample a text, between two end-of-texts so that its first token is predicted too; cut at ``context``."""

    def __init__(self, encoded: EncodedText, context: int) -> None:
        if not len(encoded):
            raise DataError("no line is long enough for a sample; lower min_characters, or give more text")
        whole = np.diff(encoded.offsets) + 2
        self.cut = int((whole > context).sum())
        stream = np.insert(encoded.joined, 0, np.int32(encoded.end_of_text))
        super().__init__(stream, encoded.offsets[:-1] + np.arange(len(encoded)), np.minimum(whole, context), context)


class LanguageCollator:
    """Pads rows on the right; labels are the tokens themselves, or `IGNORED` where nothing is to be predicted.

    Padding and the first token of a row are ignored. A model shifts the labels and never predicts the first token, but
    the Trainer would count it when it weighs the batches of an accumulated step. Padding is found by the rows' lengths,
    so its token may be end-of-text.
    """

    def __init__(self, pad_token_id: int, context: int) -> None:
        self.pad_token_id = pad_token_id
        self.context = context

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Returns ``input_ids`` and ``labels``, int64, ``(batch, tokens)``, and with padding ``attention_mask``."""
        tokens, inside = pad_rows([row["input_ids"] for row in rows], self.pad_token_id, longest=self.context)
        labels = np.where(inside, tokens, IGNORED)
        labels[:, 0] = IGNORED
        batch = {"input_ids": torch.from_numpy(tokens), "labels": torch.from_numpy(labels)}
        if not inside.all():
            batch["attention_mask"] = torch.from_numpy(inside.astype(np.int64))
        return batch


def texts_of(split: RunningText, config: LanguageDataConfig) -> RunningText:
    """Returns the texts of a split that a mode uses: all, or the long lines."""
    if config.mode != LINES:
        return split
    return split.long_lines(config.min_characters, config.max_lines if split.name == "train" else None)


def encode_for(
    split: RunningText,
    config: LanguageDataConfig,
    tokenizer: PreTrainedTokenizerFast,
    cache_dir: Path | None = None,
) -> EncodedText:
    """Tokenises the texts of a split that a mode uses, uncut, as evaluation needs them."""
    return encode_running_text(texts_of(split, config), tokenizer, cache_dir)


def make_samples(encoded: EncodedText, config: LanguageDataConfig) -> Samples:
    """Cuts encoded texts into training samples."""
    kind = LineSamples if config.mode == LINES else PackedBlocks
    return kind(encoded, config.context)
