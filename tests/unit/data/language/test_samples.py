from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recurra.core.errors import DataError
from recurra.data.language.preparation import IGNORED, LanguageCollator, LineSamples, PackedBlocks
from recurra.data.language.tokenization import EncodedText

END = 0


def encoded(texts: list[list[int]]) -> EncodedText:
    lengths = [len(text) for text in texts]
    return EncodedText(
        input_ids=np.array([token for text in texts for token in text], dtype=np.int32),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        end_of_text=END,
        words=1,
        num_bytes=1,
    )


TEXTS = st.lists(st.lists(st.integers(1, 9), max_size=9), min_size=1, max_size=9)


@given(texts=TEXTS, context=st.integers(2, 7))
def test_blocks_are_the_joined_texts_without_the_remainder(texts: list[list[int]], context: int) -> None:
    stream = [token for text in texts for token in [*text, END]]
    if len(stream) < context:
        with pytest.raises(DataError, match=f"has {len(stream)} tokens, which do not fill one block of {context}"):
            PackedBlocks(encoded(texts), context)
        return
    blocks = PackedBlocks(encoded(texts), context)
    rows = [row["input_ids"].tolist() for row in blocks.__getitems__(range(len(blocks)))]
    assert [token for row in rows for token in row] == stream[: len(rows) * context]
    assert blocks.dropped_tokens == len(stream) - len(rows) * context < context
    assert blocks.lengths.tolist() == [context] * len(rows)


@given(texts=TEXTS, context=st.integers(2, 7))
def test_lines_begin_and_end_with_end_of_text_and_are_cut(texts: list[list[int]], context: int) -> None:
    lines = LineSamples(encoded(texts), context)
    expected = [[END, *text, END][:context] for text in texts]
    assert [row["input_ids"].tolist() for row in lines.__getitems__(range(len(lines)))] == expected
    assert lines.lengths.tolist() == [len(row) for row in expected]
    assert lines.cut == sum(len(text) + 2 > context for text in texts)


@given(texts=TEXTS, context=st.integers(2, 13))
def test_labels_count_what_is_predicted_and_nothing_else(texts: list[list[int]], context: int) -> None:
    lines = LineSamples(encoded(texts), context)
    batch = LanguageCollator(END, context)(list(lines))
    width = batch["input_ids"].shape[1]
    assert width <= context
    mask = batch.get("attention_mask", torch.ones_like(batch["input_ids"]))
    for row, length in enumerate(lines.lengths.tolist()):
        # End-of-text is both padding and a token to predict: only the length tells them apart.
        assert batch["input_ids"][row].tolist() == lines[row]["input_ids"].tolist() + [END] * (width - length)
        assert batch["labels"][row].tolist() == (
            [IGNORED, *lines[row]["input_ids"].tolist()[1:]] + [IGNORED] * (width - length)
        )
        assert mask[row].tolist() == [1] * length + [0] * (width - length)
    assert int((batch["labels"] != IGNORED).sum()) == int((lines.lengths - 1).sum())


def test_blocks_need_no_mask() -> None:
    blocks = PackedBlocks(encoded([[1, 2, 3, 4, 5], [6, 7]]), 3)
    batch = LanguageCollator(END, 3)(list(blocks))
    assert set(batch) == {"input_ids", "labels"}
    assert batch["labels"].tolist() == [[-100, 2, 3], [-100, 5, END], [-100, 7, END]]


def test_no_lines() -> None:
    with pytest.raises(DataError, match="lower min_characters"):
        LineSamples(encoded([]), 4)
