"""Which tokenizer a run uses, and from where."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from recurra.core.errors import ConfigurationError, UnavailableError, did_you_mean
from recurra.core.hub import broken_folder_errors, hub_file
from recurra.core.tokenizer_files import PROBE, is_broken_tokenizer, read_tokenizer_text
from recurra.data.configuration import DataConfig
from recurra.data.dataset import TextDataset
from recurra.data.vocabulary import as_transformers, read_vocabulary, train_wordpiece, wordpiece

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BERT_UNCASED = "bert-base-uncased"
TRAINED = "trained"
_HUB_REPOSITORY = "google-bert/bert-base-uncased"
# Of a text, to train a tokenizer to count by.
_SAMPLED_CHARACTERS = 2_000
_LOCAL_PATH = Path("tokenizers") / BERT_UNCASED / "vocab.txt"
# Corpora of real text: their published figures belong to the public vocabulary.
_PUBLIC_CORPORA = frozenset(
    {"sst2", "yelp_polarity", "amazon_polarity", "yelp_reviews", "amazon_reviews", "domains", "domains_polarity"}
)


def load_tokenizer(config: DataConfig, dataset: TextDataset, data_root: Path | None) -> PreTrainedTokenizerFast:
    """Returns the tokenizer that a configuration names; it encodes ``[CLS] text [SEP]``.

    Raises:
        UnavailableError: If the public vocabulary is neither in the data root nor to be had.
    """
    if config.tokenizer == TRAINED:
        texts = dataset.splits["train"].texts
        return as_transformers(wordpiece(train_wordpiece(texts, config.trained_vocab_size)))
    if config.tokenizer in (BERT_UNCASED, _HUB_REPOSITORY):
        return as_transformers(wordpiece(read_vocabulary(_public_vocabulary(data_root))))
    return read_tokenizer(config.tokenizer)


def counting_tokenizer(name: str, texts: Sequence[str], vocab_size: int, data_root: Path | None) -> Tokenizer:
    """A tokenizer that counts as the one that a configuration names, without loading transformers."""
    if name == TRAINED:
        return wordpiece(train_wordpiece([text[:_SAMPLED_CHARACTERS] for text in texts], vocab_size))
    if name in (BERT_UNCASED, _HUB_REPOSITORY):
        return wordpiece(read_vocabulary(_public_vocabulary(data_root)))
    place = _find_tokenizer(name)
    if place.is_file():
        return wordpiece(read_vocabulary(place))
    with _readable(place):
        return Tokenizer.from_str(read_tokenizer_text(place / "tokenizer.json"))


def default_tokenizer(name: str, data_root: Path | None) -> str:
    """Returns the tokenizer to take where none was asked for."""
    if name in _PUBLIC_CORPORA or (data_root is not None and (data_root / _LOCAL_PATH).is_file()):
        return BERT_UNCASED
    return TRAINED


def check_tokenizer(config: DataConfig, data_root: Path | None) -> None:
    """Finds out whether `load_tokenizer` will succeed, without loading the heavy libraries."""
    if config.tokenizer == TRAINED:
        return
    if config.tokenizer in (BERT_UNCASED, _HUB_REPOSITORY):
        read_vocabulary(_public_vocabulary(data_root))
        return
    place = _find_tokenizer(config.tokenizer)
    if place.is_file():
        read_vocabulary(place)


def _public_vocabulary(data_root: Path | None) -> Path:
    """The data root's copy, else the hub's; the same file, so both give the same tokenizer and hash."""
    if data_root is not None and (data_root / _LOCAL_PATH).is_file():
        return data_root / _LOCAL_PATH
    try:
        return hub_file(_HUB_REPOSITORY, "vocab.txt")
    except UnavailableError as error:
        raise UnavailableError(
            f"the vocabulary of {BERT_UNCASED} cannot be had: {error}; give --data-root DIR (or RECURRA_DATA_ROOT) "
            f"where DIR/{_LOCAL_PATH} lies, or tokenizer=trained, or tokenizer=PATH of a vocab.txt"
        ) from error


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
        options = [BERT_UNCASED, TRAINED]
        raise ConfigurationError(
            f"unknown tokenizer '{path}'{did_you_mean(str(path), options)}; allowed: {', '.join(options)}, "
            "or the path of a folder with tokenizer.json or of a vocab.txt"
        )
    return place


def tokenizer_from_folder(folder: Path) -> PreTrainedTokenizerFast:
    """Reads what ``save_pretrained`` wrote into a folder, whatever kind of tokenizer it is."""
    from transformers import AutoTokenizer

    with _readable(folder):
        read_tokenizer_text(folder / "tokenizer.json")
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        tokenizer(list(PROBE))
        # Half of a surrogate pair among the settings can be read, and not be written again.
        json.dumps(tokenizer.init_kwargs, ensure_ascii=False, default=str).encode("utf-8")
        return tokenizer


@contextlib.contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Says in one line that a tokenizer cannot be read."""
    try:
        yield
    except BaseException as error:
        # What is not named here is a defect.
        if not is_broken_tokenizer(error) and not isinstance(error, broken_folder_errors()):
            raise
        reason = " ".join(str(error).split())[:200]
        raise ConfigurationError(f"'{folder}' holds no tokenizer that can be read: {reason}") from error


def _checked(tokenizer: PreTrainedTokenizerFast, folder: Path) -> PreTrainedTokenizerFast:
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigurationError(f"the tokenizer in '{folder}' has no tokenizer.json; save it as a fast tokenizer")
    if None in (tokenizer.pad_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id):
        raise ConfigurationError(f"the tokenizer in '{folder}' lacks [PAD], [CLS] or [SEP]; use a BERT-like tokenizer")
    ids = tokenizer("a")["input_ids"]
    if ids[0] != tokenizer.cls_token_id or ids[-1] != tokenizer.sep_token_id:
        raise ConfigurationError(f"the tokenizer in '{folder}' does not write [CLS] text [SEP]; use a BERT-like one")
    return tokenizer
