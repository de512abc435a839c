from __future__ import annotations

import re
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurra.core.errors import DataError
from recurra.data.dataset import TextSplit
from recurra.data.reviews import balanced, cut_by_label, joined, text_identity, without_empty, without_repeats

ROWS = st.lists(st.tuples(st.sampled_from(["a b", "A, b!", "c", "c d", "C  D.", "...", "é", "É"]), st.integers(0, 1)))


def pool(rows: list[tuple[str, int]]) -> TextSplit:
    return TextSplit("pool", [text for text, _ in rows], np.array([label for _, label in rows], dtype=np.int64),
                     [f"train-{row}" for row in range(len(rows))])  # fmt: skip


@given(st.text())
def test_the_identity_of_a_text_is_its_words(text: str) -> None:
    expected = re.sub(r"[\W_]+", " ", text.casefold()).strip() or text.strip()
    assert text_identity(text) == expected


@given(ROWS, st.data())
def test_one_row_of_each_text_and_none_of_an_opposed_one(rows: list[tuple[str, int]], data: st.DataObject) -> None:
    parts = data.draw(st.lists(st.sampled_from(["train", "test"]), min_size=len(rows), max_size=len(rows)))
    labels_of: defaultdict[str, set[int]] = defaultdict(set)
    for text, label in rows:
        labels_of[text_identity(text)].add(label)
    kept, counts = without_repeats(pool(rows), parts)
    identities = [text_identity(text) for text in kept.texts]
    assert Counter(identities) == Counter(identity for identity, labels in labels_of.items() if len(labels) == 1)
    first = [row for row, (text, _) in enumerate(rows) if text_identity(text) in set(identities)]
    assert set(kept.ids) == {
        f"train-{row}" for row in first
        if text_identity(rows[row][0]) not in {text_identity(text) for text, _ in rows[:row]}
    }  # fmt: skip
    assert len(kept) + sum(counts.values()) == len(rows)


def test_repeats_are_counted_by_where_the_first_one_stands() -> None:
    rows = [("one", 0), ("two", 1), ("One!", 0), ("two", 0), ("three", 1), ("ONE", 0), ("three .", 1)]
    kept, counts = without_repeats(pool(rows), ["train", "train", "train", "train", "test", "test", "test"])
    assert kept.texts == ["one", "three"]
    assert counts == {
        "train: repeats another of its rows": 1,
        "text stands with several labels": 2,
        "test: repeats a row of train": 1,
        "test: repeats another of its rows": 1,
    }


@given(st.lists(st.integers(3, 120), min_size=2, max_size=4), st.integers(0, 3))
def test_a_cut_keeps_every_row_once_and_proportions(counts: list[int], seed: int) -> None:
    rows = pool([(f"{label} {row}", label) for label, count in enumerate(counts) for row in range(count)])
    splits = cut_by_label(rows, seed, source="toy")
    assert sorted(identity for split in splits.values() for identity in split.ids) == sorted(rows.ids)
    for label, count in enumerate(counts):
        for name in ("validation", "test"):
            assert abs((splits[name].labels == label).sum() - count / 10) <= 1
            assert (splits[name].labels == label).sum() >= 1
        assert (splits["train"].labels == label).sum() >= 1
    again = cut_by_label(rows, seed, source="toy")
    assert all(split.fingerprint == again[name].fingerprint for name, split in splits.items())


def test_a_class_too_small_to_cut_is_refused() -> None:
    with pytest.raises(DataError, match="toy: a class has 2 different texts, at least 3"):
        cut_by_label(pool([("a", 0), ("b", 0), ("c", 1), ("d", 1), ("e", 1)]), 0, source="toy")


@given(st.lists(st.integers(1, 30), min_size=2, max_size=3), st.integers(0, 3))
def test_balanced_takes_what_the_rarest_class_has(counts: list[int], seed: int) -> None:
    rows = pool([(f"{label} {row}", label) for label, count in enumerate(counts) for row in range(count)])
    kept, left_out = balanced(rows, seed)
    assert np.bincount(kept.labels).tolist() == [min(counts)] * len(counts)
    assert sum(left_out.values()) == len(rows) - len(kept)
    assert kept.ids == [identity for identity in rows.ids if identity in set(kept.ids)]


def test_empty_rows_and_joining() -> None:
    kept, counts = without_empty(pool([("a", 0), ("", 1), ("b", 1)]))
    assert (kept.texts, counts) == (["a", "b"], {"empty after cleaning": 1})
    grouped = TextSplit("x", ["c"], np.array([1]), ["x-0"], [(7,)])
    both = joined("both", [kept, grouped])
    assert both.texts == ["a", "b", "c"]
    assert both.groups == [(), (), (7,)]
    assert joined("plain", [kept]).groups is None
