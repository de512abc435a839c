from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurra.core.errors import ConfigurationError
from recurra.data.cleaning import CAREFUL, FIRST, NO_CLEANING, clean_text, leaves_nothing, removed_by
from recurra.data.configuration import DataConfig


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


@given(
    st.lists(st.sampled_from(["<br>", "</P>", "HTTP://x.y", "www.z ", " ", "\x85", "?!", "a", "<b", "<\u0338"])).map(
        "".join
    )
)
def test_what_leaves_nothing_is_known_without_cleaning_most_texts(text: str) -> None:
    for cleaning in (FIRST, CAREFUL, NO_CLEANING):
        assert leaves_nothing(text, cleaning) == (not clean_text(text, cleaning))


@pytest.mark.parametrize("piece", ["<a", "!", "http://", "<!--", "<a b=", "<p "])
def test_a_large_text_is_no_trap_for_the_patterns(piece: str) -> None:
    # A pattern that backtracks would need hours for this, and the suite's time limit would end it.
    clean_text(piece * 400_000)
    clean_text(piece * 400_000, CAREFUL)


@pytest.mark.parametrize(
    ("raw", "cleaned"),
    [
        ("List<String> x = new Map<K, V>();", "list<string> x = new map<k, v>();"),
        ("vec<T>, List<P>, Option<&str>", "vec<t>, list<p>, option<&str>"),
        ("if a <b and c> d", "if a <b and c> d"),
        ("Good<br/>bad <P class='x'>fine</P><b>so</b>", "good bad fine so"),
        ("<!-- note --><span>a</span> <3", "a <3"),
        ("https://news.example/0", "https://news.example/0"),
        ("see https://a.b/c?d=1 and WWW.x.org now", "see and now"),
        ("awww.cute", "awww.cute"),
        ("e\u0301te\u0301 \u65e5\u672c \U0001f600", "\u00e9t\u00e9 \u65e5\u672c \U0001f600"),
        ("\U0001f621\U0001f44e", "\U0001f621\U0001f44e"),
    ],
)
def test_careful_cleaning_takes_what_it_is_sure_of(raw: str, cleaned: str) -> None:
    assert clean_text(raw, CAREFUL) == cleaned


@given(st.text(max_size=60))
def test_composed_and_decomposed_texts_are_one(text: str) -> None:
    composed, decomposed = (unicodedata.normalize(form, text) for form in ("NFC", "NFD"))
    assert clean_text(composed, CAREFUL) == clean_text(decomposed, CAREFUL)
    assert clean_text(text, NO_CLEANING) == ("" if text.isspace() else text)


def test_what_is_taken_out_is_known() -> None:
    assert removed_by("a <br> https://x.y", CAREFUL) == {"HTML tags", "URLs"}
    assert removed_by("https://x.y", CAREFUL) == removed_by("a <br>", NO_CLEANING) == set()
    assert removed_by("www.x.y", CAREFUL) == set() and removed_by("<br> www.x.y", CAREFUL) == {"HTML tags"}
    assert removed_by("see ftp://x.y and http://a.b", CAREFUL) == removed_by("https://x.y", FIRST) == {"URLs"}


def test_a_cleaning_that_is_unknown_is_named_with_the_one_that_is_meant() -> None:
    for name in (CAREFUL, FIRST, NO_CLEANING):
        assert DataConfig.parse({"name": "demo", "clean": name}).clean == name
    with pytest.raises(ConfigurationError, match=rf"unknown cleaning '{CAREFUL}0' \(did you mean '{CAREFUL}'\?\); "):
        DataConfig.parse({"name": "demo", "clean": f"{CAREFUL}0"})
