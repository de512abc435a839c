"""The rows that are timed: SST-2 where the data root has it, else rows of the same lengths, made up.

The prepared corpus is in a folder, because every competitor reads it in a process of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import load_file, save_file

from benchmarks import lengths
from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset
from recurra.data.encoding import EncodedSplit, encode_split
from recurra.data.tokenization import SPECIAL_TOKENS, as_transformers, load_tokenizer, read_tokenizer, wordpiece

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MAX_LENGTH = 128
VOCAB_SIZE = 30_522
MADE_UP = "made-up words at SST-2's lengths (benchmarks/lengths.py): no --data-root with SST-2 was given"


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus, in a folder: ``train.safetensors``, ``test.safetensors``, ``texts.json``, ``tokenizer/``."""

    folder: Path

    @property
    def train(self) -> EncodedSplit:
        """Tokenised training rows of the official protocol."""
        return EncodedSplit(**load_file(self.folder / "train.safetensors"))

    @property
    def test(self) -> EncodedSplit:
        """Tokenised test sentences."""
        return EncodedSplit(**load_file(self.folder / "test.safetensors"))

    @property
    def texts(self) -> list[str]:
        """Whole sentences, as they come."""
        return json.loads((self.folder / "texts.json").read_text(encoding="utf-8"))

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer of the rows."""
        return read_tokenizer(str(self.folder / "tokenizer"))


def prepare(data_root: Path | None, folder: Path) -> str:
    """Tokenises SST-2 of ``data_root``, or makes up rows, and writes them to ``folder``; says what they are."""
    return _made_up(folder) if data_root is None else _real(data_root, folder)


def chunks(texts: Sequence[str], sentences: int, count: int) -> list[list[str]]:
    """Cuts so many sentences in random order into chunks; if the texts are fewer, they come again in turn."""
    order = np.random.default_rng(0).permutation(np.resize(np.arange(len(texts)), sentences))
    return [[texts[index] for index in part] for part in np.array_split(order, count)]


def _real(data_root: Path, folder: Path) -> str:
    config = DataConfig(name="sst2", protocol="official", max_length=MAX_LENGTH)
    dataset = load_dataset(config, data_root)
    tokenizer = load_tokenizer(config, dataset, data_root)
    encoded = {name: encode_split(dataset.splits[name], tokenizer, MAX_LENGTH) for name in ("train", "test")}
    texts = [text for name in ("test", "validation", "held_out") for text in dataset.splits[name].texts]
    _write(folder, encoded, texts, tokenizer)
    return f"SST-2, official protocol, {len(encoded['train']):,} training rows; {len(texts):,} different sentences"


def _made_up(folder: Path) -> str:
    rng = np.random.default_rng(0)
    words = [f"word{index}" for index in range(VOCAB_SIZE - len(SPECIAL_TOKENS))]
    vocabulary = {piece: index for index, piece in enumerate([*SPECIAL_TOKENS, *words])}
    tokenizer = as_transformers(wordpiece(vocabulary))
    encoded = {"train": _rows(lengths.TRAIN, vocabulary, rng), "test": _rows(lengths.TEST, vocabulary, rng)}
    rows = encoded["test"]
    first_word = len(SPECIAL_TOKENS)
    texts = [" ".join(words[token - first_word] for token in rows[i]["input_ids"][1:-1]) for i in range(len(rows))]
    _write(folder, encoded, texts, tokenizer)
    return MADE_UP


def _rows(counts: tuple[int, ...], vocabulary: dict[str, int], rng: np.random.Generator) -> EncodedSplit:
    row_lengths = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    offsets = np.concatenate([[0], np.cumsum(row_lengths)]).astype(np.int64)
    # Word frequencies as in a language: the n-th word has weight 1 / n.
    weights = 1 / np.arange(1, lengths.REACHED + 1)
    input_ids = rng.choice(lengths.REACHED, size=int(offsets[-1]), p=weights / weights.sum()) + len(SPECIAL_TOKENS)
    input_ids[offsets[:-1]], input_ids[offsets[1:] - 1] = vocabulary["[CLS]"], vocabulary["[SEP]"]
    labels = rng.integers(0, 2, len(row_lengths))
    return EncodedSplit(input_ids=input_ids.astype(np.int32), offsets=offsets, labels=labels)


def _write(
    folder: Path, encoded: dict[str, EncodedSplit], texts: list[str], tokenizer: PreTrainedTokenizerFast
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, split in encoded.items():
        arrays = {"input_ids": split.input_ids, "offsets": split.offsets, "labels": split.labels}
        save_file(arrays, folder / f"{name}.safetensors")
    (folder / "texts.json").write_text(json.dumps(texts, ensure_ascii=False), encoding="utf-8")
    tokenizer.save_pretrained(folder / "tokenizer")
