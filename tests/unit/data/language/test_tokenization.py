from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from recurra.core.errors import ConfigurationError, DataError, UnavailableError
from recurra.data import tokenization
from recurra.data.batching import IGNORED, LanguageCollator
from recurra.data.configuration import LanguageDataConfig
from recurra.data.language.corpora import LanguageDataset, RunningText
from recurra.data.language.tokenization import (
    END_OF_TEXT,
    EncodedText,
    LineSamples,
    PackedBlocks,
    as_language_tokenizer,
    default_language_tokenizer,
    encode_for,
    is_lossless,
    load_language_tokenizer,
    read_byte_bpe,
    read_language_tokenizer,
    train_byte_bpe,
)
from recurra.data.tokenization import tokenizer_hash

TEXTS = ["the film is good , the best film", "a bad film , the worst", "filming the good and the bad"] * 4


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return as_language_tokenizer(train_byte_bpe(TEXTS, 300))


@pytest.fixture
def files(tokenizer, tmp_path: Path) -> Path:
    tokenizer.backend_tokenizer.model.save(str(tmp_path))
    return tmp_path


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_comes_back(tokenizer, text: str) -> None:
    backend = tokenizer.backend_tokenizer
    backend.encode_special_tokens = True
    assert backend.decode(backend.encode(text).ids, skip_special_tokens=False) == text
    backend.encode_special_tokens = False


def test_a_trained_one_has_end_of_text_the_bytes_and_merges(tokenizer) -> None:
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id) == (0, 0, 0)
    assert 257 < len(tokenizer) <= 300
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))
    assert len(tokenizer(" film")["input_ids"]) == 1
    # It sees train only.
    splits = {"train": RunningText("train", TEXTS), "test": RunningText("test", ["zzyzx quux " * 9] * 9)}
    config = LanguageDataConfig(name="x", tokenizer="trained", trained_vocab_size=400)
    trained = load_language_tokenizer(config, LanguageDataset("x", "line", splits), None)
    assert tokenizer_hash(trained) == tokenizer_hash(as_language_tokenizer(train_byte_bpe(TEXTS, 400)))
    with pytest.raises(ConfigurationError, match="needs the training split of 'x'"):
        load_language_tokenizer(config, LanguageDataset("x", "line", {"test": splits["test"]}), None)


def test_two_files_and_a_saved_folder_give_the_same_tokenizer(tokenizer, files: Path, tmp_path: Path) -> None:
    read = read_language_tokenizer(files)
    tokenizer.save_pretrained(tmp_path / "saved")
    saved = read_language_tokenizer(tmp_path / "saved")
    auto = AutoTokenizer.from_pretrained(tmp_path / "saved")
    for other in (read, saved, auto):
        assert other(TEXTS[0])["input_ids"] == tokenizer(TEXTS[0])["input_ids"]
        assert other.eos_token_id == 0
    assert tokenizer_hash(saved) == tokenizer_hash(tokenizer)
    # Older releases of Transformers take out spaces before marks unless the folder says otherwise.
    written = json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text())
    assert written["clean_up_tokenization_spaces"] is False


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.json", "[1, 2]", "Bad vocabulary json file"),
        ("vocab.json", "{", "hold no tokenizer that can be read"),
        ("merges.txt", "#version: 0.2\na b c\n", "invalid at line 1"),
        ("merges.txt", "#version: 0.2\nzq qz\n", "Token `zq` out of vocabulary"),
    ],
)
def test_damaged_files(files: Path, name: str, content: str, message: str) -> None:
    (files / name).write_text(content)
    with pytest.raises(ConfigurationError, match=message):
        read_byte_bpe(files / "vocab.json", files / "merges.txt")


def test_unknown_and_unfit_ones(tokenizer, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"did you mean 'gpt2'\?"):
        read_language_tokenizer("gpt-2")
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    words = PreTrainedTokenizerFast(tokenizer_object=backend)
    words.save_pretrained(tmp_path)
    with pytest.raises(ConfigurationError, match="has no end-of-text token"):
        read_language_tokenizer(tmp_path)
    assert not is_lossless(words) and is_lossless(tokenizer)
    assert not tokenizer.backend_tokenizer.encode_special_tokens


def test_the_public_files_are_read_from_the_root_or_the_hub(
    tokenizer, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def hub_file(repository: str, name: str) -> Path:
        asked.append((repository, name))
        return files / name

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UnavailableError, match=r"DIR/tokenizers/gpt2/{vocab.json,merges.txt}"):
        load_language_tokenizer(LanguageDataConfig(name="x"), None, tmp_path)
    monkeypatch.setattr(tokenization, "hub_file", hub_file)
    root = tmp_path / "root"
    (root / "tokenizers" / "gpt2").mkdir(parents=True)
    for name in ("gpt2", "openai-community/gpt2"):
        fetched = load_language_tokenizer(LanguageDataConfig(name="x", tokenizer=name), None, root)
        assert fetched(TEXTS[0])["input_ids"] == tokenizer(TEXTS[0])["input_ids"]
    assert asked == [("openai-community/gpt2", name) for name in ("vocab.json", "merges.txt")] * 2
    assert default_language_tokenizer("notes.txt", root) == default_language_tokenizer("notes.txt", None) == "trained"
    assert {default_language_tokenizer(name, None) for name in ("wikitext-2-v1", "wikitext-2")} == {"gpt2"}
    for name in ("vocab.json", "merges.txt"):
        (files / name).rename(root / "tokenizers" / "gpt2" / name)
    local = load_language_tokenizer(LanguageDataConfig(name="x", tokenizer="gpt2"), None, root)
    assert tokenizer_hash(local) == tokenizer_hash(fetched) and len(asked) == 4
    assert default_language_tokenizer("notes.txt", root) == "gpt2"


