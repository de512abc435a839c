from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from recurra.evaluation.audits.leakage import find_overlap

# Three words make repeats, overlapping matches and long common runs frequent.
TEXTS = st.lists(st.lists(st.sampled_from("abc"), max_size=14).map(" ".join), max_size=8)


def _naive(train: list[str], texts: list[str], ngram: int, min_words: int) -> tuple[list[int], list[int], list[int]]:
    container, total, found = [], [], []
    split_train = [text.split() for text in train]

    def stands(words: list[str]) -> int:
        for row, other in enumerate(split_train):
            if any(other[start : start + len(words)] == words for start in range(len(other) - len(words) + 1)):
                return row
        return -1

    for text in texts:
        words = text.split()
        container.append(stands(words) if len(words) >= min_words else -1)
        grams = [words[start : start + ngram] for start in range(len(words) - ngram + 1)]
        total.append(len(grams))
        found.append(sum(stands(gram) >= 0 for gram in grams))
    return container, total, found


@given(TEXTS, TEXTS, st.integers(2, 5), st.integers(1, 4))
@settings(max_examples=400, deadline=None)
def test_agrees_with_a_plain_search(train: list[str], texts: list[str], ngram: int, min_words: int) -> None:
    got = find_overlap(train, texts, ngram=ngram, min_words=min_words)
    expected = _naive(train, texts, ngram, min_words)
    assert (got.container.tolist(), got.ngrams.tolist(), got.ngrams_found.tolist()) == expected


def test_a_match_does_not_run_over_the_end_of_a_row() -> None:
    got = find_overlap(["one two three", "four five six"], ["two three four", "three four five"], ngram=3)
    assert got.container.tolist() == [-1, -1]
