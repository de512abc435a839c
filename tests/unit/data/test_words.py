"""Equal texts, texts that stand in others, and words where nothing separates them."""

from __future__ import annotations

import re
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from recurra.data.words import rows_that_give_away, text_identity, words_of


@given(st.text())
def test_the_identity_of_a_text_is_its_words(text: str) -> None:
    expected = re.sub(r"[\W_]+", " ", text.casefold()).strip() or text.strip()
    assert text_identity(text) == expected


def test_rows_that_give_a_query_away() -> None:
    rows = ["very bad .", "a very bad day", "bad", "it was no more .", "no more", "what 's next"]
    assert rows_that_give_away(["Very bad!", "No more.", "x what 's", "no more . ."], rows) == {0, 4}
    assert rows_that_give_away(["very bad day"], rows) == {1}
    assert rows_that_give_away([], rows) == set()
    assert rows_that_give_away(["这部电影很好看!"], ["我说:这部电影很好看。", "这部电影,很好看", "这部电影"]) == {0}
    # The words of all rows would take 20 MB.
    tracemalloc.start()
    try:
        assert rows_that_give_away(["no such words"], ["word " * 200] * 2_000) == set()
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


@given(st.text("ab é,.", max_size=30))
def test_words_are_what_spaces_separate(text: str) -> None:
    assert words_of(text) == tuple(text.split())


def test_scripts_without_spaces_have_a_word_for_every_four_characters_in_a_row() -> None:
    assert words_of("这部电影很 ok 好") == ("这部电影", "部电影很", "ok", "好")
    assert words_of("ดีมาก") == ("ดีมา", "ีมาก")
