"""Running text tokenised once and cached by content."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from recurra.core.errors import ConfigurationError
from recurra.data.encoding import cache_path, encode_texts, read_arrays, write_arrays
from recurra.data.language.dataset import RunningText
from recurra.data.vocabulary import tokenizer_hash

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class EncodedText:
    """Tokens of a split's texts, laid end to end.

    Attributes:
        input_ids: Token ids of all texts, without anything between them, int32, shape ``(tokens,)``.
        offsets: Text ``i`` is ``input_ids[offsets[i]:offsets[i + 1]]``; int64, shape ``(texts + 1,)``.
        end_of_text: Token that ends a text and is read before the first one.
        words: Words of the split, one end-of-line a line included; what a perplexity by word divides by.
        num_bytes: Bytes of the split in UTF-8, line ends included; what bits per byte divide by.
    """

    input_ids: Tokens
    offsets: npt.NDArray[np.int64]
    end_of_text: int
    words: int
    num_bytes: int

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def joined(self) -> Tokens:
        """All texts, each followed by the end-of-text token, int32, shape ``(tokens + texts,)``."""
        # Inserted before the place where the next text begins, which for an empty text is that of the one after it.
        return np.insert(self.input_ids, self.offsets[1:], np.int32(self.end_of_text))

    def text(self, index: int) -> Tokens:
        """The tokens of one text and the end-of-text token."""
        start, end = self.offsets[index : index + 2]
        return np.append(self.input_ids[start:end], np.int32(self.end_of_text))


def encode_running_text(
    split: RunningText, tokenizer: PreTrainedTokenizerFast, cache_dir: Path | None = None
) -> EncodedText:
    """Tokenises the texts of a split, or reads them from the cache; nothing is cut.

    The cache is keyed by the split's fingerprint and the tokenizer's hash. A damaged file is made again.

    Args:
        split: The texts; `RunningText.long_lines` gives those of the mode ``lines``.
        tokenizer: From `recurra.data.language.tokenization.load_language_tokenizer`.
        cache_dir: Folder of the cache; ``~/.cache/recurra/tokens`` if None.

    Raises:
        ConfigurationError: If the tokenizer has no end-of-text token.
    """
    if tokenizer.eos_token_id is None:
        raise ConfigurationError("the tokenizer has no end-of-text token (eos_token); texts cannot be joined with it")
    key = f"text-{split.fingerprint}-{tokenizer_hash(tokenizer)}"
    path = cache_path(key, cache_dir)
    arrays = read_arrays(path, key, ("input_ids", "offsets"))
    if arrays is None:
        input_ids, offsets = encode_texts(split.texts, tokenizer, None)
        arrays = {"input_ids": input_ids, "offsets": offsets}
        write_arrays(path, key, arrays)
    return EncodedText(**arrays, end_of_text=int(tokenizer.eos_token_id), words=split.words, num_bytes=split.num_bytes)
