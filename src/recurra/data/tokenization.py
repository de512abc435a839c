"""WordPiece tokenizers: finds the one that a run uses, trains one, removes pieces, and identifies one by a hash."""

from __future__ import annotations

import hashlib
import itertools
import json
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece
from tokenizers.trainers import WordPieceTrainer

from recurra.core.errors import CheckpointError, ConfigurationError, UnavailableError, unknown
from recurra.core.hub import broken_folder_errors, hub_file

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from recurra.data.configuration import DataConfig
    from recurra.data.dataset import TextDataset

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MODEL_MAX_LENGTH = 512


def wordpiece(vocabulary: Mapping[str, int]) -> Tokenizer:
    """Returns BERT's uncased WordPiece for a vocabulary: lower-cased, accents stripped, ``[CLS] text [SEP]``."""
    tokenizer = Tokenizer(WordPiece(dict(vocabulary), unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.add_special_tokens([token for token in SPECIAL_TOKENS if token in vocabulary])
    return tokenizer


def read_vocabulary(path: Path | str) -> dict[str, int]:
    """Reads a ``vocab.txt``: one word piece a line, its id is the line number counted from 0."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigurationError(f"cannot read the vocabulary '{path}': {reason}; give a BERT vocab.txt") from error
    # Only line feeds separate: the released vocabulary holds pieces that str.splitlines would cut.
    pieces = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    missing = [token for token in SPECIAL_TOKENS[:4] if token not in vocabulary]
    if missing:
        raise ConfigurationError(
            f"the vocabulary '{path}' ({len(pieces)} lines) lacks {', '.join(missing)}; "
            "give a BERT vocab.txt, one word piece a line"
        )
    if len(vocabulary) != len(pieces):
        raise ConfigurationError(
            f"the vocabulary '{path}' has {len(pieces)} lines but {len(vocabulary)} different pieces; remove repeats"
        )
    return vocabulary


# The largest published tokenizers have 30 MiB.
MOST_BYTES = 256 * 2**20
# Some settings are read only for a text, and some only for a text with pieces that the vocabulary lacks.
PROBE = ("a", "zq \u8aad \U0001f40d")


def is_broken_tokenizer(error: BaseException) -> bool:
    """Whether the tokenizers library raises this for a broken file: a bare `Exception`, or a panic of Rust."""
    return type(error) is Exception or type(error).__name__ == "PanicException"


def read_tokenizer_text(path: Path) -> str:
    """The content of a ``tokenizer.json`` of at most `MOST_BYTES`."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
        raise CheckpointError(
            f"'{path}' is no regular file of at most {MOST_BYTES:,} bytes: not the tokenizer of a model; copy it again"
        )
    return path.read_bytes().decode("utf-8")


def read_tokenizer_file(path: Path, cure: str) -> Tokenizer:
    """Reads a tokenizer and tries it."""
    try:
        tokenizer = Tokenizer.from_str(read_tokenizer_text(path))
        tokenizer.encode_batch_fast(PROBE)
    except BaseException as error:
        if not is_broken_tokenizer(error) and not isinstance(error, OSError | ValueError):
            raise
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"'{path}' holds no tokenizer that can be read: {reason}; {cure}") from error
    return tokenizer


def train_wordpiece(texts: Sequence[str], vocab_size: int) -> dict[str, int]:
    """Trains a WordPiece vocabulary; the same texts give the same vocabulary."""
    tokenizer = wordpiece({token: index for index, token in enumerate(SPECIAL_TOKENS)})
    known = [*SPECIAL_TOKENS, *_alphabet(tokenizer, texts, vocab_size // 4)]
    # The library numbers single characters in the order of a hash table and breaks ties between merges by number, so
    # every run would give another vocabulary. Characters passed as known tokens keep their numbers in the list.
    trainer = WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=known, min_frequency=2, limit_alphabet=0, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return dict(tokenizer.get_vocab())


def _alphabet(tokenizer: Tokenizer, texts: Sequence[str], limit: int) -> list[str]:
    """The most frequent pieces of one character (``a`` and ``##a``), sorted; a single occurrence does not count."""
    counts: Counter[str] = Counter()
    for text in texts:
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text)):
            counts[word[0]] += 1
            counts.update(f"##{character}" for character in word[1:])
    frequent = sorted((piece for piece in counts if counts[piece] > 1), key=lambda piece: (-counts[piece], piece))
    alphabet = set(frequent[:limit])
    # A continuing piece is learned only if its character is also known as a first piece.
    alphabet |= {piece.removeprefix("##") for piece in alphabet}
    return sorted(alphabet)


def as_transformers(backend: Tokenizer) -> PreTrainedTokenizerFast:
    """Wraps a tokenizer for Transformers: ``save_pretrained`` and ``AutoTokenizer`` round trip, no pickle."""
    from transformers import PreTrainedTokenizerFast

    pad, unknown, cls, separator, mask = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=pad,
        unk_token=unknown,
        cls_token=cls,
        sep_token=separator,
        mask_token=mask,
        model_max_length=MODEL_MAX_LENGTH,
        model_input_names=["input_ids", "attention_mask"],
    )