@pytest.mark.data
def test_the_released_one(data_root: Path) -> None:
    released = load_language_tokenizer(LanguageDataConfig(name="x"), None, data_root)
    assert released("Hello world")["input_ids"] == [15496, 995]
    assert (len(released), released.eos_token_id, released.eos_token) == (50_257, 50_256, END_OF_TEXT)
    # "  naïve" and the like as GPT-2's own code encodes them: two spaces, bytes beyond ASCII, a clitic, digits.
    assert released.decode(released("It's  naïve, 漢字 1234!\n")["input_ids"]) == "It's  naïve, 漢字 1234!\n"
    assert is_lossless(released)


LINES_OF_TEXT = ["", "the film is good", "", "", f"the {END_OF_TEXT} film", "naïve 漢字\nsecond line", ""]


def test_the_joined_tokens_are_the_texts_each_with_its_end(tokenizer, tmp_path: Path) -> None:
    split = RunningText("train", LINES_OF_TEXT)
    encoded = encode_for(split, LanguageDataConfig(name="x"), tokenizer, tmp_path / "a")
    ends = np.flatnonzero(encoded.joined == encoded.end_of_text)
    # As many ends as texts, though one text spells the token out.
    assert len(ends) == len(LINES_OF_TEXT) == len(encoded)
    backend = tokenizer.backend_tokenizer
    parts = np.split(encoded.joined, ends + 1)[:-1]
    assert [backend.decode(part[:-1].tolist(), skip_special_tokens=False) for part in parts] == LINES_OF_TEXT
    assert all(np.array_equal(encoded.text(index), part) for index, part in enumerate(parts))
    assert (encoded.words, encoded.num_bytes) == (split.words, split.num_bytes)
    # What a tokenizer adds around a text is left out.
    adding = as_language_tokenizer(Tokenizer.from_str(backend.to_str()))
    adding.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END_OF_TEXT} $A", special_tokens=[(END_OF_TEXT, 0)]
    )
    again = encode_for(split, LanguageDataConfig(name="x"), adding, tmp_path / "b")
    np.testing.assert_array_equal(again.input_ids, encoded.input_ids)


END = 0


def encoded_text(texts: list[list[int]]) -> EncodedText:
    ids = np.array([token for text in texts for token in text], dtype=np.int32)
    return EncodedText(ids, np.cumsum([0, *map(len, texts)]), end_of_text=END, words=1, num_bytes=1)


TOKEN_LISTS = st.lists(st.lists(st.integers(1, 9), max_size=9), min_size=1, max_size=9)


@given(texts=TOKEN_LISTS, context=st.integers(2, 7))
def test_blocks_are_the_joined_texts_without_the_remainder(texts: list[list[int]], context: int) -> None:
    stream = [token for text in texts for token in [*text, END]]
    if len(stream) < context:
        with pytest.raises(DataError, match=f"has {len(stream)} tokens, which do not fill one block of {context}"):
            PackedBlocks(encoded_text(texts), context)
        return
    blocks = PackedBlocks(encoded_text(texts), context)
    rows = [row["input_ids"].tolist() for row in blocks.__getitems__(range(len(blocks)))]
    assert [token for row in rows for token in row] == stream[: len(rows) * context]
    assert blocks.dropped_tokens == len(stream) - len(rows) * context < context
    assert blocks.lengths.tolist() == [context] * len(rows)


@given(texts=TOKEN_LISTS, context=st.integers(2, 13))
def test_lines_stand_between_ends_of_text_are_cut_and_have_what_is_predicted_as_labels(
    texts: list[list[int]], context: int
) -> None:
    lines = LineSamples(encoded_text(texts), context)
    rows = [[END, *text, END][:context] for text in texts]
    assert [row["input_ids"].tolist() for row in lines.__getitems__(range(len(lines)))] == rows
    assert lines.lengths.tolist() == [*map(len, rows)]
    assert lines.cut == sum(len(text) + 2 > context for text in texts)
    batch = LanguageCollator(END, context)(list(lines))
    width = batch["input_ids"].shape[1]
    assert width <= context
    # End-of-text is both padding and a token to predict: only the length tells them apart.
    assert batch["input_ids"].tolist() == [row + [END] * (width - len(row)) for row in rows]
    assert batch["labels"].tolist() == [[IGNORED, *row[1:], *[IGNORED] * (width - len(row))] for row in rows]
    mask = batch.get("attention_mask", torch.ones_like(batch["input_ids"]))
    assert mask.tolist() == [[1] * len(row) + [0] * (width - len(row)) for row in rows]


def test_blocks_need_no_mask() -> None:
    blocks = PackedBlocks(encoded_text([[1, 2, 3, 4, 5], [6, 7]]), 3)
    batch = LanguageCollator(END, 3)(list(blocks))
    assert set(batch) == {"input_ids", "labels"}
    assert batch["labels"].tolist() == [[-100, 2, 3], [-100, 5, END], [-100, 7, END]]
