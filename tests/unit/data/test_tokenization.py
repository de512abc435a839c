"""Tokenizers of files, folders, names and training rows; a broken one is one error, read within a bound."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, processors
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from recurra.core.errors import CheckpointError, ConfigurationError, UnavailableError
from recurra.data import tokenization
from recurra.data.configuration import DataConfig
from recurra.data.dataset import TextDataset, TextSplit
from recurra.data.tokenization import (
    SPECIAL_TOKENS,
    as_transformers,
    check_tokenizer,
    counting_tokenizer,
    default_tokenizer,
    describe_tokenizer,
    load_tokenizer,
    read_tokenizer,
    read_tokenizer_file,
    read_vocabulary,
    tokenizer_hash,
    train_wordpiece,
    with_fewer_pieces,
    wordpiece,
)
from tiny_encoder import write_tiny_encoder

TEXTS = ["the film is good", "the film is bad , really bad", "goodness gracious", "a bad idea", "filming is good"] * 4
VOCABULARY = [*SPECIAL_TOKENS, "hello", "world", "##s", "cafe", ","]


def dataset() -> TextDataset:
    def split(name: str, texts: list[str]) -> TextSplit:
        return TextSplit(name, texts, np.arange(len(texts)) % 2, [str(i) for i in range(len(texts))])

    splits = {"train": split("train", TEXTS), "test": split("test", ["zzyzx quux"] * 9)}
    return TextDataset("x", "split", ["a", "b"], splits, "test", ["test"])


@pytest.fixture
def vocabulary_file(tmp_path: Path) -> Path:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    return path


def test_a_vocabulary_file_gives_cls_text_sep_and_what_is_saved_the_same(vocabulary_file: Path, tmp_path: Path) -> None:
    tokenizer = read_tokenizer(vocabulary_file)
    assert tokenizer("Hello worlds, Café xyz")["input_ids"] == [2, 5, 6, 7, 9, 8, 1, 3]
    assert read_tokenizer(vocabulary_file.parent)("hello")["input_ids"] == [2, 5, 3]
    tokenizer.save_pretrained(tmp_path / "model")
    for again in (AutoTokenizer.from_pretrained(tmp_path / "model"), read_tokenizer(tmp_path / "model")):
        assert again("hello worlds")["input_ids"] == tokenizer("hello worlds")["input_ids"]
        assert tokenizer_hash(again) == tokenizer_hash(tokenizer)
        assert (again.pad_token_id, again.cls_token_id, again.sep_token_id) == (0, 2, 3)
    # How it was called last is no part of it.
    before = describe_tokenizer(tokenizer)
    tokenizer(["hello", "hello world"], truncation=True, max_length=3, padding=True)
    assert describe_tokenizer(tokenizer) == before
    assert (before["kind"], before["vocab_size"]) == ("WordPiece", len(VOCABULARY))


def test_trained_on_the_training_split_only() -> None:
    tokenizer = load_tokenizer(DataConfig(name="x", tokenizer="trained", trained_vocab_size=100), dataset(), None)
    assert [tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3, 4]
    assert len(tokenizer) <= 100
    assert tokenizer.unk_token_id not in tokenizer("The FILM is good")["input_ids"]
    assert tokenizer.unk_token_id in tokenizer("zzyzx")["input_ids"]
    # Ids are dense and within the size, of more letters than there is room for too.
    vocabulary = train_wordpiece([chr(0x4E00 + i) * 2 + " word" for i in range(500)], 64)
    assert sorted(vocabulary.values()) == list(range(len(vocabulary))) and len(vocabulary) <= 64


# Many merges are equally frequent: the order of ties is what could differ.
TRAINING = """
import json
from recurra.data.language.tokenization import train_byte_bpe
from recurra.data.tokenization import train_wordpiece
texts = [f"{a}{b} {b}{c}{a}" for a in "abcde" for b in "fghij" for c in "klm"]
print(json.dumps([train_wordpiece(texts, 80), json.loads(train_byte_bpe(texts, 320).to_str())], sort_keys=True))
"""


def test_a_folder_of_a_public_name_is_read_as_a_folder(
    vocabulary_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    read_tokenizer(vocabulary_file).save_pretrained("bert-base-uncased")
    assert len(read_tokenizer(Path("bert-base-uncased"))) == len(VOCABULARY)


def test_training_gives_the_same_tokenizers_in_every_process() -> None:
    # The library's own training does not: its hash tables are seeded anew in each process.
    outputs = [subprocess.check_output([sys.executable, "-c", TRAINING]) for _ in range(2)]
    assert outputs[0] == outputs[1] and len(outputs[0]) > 1000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hello\nworld\n", r"lacks \[PAD\], \[UNK\], \[CLS\], \[SEP\]"),
        (b"", "lacks"),
        (b"\xff\xfe", "not UTF-8"),
        ("\n".join([*SPECIAL_TOKENS, "a", "a"]).encode(), "remove repeats"),
    ],
)
def test_a_bad_vocabulary(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=message):
        read_vocabulary(path)
    with pytest.raises(ConfigurationError, match=message):
        check_tokenizer(DataConfig(name="x", tokenizer=str(path)), None)


def test_what_counts_and_what_is_checked_beforehand_is_what_is_loaded(vocabulary_file: Path, tmp_path: Path) -> None:
    read_tokenizer(vocabulary_file).save_pretrained(tmp_path / "saved")
    root = tmp_path / "root" / "tokenizers" / "bert-base-uncased"
    root.mkdir(parents=True)
    (root / "vocab.txt").write_bytes(vocabulary_file.read_bytes())
    files = {"trained": None, str(vocabulary_file): None, str(tmp_path): None, str(tmp_path / "saved"): None}
    for name, place in {**files, "bert-base-uncased": tmp_path / "root"}.items():
        config = DataConfig(name="x", tokenizer=name, trained_vocab_size=100)
        check_tokenizer(config, place)
        loaded = load_tokenizer(config, dataset(), place)
        counting = counting_tokenizer(name, TEXTS, 100, place)
        for text in ("Hello, worlds", "the film is good", ""):
            assert counting.encode(text).ids == loaded(text)["input_ids"]
    assert default_tokenizer("rows.csv", tmp_path / "root") == default_tokenizer("sst2", None) == "bert-base-uncased"
    assert default_tokenizer("rows.csv", tmp_path) == default_tokenizer("demo", None) == "trained"
    assert {default_tokenizer(name, None) for name in ("sst2", "yelp_reviews", "domains")} == {"bert-base-uncased"}


@pytest.mark.parametrize(
    ("file", "values", "said"),
    [
        ("tokenizer_config.json", {"tokenizer_class": ["a"]}, "holds no tokenizer that can be read"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"0": []}}, "holds no tokenizer that can be read"),
        ("tokenizer_config.json", {"model_max_length": "long"}, "holds no tokenizer that can be read"),
        ("tokenizer_config.json", {"name": "\ud800"}, "surrogates not allowed"),
        ("tokenizer.json", {"post_processor": None}, r"does not write \[CLS\]"),
        # To know the class of a tokenizer the library reads the model's configuration too.
        ("config.json", {"initializer_range": -7}, "initializer_range"),
        ("config.json", {"classifier_dropout": "../../etc/passwd"}, "classifier_dropout"),
    ],
)
def test_a_folder_with_settings_of_another_kind_is_one_line(
    file: str, values: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = write_tiny_encoder(tmp_path / "encoder") / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    with pytest.raises(ConfigurationError, match=said) as caught:
        read_tokenizer(path.parent)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("bert-base-uncased", UnavailableError, r"--data-root DIR .*DIR/tokenizers/bert-base-uncased/vocab.txt"),
        ("bert-base-uncase", ConfigurationError, r"unknown tokenizer .* \(did you mean 'bert-base-uncased'\?"),
    ],
)
def test_what_is_not_there_without_a_network_or_unknown(
    name: str, error: type[Exception], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    for read in (
        lambda config: load_tokenizer(config, dataset(), tmp_path),
        lambda config: check_tokenizer(config, tmp_path),
    ):
        with pytest.raises(error, match=said):
            read(DataConfig(name="x", tokenizer=name))


@pytest.mark.data
def test_the_released_vocabulary(data_root: Path) -> None:
    tokenizer = load_tokenizer(DataConfig(name="x"), dataset(), data_root)
    assert tokenizer("hello world")["input_ids"] == [101, 7592, 2088, 102]
    assert (len(tokenizer), tokenizer.pad_token_id) == (30_522, 0)


PIECES = {piece: index for index, piece in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "good"])}


def written(path: Path, change: Callable[[dict[str, Any]], object] = lambda _: None) -> Path:
    tokenizer = Tokenizer(WordPiece(PIECES, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    special = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=special)
    values = json.loads(tokenizer.to_str())
    change(values)
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


BROKEN: dict[str, Callable[[dict[str, Any]], object]] = {
    "without the unknown token": lambda values: values["model"]["vocab"].pop("[UNK]"),
    "of an unknown kind": lambda values: values["model"].update(type="Syllables"),
    # The library looks the token up, finds none, and panics.
    "with a panic": lambda values: values["post_processor"]["special_tokens"].pop("[SEP]"),
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN)
def test_what_its_library_does_with_a_broken_one_is_one_error(
    tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    path = written(tmp_path / "tokenizer.json")
    assert read_tokenizer_file(path, "").encode("a good").ids == [2, 4, 5, 3]
    written(path, change)
    with pytest.raises(CheckpointError, match=r"holds no tokenizer that can be read: .+; copy it again"):
        read_tokenizer_file(path, "copy it again")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}', encoding="utf-8")
    with pytest.raises(ConfigurationError, match="tokenizer"):
        read_tokenizer(tmp_path)


def test_what_is_no_file_of_a_sane_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="No such file"):
        read_tokenizer_file(tmp_path / "gone.json", "x")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(CheckpointError, match="utf-8"):
        read_tokenizer_file(tmp_path / "bytes.json", "x")
    os.mkfifo(tmp_path / "pipe.json")
    path = written(tmp_path / "large.json")
    monkeypatch.setattr(tokenization, "MOST_BYTES", 10)
    for name in (path, tmp_path / "pipe.json"):
        with pytest.raises(CheckpointError, match="no regular file of at most 10 bytes"):
            read_tokenizer_file(name, "x")


def test_a_token_beyond_the_vocabulary_outlives_the_loss_of_pieces() -> None:
    # transformers adds the mask that this vocabulary lacks behind its last piece.
    pieces = [*SPECIAL_TOKENS[:4], "a", "good", "film"]
    whole = as_transformers(wordpiece({piece: number for number, piece in enumerate(pieces)}))
    smaller, old = with_fewer_pieces(whole, np.array(whole("a good")["input_ids"], dtype=np.int32), None)
    assert old == [0, 1, 2, 3, 4, 5, 7] and (whole.mask_token_id, smaller.mask_token_id) == (7, 6)
    assert smaller("a good")["input_ids"] == [2, 4, 5, 3] and len(smaller) == 7


def test_processors_in_a_row_write_the_new_numbers() -> None:
    pieces = [*SPECIAL_TOKENS[:2], "film", *SPECIAL_TOKENS[2:], "a", "good"]
    whole = as_transformers(wordpiece({piece: number for number, piece in enumerate(pieces)}))
    backend = whole.backend_tokenizer
    backend.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), backend.post_processor])
    assert whole("a good")["input_ids"] == [3, 6, 7, 4]
    smaller, old = with_fewer_pieces(whole, np.array(whole("a good")["input_ids"], dtype=np.int32), None)
    assert [old[number] for number in smaller("a good")["input_ids"]] == [3, 6, 7, 4] and len(old) == 7
