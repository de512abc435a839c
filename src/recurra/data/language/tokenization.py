"""Tokenizers of language models, a byte-level BPE of their own text if none is given; tokens of texts, and samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from recurra.core.errors import ConfigurationError, DataError, unknown
from recurra.data.configuration import ALIASES, LINES, LanguageDataConfig
from recurra.data.encoding import Arrays, cache_path, cached_arrays, encode_texts
from recurra.data.language.corpora import SOURCES, LanguageDataset, RunningText
from recurra.data.tokenization import (
    TRAINED,
    PublicTokenizer,
    is_broken_tokenizer,
    tokenizer_from_folder,
    tokenizer_hash,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class EncodedText:
    """Tokens of a split's texts, laid end to end.

    Attributes:
        input_ids: Without anything between the texts, int32, ``(tokens,)``.
        offsets: Text ``i`` is ``input_ids[offsets[i]:offsets[i + 1]]``; int64, ``(texts + 1,)``.
        end_of_text: Token that ends a text and is read before the first one.
        words: One end-of-line a line included; what a perplexity by word divides by.
        num_bytes: In UTF-8, line ends included; what bits per byte divide by.
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


def texts_of(split: RunningText, config: LanguageDataConfig) -> RunningText:
    """Returns the texts of a split that a mode uses: all, or the long lines.

    Raises:
        DataError: If no line is long.
    """
    if config.mode != LINES:
        return split
    lines = split.long_lines(config.min_characters, config.max_lines if split.name == "train" else None)
    if not lines.texts:
        raise DataError(
            f"'{split.name}' has no line of more than {config.min_characters} characters, and mode '{LINES}' reads no "
            "other; give longer lines, or train with a lower min_characters"
        )
    return lines


def encode_for(
    split: RunningText, config: LanguageDataConfig, tokenizer: PreTrainedTokenizerFast, cache_dir: Path | None = None
) -> EncodedText:
    """Tokenises the texts of a split that a mode uses, or reads them from the cache; nothing is cut."""
    split = texts_of(split, config)
    key = f"text-{split.fingerprint}-{tokenizer_hash(tokenizer)}"
    names = ("input_ids", "offsets")

    def encode() -> Arrays:
        return dict(zip(names, encode_texts(split.texts, tokenizer, None), strict=True))

    arrays = cached_arrays(cache_path(key, cache_dir), names, encode)
    return EncodedText(**arrays, end_of_text=int(tokenizer.eos_token_id), words=split.words, num_bytes=split.num_bytes)


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
        whole = np.diff(encoded.offsets) + 2
        self.cut = int((whole > context).sum())
        stream = np.insert(encoded.joined, 0, np.int32(encoded.end_of_text))
        super().__init__(stream, encoded.offsets[:-1] + np.arange(len(encoded)), np.minimum(whole, context), context)


def make_samples(encoded: EncodedText, config: LanguageDataConfig) -> Samples:
    """Cuts encoded texts into training samples."""
    kind = LineSamples if config.mode == LINES else PackedBlocks
    return kind(encoded, config.context)


END_OF_TEXT = "<|endoftext|>"


def read_byte_bpe(vocabulary: Path, merges: Path) -> Tokenizer:
    """Reads a tokenizer in GPT-2's two files."""
    try:
        model = BPE.from_file(str(vocabulary), str(merges))
    except BaseException as error:
        if not is_broken_tokenizer(error):
            raise
        raise ConfigurationError(
            f"'{vocabulary}' and '{merges}' hold no tokenizer that can be read: {error}; give GPT-2's vocab.json and "
            "merges.txt"
        ) from error
    if model.token_to_id(END_OF_TEXT) is None:
        raise ConfigurationError(f"'{vocabulary}' has no {END_OF_TEXT}; give GPT-2's vocab.json and merges.txt")
    return _byte_level(model)


def train_byte_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Trains byte-level BPE, the same of the same texts. `END_OF_TEXT` has id 0, then come the 256 bytes."""
    tokenizer = _byte_level(BPE())
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        # All bytes, so that no text is unknown; sorted, because the alphabet comes out of a hash table.
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _byte_level(model: BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def as_language_tokenizer(backend: Tokenizer) -> PreTrainedTokenizerFast:
    """Wraps a byte-level tokenizer for Transformers; end-of-text also begins a text and fills up batches."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


GPT2 = PublicTokenizer("gpt2", "openai-community/gpt2", ("vocab.json", "merges.txt"))
# Spaces in a row and at the ends, marks after a space, a line end, letters beyond ASCII, what looks special.
_PROBE = "  Two  words , don 't \n<unk> naïve 漢字 🙂\t<|endoftext|> "


def load_language_tokenizer(
    config: LanguageDataConfig, dataset: LanguageDataset | None, data_root: Path | None
) -> PreTrainedTokenizerFast:
    """Returns the tokenizer that a configuration names, with an end-of-text token; a trained one sees train only."""
    if config.tokenizer == TRAINED:
        if dataset is None or "train" not in dataset.splits:
            raise ConfigurationError(
                f"tokenizer '{TRAINED}' needs the training split of '{config.name}', which is not here; "
                f"allowed: {GPT2.name}, or the path of a tokenizer folder"
            )
        return as_language_tokenizer(train_byte_bpe(dataset.splits["train"].texts, config.trained_vocab_size))
    if config.tokenizer in GPT2.names:
        return as_language_tokenizer(read_byte_bpe(*GPT2.paths(data_root)))
    return read_language_tokenizer(config.tokenizer)


def default_language_tokenizer(name: str, data_root: Path | None) -> str:
    """Returns the tokenizer to take where none was asked for."""
    return GPT2.name if GPT2.local(data_root) or ALIASES.get(name, name) in SOURCES else TRAINED


def read_language_tokenizer(folder: Path | str) -> PreTrainedTokenizerFast:
    """Reads a tokenizer from a folder made by ``save_pretrained``, or with GPT-2's two files."""
    path = Path(folder)
    if not (path / "tokenizer.json").is_file():
        files = [path / name for name in GPT2.files]
        if all(file.is_file() for file in files):
            return as_language_tokenizer(read_byte_bpe(*files))
        raise ConfigurationError(
            f"{unknown('tokenizer', str(folder), [GPT2.name, TRAINED])}, "
            f"or the path of a folder with tokenizer.json, or with {' and '.join(GPT2.files)}"
        )
    tokenizer = tokenizer_from_folder(path)
    if tokenizer.eos_token_id is None:
        raise ConfigurationError(
            f"the tokenizer in '{folder}' has no end-of-text token (eos_token); texts cannot be joined with it"
        )
    return tokenizer


def is_lossless(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether a text comes back from its tokens as it was, so that nats by word and by byte count all of it.

    Decided on one text with what tokenizers are known to drop: case, accents, spaces, unknown characters.
    """
    backend = tokenizer.backend_tokenizer
    as_text = backend.encode_special_tokens
    backend.encode_special_tokens = True
    try:
        ids = backend.encode(_PROBE, add_special_tokens=False).ids
    finally:
        backend.encode_special_tokens = as_text
    return bool(backend.decode(ids, skip_special_tokens=False) == _PROBE)
