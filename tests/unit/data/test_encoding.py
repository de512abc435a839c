from __future__ import annotations

import dataclasses
import itertools
import logging
import math
from concurrent.futures import Future, ThreadPoolExecutor, wait
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from recurra.core.errors import CheckpointError
from recurra.data import encoding
from recurra.data.cleaning import clean_texts
from recurra.data.dataset import TextSplit
from recurra.data.encoding import encode_split, encode_texts, encode_windows
from recurra.data.tokenization import SPECIAL_TOKENS, as_transformers, train_wordpiece, wordpiece
from recurra.data.windows import pool_windows, recorded_reading, share_weights, window_bounds
from reviews import review_rows

WORDS = ["good", "bad", "film", "un", "##friend", "##ly", "!"]
TEXTS = ["good film !", "unfriendly", "bad", "nothing known", "film " * 40, "!", f"good{' ' * 60}" * 40]


def small_tokenizer():
    return as_transformers(wordpiece({token: index for index, token in enumerate([*SPECIAL_TOKENS, *WORDS])}))


tokenizer = pytest.fixture(small_tokenizer)


def split_of(texts: list[str]) -> TextSplit:
    return TextSplit("train", texts, np.arange(len(texts)) % 2, [str(row) for row in range(len(texts))])


@pytest.fixture
def split() -> TextSplit:
    return split_of(TEXTS)


ANY_TEXT = st.text(max_size=30) | st.lists(
    st.sampled_from(["good", "unfriendly", "x" * 120, "\x00", "\u6f22", "!"])
).map(" ".join)


@given(texts=st.lists(ANY_TEXT, max_size=6), max_length=st.integers(3, 12))
def test_any_text_becomes_the_tokens_that_it_has_alone(texts: list[str], max_length: int) -> None:
    tokenizer = small_tokenizer()
    ids, offsets = encode_texts(clean_texts(texts), tokenizer, max_length)
    assert offsets[0] == 0 and offsets[-1] == len(ids)
    for start, end, text in zip(offsets, offsets[1:], texts, strict=False):
        row = ids[start:end].tolist()
        assert row == tokenizer(clean_texts([text])[0], truncation=True, max_length=max_length)["input_ids"]
        assert 2 <= len(row) <= max_length
        assert row[0] == tokenizer.cls_token_id and row[-1] == tokenizer.sep_token_id
        assert set(row) <= set(range(len(tokenizer)))


def test_a_row_of_a_split_is_its_text_and_label(tokenizer, split: TextSplit, tmp_path: Path) -> None:
    encoded = encode_split(split, tokenizer, 10, tmp_path)
    expected = [tokenizer(text, truncation=True, max_length=10)["input_ids"] for text in TEXTS]
    assert [encoded[index]["input_ids"].tolist() for index in range(len(split))] == expected
    assert encoded.lengths.tolist() == [*map(len, expected)]
    assert [row["labels"] for row in encoded.__getitems__(range(len(encoded)))] == split.labels.tolist()
    assert encoded[-1]["input_ids"].tolist() == expected[-1]
    with pytest.raises(IndexError):
        encoded[len(split)]


def test_a_huge_text_gives_the_same_ids_and_leaves_no_truncation_behind(tokenizer) -> None:
    flat, offsets = encode_texts(["good film ! " * 40_000], tokenizer, 16)
    assert tokenizer.backend_tokenizer.truncation is None and len(tokenizer("film " * 40)["input_ids"]) == 42
    assert flat.tolist() == tokenizer("good film ! " * 50, truncation=True, max_length=16)["input_ids"]
    assert offsets.tolist() == [0, 16]


