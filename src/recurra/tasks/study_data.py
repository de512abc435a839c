"""Machine and data of a study: one object that is passed on from the checks to the report."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import TypeAdapter

from recurra.core.configuration import content_hash
from recurra.core.errors import DataError
from recurra.core.sealed import describe_file
from recurra.data.configuration import DataConfig, LanguageDataConfig, RunData
from recurra.data.corpora import load_dataset
from recurra.data.dataset import TextDataset
from recurra.data.language.corpora import LanguageDataset, load_language_dataset
from recurra.data.tokenization import counting_tokenizer
from recurra.evaluation.audits.long_texts import Lengths, samples_of, token_lengths

# Keys that say how a model reads texts, and nothing about which texts these are.
_READING_KEYS = frozenset({"tokenizer", "max_length", "windows", "trained_vocab_size", "form_must_not_predict"})
# Longer data are not kept in memory beside the workers that train on them; values computed from them are.
MOST_CHARACTERS = 2**26
_T = TypeVar("_T")


@dataclass(frozen=True)
class Machine:
    """Where data lie, threads, whether to time: nothing that defines a run.

    Attributes:
        threads: Threads of the numeric library; 0 means all cores.
        latency: Whether to time the model at the end; a study times all its models side by side instead.
    """

    data_root: Path | None = None
    cache_dir: Path | None = None
    threads: int = 0
    latency: bool = True

    def to_json(self) -> str:
        """Plain form, to hand to a worker process."""
        return TypeAdapter(type(self)).dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Reads what `to_json` wrote."""
        return TypeAdapter(cls).validate_json(text)


class StudyData:
    """Rows, tokens, splits and audits of a study's data, each read or computed once in a process.

    Planning makes one and hands it on; a worker has one of its own.
    """

    def __init__(self, machine: Machine | None = None) -> None:
        self.machine = machine or Machine()
        self._known: dict[str, Any] = {}
        self._characters = 0

    def rows(self, config: DataConfig) -> TextDataset:
        """Labelled rows, split.

        Raises:
            RecurraError: If the data cannot be used.
        """
        return self._texts(config, lambda: load_dataset(config, self.machine.data_root))

    def text(self, config: LanguageDataConfig) -> LanguageDataset:
        """Running text, split.

        Raises:
            RecurraError: If the data cannot be used.
        """
        return self._texts(config, lambda: load_language_dataset(config, self.machine.data_root))

    def hold(self, config: DataConfig, dataset: TextDataset) -> None:
        """Stores rows that are in memory already."""
        self._known[self._key("texts", config)] = dataset
        self._known[self._key("files", config)] = None

    def refuse_changed(self, config: RunData, planned: str | None) -> None:
        """Refuses files that changed after a run was planned; rows that were in memory come from none.

        Args:
            planned: Hash of the files then; None if it is not known.

        Raises:
            DataError: If the files that texts were read from, or will be, have another hash.
        """
        if planned is None:
            return
        current = self.once("files", config, partial(file_hash, config))
        if current is not None and current != planned:
            names = " or ".join(f"'{name}'" for name in config.files)
            raise DataError(f"{names} was changed after the run was planned; start the same command again")

    def _texts(self, config: RunData, load: Callable[[], _T]) -> _T:
        key = self._key("texts", config)
        if key in self._known:
            return self._known[key]
        dataset: Any = load()
        self._known[self._key("files", config)] = file_hash(config)
        characters = sum(len(text) for split in dataset.splits.values() for text in split.texts)
        if characters + self._characters <= MOST_CHARACTERS:
            self._known[key] = dataset
            self._characters += characters
        return dataset

    def token_lengths(
        self, config: DataConfig, tokenizer: str, splits: Sequence[str] | None = None
    ) -> tuple[Mapping[str, Lengths], Any]:
        """Tokens of a sample of the texts of each split, and the tokenizer that counted them.

        Args:
            tokenizer: As `recurra.data.tokenization.counting_tokenizer` takes it.
            splits: Names of the splits to count; None counts all.
        """
        samples = self.once("samples", config, lambda: samples_of(self.rows(config)))
        vocab = config.trained_vocab_size

        read = partial(counting_tokenizer, tokenizer, samples["train"], vocab, self.machine.data_root)
        counting: Any = self.once(f"tokenizer {tokenizer} {vocab}", config, read)
        lengths = {}
        for name in splits or samples:
            count = partial(token_lengths, samples[name], counting)
            lengths[name] = self.once(f"lengths {name} {tokenizer} {vocab}", config, count)
        return lengths, counting

    def once(self, what: str, config: RunData, make: Callable[[], _T]) -> _T:
        """A value computed from data, under a name; it is made on the first request."""
        key = self._key(what, config)
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def _key(self, what: str, config: RunData) -> str:
        reading = _READING_KEYS if isinstance(config, DataConfig) else frozenset()
        keys = {key: value for key, value in config.plain().items() if key not in reading}
        return content_hash([what, type(config).__name__, keys])


def file_hash(data: RunData) -> str | None:
    """Hash of the files that a user's data come from, or none for a corpus by name."""
    paths = [Path(name) for name in data.files if Path(name).is_file()]
    return hash_of_files(paths) if paths else None


def hash_of_files(paths: Sequence[Path]) -> str:
    """Hash of the content of files, in their order."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(bytes.fromhex(describe_file(path).sha256))
    return digest.hexdigest()[:16]
