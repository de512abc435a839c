from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurra.data.cleaning import clean_texts
from recurra.data.dataset import TextSplit
from recurra.data.encoding import encode_split, encode_texts, encode_windows
from recurra.data.vocabulary import SPECIAL_TOKENS, as_transformers, wordpiece

WORDS = ["good", "bad", "film", "un", "##friend", "##ly", "!"]
TEXTS = ["good film !", "unfriendly", "bad", "nothing known", "film " * 40, "!"]


@pytest.fixture
def tokenizer():
    return as_transformers(wordpiece({token: index for index, token in enumerate([*SPECIAL_TOKENS, *WORDS])}))


@pytest.fixture
def split() -> TextSplit:
    return TextSplit("train", TEXTS, np.arange(len(TEXTS)) % 2, [str(index) for index in range(len(TEXTS))])


ANY_TEXT = st.text(max_size=30) | st.lists(
    st.sampled_from(["good", "unfriendly", "x" * 120, "\x00", "\u6f22", "!"])
).map(" ".join)


@given(texts=st.lists(ANY_TEXT, max_size=6), max_length=st.integers(3, 12))
def test_any_text_becomes_the_tokens_that_it_has_alone(texts: list[str], max_length: int) -> None:
    tokenizer = as_transformers(wordpiece({token: index for index, token in enumerate([*SPECIAL_TOKENS, *WORDS])}))
    ids, offsets = encode_texts(clean_texts(texts), tokenizer, max_length)
    assert offsets[0] == 0 and offsets[-1] == len(ids)
    for start, end, text in zip(offsets, offsets[1:], texts, strict=False):
        row = ids[start:end].tolist()
        assert row == tokenizer(clean_texts([text])[0], truncation=True, max_length=max_length)["input_ids"]
        assert 2 <= len(row) <= max_length
        assert row[0] == tokenizer.cls_token_id and row[-1] == tokenizer.sep_token_id
        assert set(row) <= set(range(len(tokenizer)))


def test_equals_the_tokenizer_called_text_by_text(tokenizer, split: TextSplit, tmp_path: Path) -> None:
    encoded = encode_split(split, tokenizer, 10, tmp_path)
    assert len(encoded) == len(split)
    for index, text in enumerate(TEXTS):
        expected = tokenizer(text, truncation=True, max_length=10)["input_ids"]
        assert encoded[index]["input_ids"].tolist() == expected
        assert encoded[index]["labels"] == split.labels[index]
        assert encoded.lengths[index] == len(expected)
    assert encoded.lengths.max() == 10
    assert encoded[-1]["input_ids"].tolist() == encoded[len(split) - 1]["input_ids"].tolist()
    with pytest.raises(IndexError):
        encoded[len(split)]


def test_encoding_leaves_no_truncation_behind(tokenizer) -> None:
    encode_texts(TEXTS, tokenizer, 4)
    assert tokenizer.backend_tokenizer.truncation is None
    assert len(tokenizer("film " * 40)["input_ids"]) == 42


def test_only_a_text_longer_than_a_window_makes_windows(tokenizer) -> None:
    ids, offsets, counts = encode_windows(["film " * 4, "bad"], tokenizer, 6, 3)
    assert (offsets.tolist(), counts) == ([0, 6, 9], None) and ids.dtype == np.int32
    ids, offsets, counts = encode_windows(["bad", "film " * 5], tokenizer, 6, 3)
    assert (np.diff(offsets).tolist(), counts.tolist()) == ([3, 4, 5], [1, 2])


def test_a_huge_text_gives_the_same_ids(tokenizer) -> None:
    flat, offsets = encode_texts(["good film ! " * 40_000], tokenizer, 16)
    assert flat.tolist() == tokenizer("good film ! " * 50, truncation=True, max_length=16)["input_ids"]
    assert offsets.tolist() == [0, 16]


def test_the_cache_is_read_and_keyed_by_content(tokenizer, split, tmp_path: Path, monkeypatch) -> None:
    first = encode_split(split, tokenizer, 10, tmp_path)
    encode_split(split, tokenizer, 12, tmp_path)
    encode_split(split.select([0, 1]), tokenizer, 10, tmp_path)
    assert len(list(tmp_path.iterdir())) == 3

    def refuse(*_: object) -> None:
        raise AssertionError("tokenised again")

    monkeypatch.setattr("recurra.data.encoding.encode_texts", refuse)
    again = encode_split(split, tokenizer, 10, tmp_path)
    for name in ("input_ids", "offsets", "labels"):
        np.testing.assert_array_equal(getattr(again, name), getattr(first, name))


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "foreign"])
def test_a_damaged_cache_is_made_again(tokenizer, split, tmp_path: Path, damage: str, caplog) -> None:
    first = encode_split(split, tokenizer, 10, tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    flipped = whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:]
    path.write_bytes({"cut": whole[:-8], "flip": flipped, "empty": b"", "foreign": b"PK\x03\x04" * 50}[damage])
    with caplog.at_level(logging.WARNING):
        again = encode_split(split, tokenizer, 10, tmp_path)
    assert "damaged" in caplog.text
    np.testing.assert_array_equal(again.input_ids, first.input_ids)
    assert path.stat().st_size == len(whole)
    caplog.clear()
    encode_split(split, tokenizer, 10, tmp_path)
    assert not caplog.text


def test_a_cache_that_cannot_be_written_costs_only_time(tokenizer, split, tmp_path: Path, caplog) -> None:
    (tmp_path / "file").write_text("")
    encoded = encode_split(split, tokenizer, 10, tmp_path / "file" / "cache")
    assert len(encoded) == len(split)
    assert "not cached" in caplog.text
