from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurra.data.cleaning import clean_text, clean_texts


def reference(text: str) -> str:
    """The six steps, one after the other, as the specification lists them."""
    text = re.sub(r"\s+", " ", text).lower()
    text = re.sub(r"<[a-z/!][^<>]*>", " ", text)
    text = re.sub(r"(https?://|www\.)\S+", " ", text)
    for mark in "!?.":
        text = re.sub(re.escape(mark) + "{2,}", lambda found: found.group()[0], text)
    return re.sub(r"\s+", " ", text).strip()


# re's \s and str.split() disagree about a few separators; letters and the usual blanks are enough to compare.
TEXTS = st.text(alphabet=st.sampled_from(list("aBÉ <>/!?.:hHtTpPsSwW\t\n\u00a0'\"&5日")), max_size=60)


@given(TEXTS)
def test_equals_the_steps_one_by_one(text: str) -> None:
    assert clean_text(text) == reference(text)


@given(st.text(max_size=80))
def test_any_text_ends_without_double_space_or_repeated_marks(text: str) -> None:
    cleaned = clean_text(text)
    assert cleaned == " ".join(cleaned.split())
    assert not re.search(r"!!|\?\?|\.\.", cleaned)


@pytest.mark.parametrize(
    ("raw", "cleaned"),
    [
        ("  Good\t\nFILM ", "good film"),
        ("Good<br/>bad", "good bad"),
        ("<P class='x'>fine</P>", "fine"),
        ("see https://a.b/c?d=1 and WWW.x.org now", "see and now"),
        ("what?!?! no!!! well...", "what?!?! no! well."),
        ("3 < 5 and 6 > 2", "3 < 5 and 6 > 2"),
        ("no . .", "no . ."),
        (" <br> https://x.y ", ""),
        ("ÉTÉ 日本 😀", "été 日本 😀"),
    ],
)
def test_cases(raw: str, cleaned: str) -> None:
    assert clean_text(raw) == cleaned


def test_order_of_texts_is_kept() -> None:
    assert clean_texts(["B", "A"]) == ["b", "a"]


@pytest.mark.parametrize("piece", ["<a", "!", "http://", "<!--", " ", "www."])
def test_a_large_text_is_no_trap_for_the_patterns(piece: str) -> None:
    # A pattern that backtracks would need hours for this, and the suite's time limit would end it.
    clean_text(piece * 400_000)
