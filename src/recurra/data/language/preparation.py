"""From a configuration to training samples and to what is evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from recurra.data.language.configuration import LINES, LanguageDataConfig
from recurra.data.language.corpora import load_language_dataset
from recurra.data.language.dataset import RunningText
from recurra.data.language.encoding import EncodedText, encode_running_text
from recurra.data.language.samples import LineSamples, PackedBlocks
from recurra.data.language.tokenization import is_lossless, load_language_tokenizer
from recurra.data.vocabulary import describe_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def texts_of(split: RunningText, config: LanguageDataConfig) -> RunningText:
    """Returns the texts that a mode takes of a split: all, or its long lines."""
    if config.mode != LINES:
        return split
    return split.long_lines(config.min_characters, config.max_lines if split.name == "train" else None)


def encode_for(
    split: RunningText,
    config: LanguageDataConfig,
    tokenizer: PreTrainedTokenizerFast,
    cache_dir: Path | None = None,
) -> EncodedText:
    """Tokenises what a mode takes of a split, whole; what is evaluated."""
    return encode_running_text(texts_of(split, config), tokenizer, cache_dir)


def make_samples(encoded: EncodedText, config: LanguageDataConfig) -> PackedBlocks | LineSamples:
    """Cuts encoded texts into training samples.

    Raises:
        DataError: If they give none.
    """
    kind = LineSamples if config.mode == LINES else PackedBlocks
    return kind(encoded, config.context)


def prepare_language_data(
    config: LanguageDataConfig, *, data_root: Path | None, cache_dir: Path | None
) -> dict[str, Any]:
    """Loads and tokenises text into the cache, where trainings find it.

    Args:
        config: What to prepare.
        data_root: Local copies of public data.
        cache_dir: Folder of tokenised texts; ``~/.cache/recurra/tokens`` if None.

    Returns:
        Plain JSON values: ``name``, ``mode``, ``context``, ``fingerprint``, ``tokenizer`` (with ``lossless``), and for
        each of ``splits`` its ``tokens`` (end-of-text included), ``words`` and ``bytes``; for train also its
        ``samples``, the ``dropped_tokens`` of ``packed`` and the ``cut`` samples of ``lines``. Other splits are
        evaluated whole.
    """
    dataset = load_language_dataset(config, data_root)
    tokenizer = load_language_tokenizer(config, dataset, data_root)
    return {
        "name": dataset.name,
        "mode": config.mode,
        "context": config.context,
        "fingerprint": dataset.fingerprint,
        "tokenizer": {**describe_tokenizer(tokenizer), "lossless": is_lossless(tokenizer)},
        "splits": [
            _describe(name, encode_for(split, config, tokenizer, cache_dir), config)
            for name, split in dataset.splits.items()
        ],
        "notes": dataset.notes,
    }


def _describe(name: str, encoded: EncodedText, config: LanguageDataConfig) -> dict[str, Any]:
    samples = make_samples(encoded, config) if name == "train" else None
    return {
        "name": name,
        "tokens": len(encoded.joined),
        "words": encoded.words,
        "bytes": encoded.num_bytes,
        "samples": None if samples is None else len(samples),
        "dropped_tokens": getattr(samples, "dropped_tokens", 0),
        "cut": getattr(samples, "cut", 0),
    }
