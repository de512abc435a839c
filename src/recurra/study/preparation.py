"""Tokenising a corpus or file ahead of its first training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset
from recurra.data.encoding import EncodedSplit, encode_split
from recurra.data.tokenization import load_tokenizer
from recurra.data.vocabulary import describe_tokenizer


def prepare_data(config: DataConfig, *, data_root: Path | None, cache_dir: Path | None) -> dict[str, Any]:
    """Loads, splits and tokenises data into the cache, where trainings find it.

    Args:
        config: What to prepare.
        data_root: Local copies of public data.
        cache_dir: Folder of tokenised rows; ``~/.cache/recurra/tokens`` if None.

    Returns:
        Plain JSON values: ``name``, ``protocol``, ``fingerprint``, ``tokenizer``, ``max_length``, and for each of
        ``splits`` its rows and tokens; ``cut`` counts the rows at the limit of tokens.
    """
    dataset = load_dataset(config, data_root)
    tokenizer = load_tokenizer(config, dataset, data_root)
    splits = {
        name: encode_split(split, tokenizer, config.max_length, cache_dir) for name, split in dataset.splits.items()
    }
    return {
        "name": dataset.name,
        "protocol": dataset.protocol,
        "fingerprint": dataset.fingerprint,
        "tokenizer": describe_tokenizer(tokenizer),
        "max_length": config.max_length,
        "splits": [_describe(name, encoded, config.max_length) for name, encoded in splits.items()],
    }


def _describe(name: str, encoded: EncodedSplit, limit: int) -> dict[str, Any]:
    lengths = encoded.lengths
    return {
        "name": name,
        "rows": len(encoded),
        "tokens": int(lengths.sum()),
        "mean_tokens": float(lengths.mean()),
        "longest_tokens": int(lengths.max()),
        "cut": int((lengths >= limit).sum()),
    }