def _state(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    # Both settings come from the last call and say nothing about the tokenizer.
    state["truncation"] = state["padding"] = None
    return state


def tokenizer_hash(tokenizer: PreTrainedTokenizerFast) -> str:
    """Hash of everything that decides the ids: vocabulary, normaliser, special tokens (16 hexadecimal digits)."""
    text = json.dumps(_state(tokenizer), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def describe_tokenizer(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Describes a tokenizer for the run record: ``kind`` of model, ``vocab_size``, ``hash``."""
    return {
        "kind": str(_state(tokenizer)["model"]["type"]),
        "vocab_size": len(tokenizer),
        "hash": tokenizer_hash(tokenizer),
    }


# Models whose pieces are alternatives: without one, other pieces write the text. Pieces of BPE are made of each other.
SEPARABLE = ("WordPiece", "Unigram")
_SPECIAL = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token", "bos_token", "eos_token")


def with_fewer_pieces(
    tokenizer: PreTrainedTokenizerFast, ids: npt.NDArray[np.int32], most: int | None
) -> tuple[PreTrainedTokenizerFast, list[int]]:
    """Returns a tokenizer with fewer pieces, and their old ids; texts that gave ``ids`` are written in the same pieces.

    Special tokens, single characters and the pieces of these texts stay. With ``most``, the commonest other pieces fill
    up to that number; if the texts have more, their rarest pieces go too. None keeps only the pieces in use.

    Raises:
        ConfigurationError: If pieces depend on each other, or ``most`` leaves no room for words.
    """
    state = _state(tokenizer)
    model = state["model"]
    if model["type"] not in SEPARABLE:
        raise ConfigurationError(
            f"the tokenizer is a {model['type']}, whose pieces depend on each other; only a {' or a '.join(SEPARABLE)} "
            "can lose some: leave the vocabulary as it is"
        )
    vocab = model["vocab"]
    own = dict(vocab) if model["type"] == "WordPiece" else {piece: index for index, (piece, _) in enumerate(vocab)}
    added = {token["content"]: token["id"] for token in state["added_tokens"]}
    # What was added to a finished tokenizer has numbers beyond the vocabulary, and stays beyond it.
    old = {**added, **own}
    pieces = _remaining_pieces(old, set(added), ids, most)
    numbers = {piece: number for number, piece in enumerate(pieces)}
    if model["type"] == "WordPiece":
        model["vocab"] = {piece: number for piece, number in numbers.items() if piece in own}
    else:
        unknown = vocab[model["unk_id"]][0]
        model["vocab"], model["unk_id"] = [vocab[own[piece]] for piece in pieces if piece in own], numbers[unknown]
    _renumber(state, numbers)
    special = {name: value for name in _SPECIAL if (value := getattr(tokenizer, name, None)) is not None}
    from transformers import PreTrainedTokenizerFast

    smaller = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)),
        model_max_length=tokenizer.model_max_length,
        model_input_names=["input_ids", "attention_mask"],
        **special,
    )
    return smaller, [old[piece] for piece in pieces]


def _remaining_pieces(
    vocabulary: Mapping[str, int], added: set[str], ids: npt.NDArray[np.int32], most: int | None
) -> list[str]:
    counts = np.bincount(ids, minlength=max(vocabulary.values()) + 1)
    text_of = {piece: piece.removeprefix("##").removeprefix("\u2581") for piece in vocabulary}
    always_kept = {piece for piece in vocabulary if piece in added or len(text_of[piece]) <= 1}
    ordered = sorted((piece for piece in vocabulary if piece not in always_kept), key=vocabulary.__getitem__)
    used = [piece for piece in ordered if counts[vocabulary[piece]]]
    used.sort(key=lambda piece: (-counts[vocabulary[piece]], vocabulary[piece]))
    if most is not None and most <= len(always_kept):
        raise ConfigurationError(
            f"{most:,} pieces are to be kept, but single characters and special tokens alone are {len(always_kept):,}; "
            f"allowed: more than that; the training rows use {len(always_kept) + len(used):,} with them"
        )
    room = len(used) if most is None else most - len(always_kept)
    letters = set().union(*(text_of[piece] for piece in vocabulary if counts[vocabulary[piece]]))
    # The lowest numbers are the pieces that were commonest in the text that the tokenizer was trained on.
    others = sorted(ordered, key=lambda piece: not letters.issuperset(text_of[piece]))
    return sorted([*always_kept, *itertools.islice(dict.fromkeys([*used, *others]), room)], key=vocabulary.__getitem__)


def _renumber(state: dict[str, Any], numbers: Mapping[str, int]) -> None:
    for token in state["added_tokens"]:
        token["id"] = numbers[token["content"]]
    processor = state["post_processor"] or {}
    for after in (processor, *processor.get("processors", ())):
        _renumber_processor(after, numbers)


def _renumber_processor(after: dict[str, Any], numbers: Mapping[str, int]) -> None:
    for token in after.get("special_tokens", {}).values():
        token["ids"] = [numbers[piece] for piece in token["tokens"]]
    for end in ("cls", "sep"):
        if isinstance(after.get(end), list):
            after[end] = [after[end][0], numbers[after[end][0]]]


TRAINED = "trained"


@dataclass(frozen=True)
class PublicTokenizer:
    """A tokenizer with a name, whose files are in the data root or on the hub."""

    name: str
    repository: str
    files: tuple[str, ...]

    @property
    def names(self) -> tuple[str, str]:
        """The names that a configuration may use for it."""
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
                f"the tokenizer {self.name} cannot be loaded: {error}; give --data-root DIR (or RECURRA_DATA_ROOT) "
                f"with DIR/tokenizers/{self.name}/{files}, or tokenizer={TRAINED}, or tokenizer=PATH"
            ) from error


BERT = PublicTokenizer("bert-base-uncased", "google-bert/bert-base-uncased", ("vocab.txt",))
# Characters of a text that are used to train a tokenizer for counting.
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
    return read_tokenizer(config.tokenizer, data_root)


def counting_tokenizer(name: str, texts: Sequence[str], vocab_size: int, data_root: Path | None) -> Tokenizer:
    """A tokenizer with the same counts as the one that a configuration names, without loading transformers."""
    if name == TRAINED:
        return wordpiece(train_wordpiece([text[:_SAMPLED_CHARACTERS] for text in texts], vocab_size))
    path = _find_tokenizer(name, data_root)
    if path.is_file():
        return wordpiece(read_vocabulary(path))
    return read_tokenizer_file(path / "tokenizer.json", "copy it again")


def default_tokenizer(name: str, data_root: Path | None) -> str:
    """Returns the name of the tokenizer to take by default."""
    return BERT.name if name in _PUBLIC_CORPORA or BERT.local(data_root) else TRAINED


def check_tokenizer(config: DataConfig, data_root: Path | None) -> None:
    """Raises if `load_tokenizer` would fail, without loading the heavy libraries."""
    if config.tokenizer != TRAINED:
        counting_tokenizer(config.tokenizer, (), 0, data_root)


def read_tokenizer(path: Path | str, data_root: Path | None = None) -> PreTrainedTokenizerFast:
    """Reads a tokenizer by its public name (a string), or from a folder of ``save_pretrained`` or a ``vocab.txt``."""
    path = _find_tokenizer(path, data_root)
    if path.is_file():
        return as_transformers(wordpiece(read_vocabulary(path)))
    tokenizer = tokenizer_from_folder(path)
    if None in (tokenizer.pad_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id):
        raise ConfigurationError(f"the tokenizer in '{path}' lacks [PAD], [CLS] or [SEP]; use a BERT-like tokenizer")
    ids = tokenizer("a")["input_ids"]
    if ids[0] != tokenizer.cls_token_id or ids[-1] != tokenizer.sep_token_id:
        raise ConfigurationError(f"the tokenizer in '{path}' does not write [CLS] text [SEP]; use a BERT-like one")
    return tokenizer


def _find_tokenizer(name: Path | str, data_root: Path | None) -> Path:
    """The folder with ``tokenizer.json``, or the vocabulary file, for a public name or a path."""
    path = BERT.paths(data_root)[0] if name in BERT.names else Path(name)
    if path.is_dir() and not (path / "tokenizer.json").exists():
        path = path / "vocab.txt"
    if not path.exists():
        raise ConfigurationError(
            f"{unknown('tokenizer', str(name), [BERT.name, TRAINED])}, or the path of a folder with tokenizer.json "
            "or of a vocab.txt"
        )
    return path


def tokenizer_from_folder(folder: Path) -> PreTrainedTokenizerFast:
    """Reads a fast tokenizer of any kind that ``save_pretrained`` wrote into a folder."""
    from transformers import AutoTokenizer

    try:
        read_tokenizer_text(folder / "tokenizer.json")
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        tokenizer(list(PROBE))
        # A setting with half of a surrogate pair can be read but not written again.
        json.dumps(tokenizer.init_kwargs, ensure_ascii=False, default=str).encode("utf-8")
    except BaseException as error:
        # Any other exception is a defect of ours.
        if not is_broken_tokenizer(error) and not isinstance(error, broken_folder_errors()):
            raise
        reason = " ".join(str(error).split())[:200]
        raise ConfigurationError(f"'{folder}' holds no tokenizer that can be read: {reason}") from error
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigurationError(f"the tokenizer in '{folder}' has no tokenizer.json; save it as a fast tokenizer")
    return tokenizer
