from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import processors

from recurra.data.language.corpora import RunningText
from recurra.data.language.tokenization import END_OF_TEXT, as_language_tokenizer, encode_running_text, train_byte_bpe

TEXTS = ["", "the film is good", "", "", f"the {END_OF_TEXT} film", "naïve 漢字\nsecond line", ""]


@pytest.fixture(scope="module")
def tokenizer():
    return as_language_tokenizer(train_byte_bpe(["the film is good , the best film"] * 4, 280))


def test_the_joined_tokens_are_the_texts_each_with_its_end(tokenizer, tmp_path: Path) -> None:
    split = RunningText("train", TEXTS)
    encoded = encode_running_text(split, tokenizer, tmp_path)
    ends = np.flatnonzero(encoded.joined == encoded.end_of_text)
    # As many ends as texts, though one text spells the token out.
    assert len(ends) == len(TEXTS) == len(encoded)
    backend = tokenizer.backend_tokenizer
    parts = np.split(encoded.joined, ends + 1)[:-1]
    assert [backend.decode(part[:-1].tolist(), skip_special_tokens=False) for part in parts] == TEXTS
    for index, part in enumerate(parts):
        np.testing.assert_array_equal(encoded.text(index), part)
    assert (encoded.words, encoded.num_bytes) == (split.words, split.num_bytes)


def test_what_a_tokenizer_adds_around_a_text_is_left_out(tokenizer, tmp_path: Path) -> None:
    plain = encode_running_text(RunningText("a", TEXTS), tokenizer, tmp_path / "a")
    backend = tokenizer.backend_tokenizer
    backend.post_processor = processors.TemplateProcessing(
        single=f"{END_OF_TEXT} $A", special_tokens=[(END_OF_TEXT, 0)]
    )
    try:
        again = encode_running_text(RunningText("a", TEXTS), tokenizer, tmp_path / "b")
    finally:
        backend.post_processor = processors.Sequence([])
    np.testing.assert_array_equal(again.input_ids, plain.input_ids)
