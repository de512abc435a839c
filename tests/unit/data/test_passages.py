"""Passages hold all words of a text in their order; batches mix sources and never show what is held out."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from recurra.core.errors import DataError
from recurra.core.progress import Reporter
from recurra.data.batching import padded_length
from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset
from recurra.data.passages import PASSAGE_WORDS, Passages, PassageSource, cut_passages, read_passages

WORDS = st.lists(st.sampled_from(["one", "two.", "three", "end!", "what?"]), max_size=400)


@given(WORDS, st.lists(st.integers(1, 90), min_size=1, max_size=4))
def test_passages_hold_all_words_in_order(words: list[str], sizes: list[int]) -> None:
    passages = list(cut_passages(" ".join(words), itertools.cycle(sizes)))
    assert [word for passage in passages for word in passage.split()] == words
    assert all(0 < len(passage.split()) <= max(PASSAGE_WORDS) for passage in passages)


def test_a_book_without_ends_of_sentences_is_cut_in_linear_time() -> None:
    passages = list(cut_passages("word " * 500_000, itertools.cycle(PASSAGE_WORDS)))
    assert len(passages) == -(-500_000 // max(PASSAGE_WORDS)) and passages[-1].split() == ["word"] * 50


def source(name: str, rows: int) -> PassageSource:
    lengths = np.random.default_rng(rows).integers(3, 40, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return PassageSource(name, "", rows, 0, np.arange(offsets[-1], dtype=np.int32), offsets)


def test_batches_read_every_passage_in_turn_and_none_that_is_held_out() -> None:
    passages = Passages([source("large", 9000), source("small", 900)], seed=3)
    seen: Counter[tuple[int, int]] = Counter()
    for number in range(8):
        batches = passages.batches(number, 512)
        for batch in batches:
            width = padded_length(max(len(passages.row(*place)) for place in batch))
            assert width * len(batch) <= 512
            seen.update(batch)
        assert batches == Passages(passages.sources, seed=3).batches(number, 512)
    assert not set(seen) & set(passages.held_out)
    large, small = ([seen[place] for place in seen if place[0] == number] for number in (0, 1))
    # A large source is not read again before it was read to its end, and is ten times as long, not ten times as loud.
    assert max(large) - min(large) <= 1 and max(small) - min(small) <= 1
    assert 3.0 < sum(large) / sum(small) < 3.3


def test_what_is_held_out_of_one_source_is_learned_from_no_other() -> None:
    book = source("book", 400)
    # The same passages after another, so that others are held out.
    ids, offsets = np.append([-1, -2, -3], book.input_ids), np.append([0], book.offsets + 3)
    again = PassageSource("again", "", 401, 0, ids.astype(np.int32), offsets)
    passages = Passages([book, again], seed=0)
    learned = {passages.row(*place).tobytes() for batch in passages.batches(0, 512) for place in batch}
    assert len(learned) > 100 and not learned & {passages.row(*place).tobytes() for place in passages.held_out}
    # A single pair can teach.
    passages = Passages([source("tiny", 2)], seed=0)
    assert passages.held_out == [(0, 0)]
    assert {place for batch in passages.batches(0, 64) for place in batch} == {(0, 1)}


def word_tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(WordLevel({"[UNK]": 0, "[PAD]": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]")


def test_a_text_that_is_no_valid_unicode_is_refused_in_one_line_before_anything_is_tokenised(tmp_path: Path) -> None:
    book = tmp_path / "book.jsonl"
    for name, apart in ((str(book), []), ("demo", [str(book)])):
        book.write_text('{"text": "One sentence."}\n{"text": "half of \\ud800 a pair"}\n', encoding="utf-8")
        with pytest.raises(DataError, match=r"book\.jsonl' line 2: the text holds .*, half of a pair"):
            read_passages(
                [name], apart, word_tokenizer(), text_column="text", data_root=None, cache_dir=tmp_path,
                reporter=Reporter(quiet=True),
            )  # fmt: skip


def test_every_row_of_a_corpus_with_drawn_splits_stands_apart(tmp_path: Path) -> None:
    dataset = load_dataset(DataConfig(name="demo"), None)
    book = tmp_path / "book.csv"
    texts = [dataset.splits[part].texts[0] for part in ("train", "validation", "test")]
    rows = pd.DataFrame({"text": [*texts, "A sentence of nobody.", "One of nobody else.", "A third."]})
    rows.to_csv(book, index=False, encoding="utf-16-le")
    [taught] = read_passages(
        [str(book)], ["demo"], word_tokenizer(), text_column="text", encoding="utf-16-le", data_root=None,
        cache_dir=tmp_path, reporter=Reporter(quiet=True),
    )  # fmt: skip
    assert (taught.left_out, len(taught)) == (3, 3)
