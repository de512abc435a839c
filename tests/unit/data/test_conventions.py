from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurra.data.cleaning import clean_text
from recurra.data.domains import MARKS, one_convention

WORDS = st.sampled_from(
    ["film", "don't", "it's", "good", "can't", "we'll", "cannot", "5", "well-made", "gonna", "café"]
)
PLAIN = st.lists(st.tuples(WORDS, st.sampled_from(["", ".", ",", "!", " (", ")", ":", ' "'])), min_size=1)


def treebank(text: str) -> str:
    """What the Penn Treebank's tokeniser makes of a text, in a few lines of its own."""
    text = re.sub(r"([.,!:()\"])", r" \1 ", text)
    text = re.sub(r"n't\b", " n't", text)
    text = re.sub(r"(\w)('(?:s|re|ve|ll|d|m))\b", r"\1 \2", text)
    text = text.replace("cannot", "can not").replace("gonna", "gon na")
    text = text.replace("(", "-lrb-").replace(")", "-rrb-").replace('"', "``")
    return " ".join(text.split())


@given(PLAIN)
def test_a_tokenised_text_comes_out_as_the_plain_one(pieces: list[tuple[str, str]]) -> None:
    plain = " ".join(word + mark for word, mark in pieces)
    assert one_convention(clean_text(treebank(plain))) == one_convention(clean_text(plain))


@given(st.text() | st.text(alphabet="ab' .-n'ts`&(\"!5", max_size=40))
def test_writing_twice_changes_nothing_and_cleaning_neither(text: str) -> None:
    once = one_convention(clean_text(text))
    assert one_convention(once) == once
    assert once.isascii() and once == once.lower() == once.strip()
    assert not once or (once[0] not in MARKS and once[-1] not in MARKS)
    assert all(len(token) == 1 or not set(token) & set(MARKS) for token in once.split())


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("it 's a film that 's very good . . .", "it's a film that's very good"),
        ("do n't -lrb- ever -rrb- `` wow '' & go", 'don\'t ( ever ) " wow " and go'),
        ("’tis a café — “yes”", 'tis a cafe - " yes'),
        ("'s still a good yarn", "still a good yarn"),
        ("$ 5.00 !!! [sic] *", "5 . 00 ! ( sic"),
        ("!!!", ""),
    ],
)
def test_examples(text: str, written: str) -> None:
    assert one_convention(text) == written
