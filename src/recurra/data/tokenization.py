"""Which tokenizer a run uses, and from where."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from recurra.core.errors import ConfigurationError, UnavailableError, did_you_mean
from recurra.core.hub import broken_folder_errors, hub_file
from recurra.data.configuration import DataConfig
from recurra.data.dataset import TextDataset
from recurra.data.vocabulary import (
    PROBE,
    as_transformers,
    is_broken_tokenizer,
    read_tokenizer_file,
    read_tokenizer_text,
    read_vocabulary,
    train_wordpiece,
    wordpiece,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TRAINED = "trained"


@dataclass(frozen=True)
class PublicTokenizer:
    """One with a name, whose files lie in the data root or on the hub."""

    name: str
    repository: str
    files: tuple[str, ...]

    @property
    def names(self) -> tuple[str, str]:
        """What a configuration may call it."""
        return self.name, self.repository

    def local(self, data_root: Path | None) -> list[Path]:
        """Its files in the data root; none if one is missing."""
        paths = [data_root / "tokenizers" / self.name / name for name in self.files] if data_root is not None else []
        return paths if all(path.is_file() for path in paths) else []

    def paths(self, data_root: Path | None) -> list[Path]:
        """The data root's copy, else the hub's: the same files, so both give the same tokenizer and hash."""
        try:
            return self.local(data_root) or [hub_file(self.repository, name) for name in self.files]
        except UnavailableError as error:
            files = self.files[0] if len(self.files) == 1 else f"{{{','.join(self.files)}}}"
            raise UnavailableError(
                f"the tokenizer {self.name} cannot be had: {error}; give --data-root DIR (or RECURRA_DATA_ROOT) with "
                f"DIR/tokenizers/{self.name}/{files}, or tokenizer={TRAINED}, or tokenizer=PATH"
            ) from error


BERT = PublicTokenizer("bert-base-uncased", "google-bert/bert-base-uncased", ("vocab.txt",))
# Of a text, to train a tokenizer to count by.
_SAMPLED_CHARACTERS = 2_000
# Corpora of real text: their published figures belong to the public vocabulary.
_PUBLIC_CORPORA = frozenset(
    {"sst2", "yelp_polarity", "amazon_polarity", "yelp_reviews", "amazon_reviews", "domains", "domains_polarity"}
)


def load_tokenizer(config: DataConfig, dataset: TextDataset, data_root: Path | None) -> PreTrainedTokenizerFast:
    """Returns the tokenizer that a configuration names; it encodes ``[CLS] text [SEP]``."""
    if config.tokenizer == TRAINED:
        texts = dataset.splits["train"].texts
        return as_transformers(wordpiece(train_wordpiece(texts, config.trained_vocab_size)))
    if config.tokenizer in BERT.names:
        return as_transformers(wordpiece(read_vocabulary(*BERT.paths(data_root))))
    return read_tokenizer(config.tokenizer)


def counting_tokenizer(name: str, texts: Sequence[str], vocab_size: int, data_root: Path | None) -> Tokenizer:
    """A tokenizer that counts as the one that a configuration names, without loading transformers."""
    if name == TRAINED:
        return wordpiece(train_wordpiece([text[:_SAMPLED_CHARACTERS] for text in texts], vocab_size))
    if name in BERT.names:
        return wordpiece(read_vocabulary(*BERT.paths(data_root)))
    place = _find_tokenizer(name)
    if place.is_file():
        return wordpiece(read_vocabulary(place))
    return read_tokenizer_file(place / "tokenizer.json", "copy it again")


def default_tokenizer(name: str, data_root: Path | None) -> str:
    """Returns the tokenizer to take where none was asked for."""
    return BERT.name if name in _PUBLIC_CORPORA or BERT.local(data_root) else TRAINED


def check_tokenizer(config: DataConfig, data_root: Path | None) -> None:
    """Finds out whether `load_tokenizer` will succeed, without loading the heavy libraries."""
    if config.tokenizer != TRAINED:
        counting_tokenizer(config.tokenizer, (), 0, data_root)


def read_tokenizer(path: Path | str) -> PreTrainedTokenizerFast:
    """Reads a tokenizer from a folder made by ``save_pretrained``, or from a ``vocab.txt``."""
    place = _find_tokenizer(path)
    if place.is_file():
        return as_transformers(wordpiece(read_vocabulary(place)))
    return _checked(tokenizer_from_folder(place), place)


def _find_tokenizer(path: Path | str) -> Path:
    """The folder with ``tokenizer.json``, or the vocabulary file, that a path means."""
    place = Path(path)
    if place.is_dir() and not (place / "tokenizer.json").exists():
        place = place / "vocab.txt"
    if not place.exists():
        options = [BERT.name, TRAINED]
        raise ConfigurationError(
            f"unknown tokenizer '{path}'{did_you_mean(str(path), options)}; allowed: {', '.join(options)}, "
            "or the path of a folder with tokenizer.json or of a vocab.txt"
        )
    return place


def tokenizer_from_folder(folder: Path) -> PreTrainedTokenizerFast:
    """Reads what ``save_pretrained`` wrote into a folder, whatever kind of fast tokenizer it is."""
    from transformers import AutoTokenizer

    try:
        read_tokenizer_text(folder / "tokenizer.json")
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        tokenizer(list(PROBE))
        # Half of a surrogate pair among the settings can be read, and not be written again.
        json.dumps(tokenizer.init_kwargs, ensure_ascii=False, default=str).encode("utf-8")
    except BaseException as error:
        # What is not named here is a defect.
        if not is_broken_tokenizer(error) and not isinstance(error, broken_folder_errors()):
            raise
        reason = " ".join(str(error).split())[:200]
        raise ConfigurationError(f"'{folder}' holds no tokenizer that can be read: {reason}") from error
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigurationError(f"the tokenizer in '{folder}' has no tokenizer.json; save it as a fast tokenizer")
    return tokenizer


def _checked(tokenizer: PreTrainedTokenizerFast, folder: Path) -> PreTrainedTokenizerFast:
    if None in (tokenizer.pad_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id):
        raise ConfigurationError(f"the tokenizer in '{folder}' lacks [PAD], [CLS] or [SEP]; use a BERT-like tokenizer")
    ids = tokenizer("a")["input_ids"]
    if ids[0] != tokenizer.cls_token_id or ids[-1] != tokenizer.sep_token_id:
        raise ConfigurationError(f"the tokenizer in '{folder}' does not write [CLS] text [SEP]; use a BERT-like one")
    return tokenizer