def test_a_thread_does_not_change_how_another_cuts(tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "good film " * 50
    wanted = [encode_texts([text], tokenizer, most)[0].tolist() for most in (8, 16)]
    shorten = encoding._shorten
    with ThreadPoolExecutor() as pool:
        others: list[Future[object]] = []

        def interrupted(text: str, max_length: int) -> str:
            if max_length == 8 and not others:
                others.append(pool.submit(encode_texts, [text], tokenizer, 16))
                wait(others, timeout=0.2)
            return shorten(text, max_length)

        monkeypatch.setattr(encoding, "_shorten", interrupted)
        assert encode_texts([text], tokenizer, 8)[0].tolist() == wanted[0]
        assert others[0].result()[0].tolist() == wanted[1]


def test_the_cache_is_read_and_keyed_by_content(tokenizer, split, tmp_path: Path, monkeypatch, caplog) -> None:
    first = encode_split(split, tokenizer, 10, tmp_path)
    encode_split(split, tokenizer, 12, tmp_path)
    encode_split(split.select([0, 1]), tokenizer, 10, tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
    # One that cannot be written, or even asked for, costs only time.
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "cache", tmp_path / ("x" * 300)):
        caplog.clear()
        encoded = encode_split(split, tokenizer, 10, folder)
        assert len(encoded) == len(split) and "not cached" in caplog.text
    # Nothing is tokenised again.
    monkeypatch.setattr("recurra.data.encoding.encode_texts", None)
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


REVIEWS = [text for text, _ in review_rows(30)]
TOKENIZER = as_transformers(wordpiece(train_wordpiece(REVIEWS, 200)))
LONG = [*REVIEWS[:6], "", "good " * 300, " ".join(REVIEWS[:3]), " ".join(REVIEWS), "fine [SEP] film " * 9]


def naive_windows(tokens: list[int], room: int, most: int) -> list[list[int]]:
    """The fewest windows, tried one number after the other; what does not fit in the most is cut."""
    tokens = tokens[: most * room]
    count = 1
    while count * room < len(tokens):
        count += 1
    windows: list[list[int]] = [[] for _ in range(count)]
    for number, token in enumerate(tokens, start=1):
        # In the window in whose share of the text the token ends.
        windows[math.ceil(Fraction(number * count, len(tokens))) - 1].append(token)
    return windows


@given(st.integers(0, 400), st.integers(1, 40))
def test_every_token_is_in_one_window_and_windows_are_the_fewest_and_alike(tokens: int, room: int) -> None:
    bounds = window_bounds(tokens, room)
    lengths = np.diff(bounds)
    assert bounds[0] == 0 and bounds[-1] == tokens
    assert len(lengths) == max(1, -(-tokens // room))
    assert lengths.max() <= room and np.ptp(lengths) <= 1 and (tokens == 0 or lengths.min() >= 1)


@pytest.mark.parametrize("pattern", ["[CLS] $A [SEP]", "[CLS] [CLS] $A", "$A [SEP]", "$A"])
@pytest.mark.parametrize(("max_length", "most"), [(8, 64), (3, 5), (24, 3)])
def test_rows_are_the_windows_written_out(pattern: str, max_length: int, most: int) -> None:
    tokenizer = Tokenizer.from_str(TOKENIZER.backend_tokenizer.to_str())
    special = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = TemplateProcessing(single=pattern, special_tokens=special)
    ids, offsets, counts = encode_windows(LONG, tokenizer, max_length, most)
    assert counts is not None
    rows = [ids[start:end].tolist() for start, end in itertools.pairwise(offsets)]
    empty = tokenizer.encode("").ids
    before = pattern.partition("$A")[0].count("[CLS]")
    wanted: list[list[int]] = []
    for text, count in zip(LONG, counts.tolist(), strict=True):
        whole = tokenizer.encode(text).ids
        body = whole[before : len(whole) - (len(empty) - before)]
        windows = naive_windows(body, max_length - len(empty), most)
        assert len(windows) == count
        wanted += [[*empty[:before], *window, *empty[before:]] for window in windows]
    assert rows == wanted


@settings(max_examples=30)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.data())
def test_pooling_and_weights_are_the_loops_written_out(counts: list[int], data: st.DataObject) -> None:
    dice = np.random.default_rng(data.draw(st.integers(0, 99)))
    values = dice.normal(size=(sum(counts), 3)).astype(np.float32)
    weights = dice.random(len(counts)).astype(np.float32) + 0.1
    weights /= weights.mean()
    pooled = pool_windows(values, np.array(counts))
    shared = share_weights(np.array(counts), weights)
    assert shared is not None
    at = 0
    for text, count in enumerate(counts):
        mean = sum(values[at + window].astype(float) for window in range(count)) / count
        np.testing.assert_allclose(pooled[text], mean, rtol=1e-6)
        # All windows of a text alike, and together what the text counts.
        scale = len(shared) / len(counts)
        np.testing.assert_allclose(shared[at : at + count], weights[text] / count * scale, rtol=1e-5)
        at += count
    assert shared.mean() == pytest.approx(1, rel=1e-5)
    assert share_weights(None, None) is None and pool_windows(values, None) is values


def test_a_split_in_windows_is_cached_apart_and_keeps_its_labels(tmp_path: Path) -> None:
    split = split_of(LONG)
    cut = encode_split(split, TOKENIZER, 8, tmp_path)
    first, again = (encode_split(split, TOKENIZER, 8, tmp_path, windows=4) for _ in range(2))
    assert len(list(tmp_path.iterdir())) == 2
    assert cut.window_counts is None and first.window_counts is not None
    for field in dataclasses.fields(first):
        one, other = getattr(first, field.name), getattr(again, field.name)
        assert one is other is None or np.array_equal(one, other), field.name
    assert np.array_equal(first.labels, np.repeat(split.labels, first.window_counts))
    assert np.array_equal(first.labels[first.text_rows], split.labels)
    both = first.followed_by(cut)
    assert np.array_equal(both.windows_of_texts, [*first.window_counts, *[1] * len(LONG)])
    # Texts that fit are read as without windows.
    short = encode_split(split.select(range(3)), TOKENIZER, 100, tmp_path, windows=4)
    whole = encode_split(split.select(range(3)), TOKENIZER, 100, tmp_path)
    assert short.window_counts is None and short.input_ids.tolist() == whole.input_ids.tolist()


def test_a_recorded_run_reads_what_its_configuration_says() -> None:
    assert recorded_reading({"data": {"max_length": 64, "windows": 4}}) == {"max_length": 64, "windows": 4}
    # Records from before there were windows do not name them.
    assert recorded_reading({"data": {"max_length": 128}}) == {"max_length": 128, "windows": 1}
    for data in (7, {}, {"max_length": "64"}, {"max_length": 0}, {"max_length": 64, "windows": None}):
        with pytest.raises(CheckpointError, match="does not say how much of a text the model reads"):
            recorded_reading({"data": data})
