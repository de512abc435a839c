from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurra.data.dataset import TextSplit
from recurra.data.subsets import length_tail, stratified_fraction


def rows(counts: list[int]) -> TextSplit:
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    texts = [" ".join(["w"] * (1 + index % 7)) + f" {index}" for index in range(len(labels))]
    return TextSplit("train", texts, np.array(labels), [str(index) for index in range(len(labels))])


@given(st.lists(st.integers(1, 200), min_size=2, max_size=4), st.floats(0.01, 1), st.integers(0, 5))
def test_a_fraction_keeps_proportions(counts: list[int], fraction: float, seed: int) -> None:
    split = rows(counts)
    part = stratified_fraction(split, fraction, seed)
    taken = np.bincount(part.labels, minlength=len(counts))
    assert (taken >= 1).all()
    assert all(abs(got - count * fraction) <= 1 for got, count in zip(taken, counts, strict=True))
    assert set(part.ids) <= set(split.ids) and len(set(part.ids)) == len(part)
    if (np.floor(np.array(counts) * fraction) >= 1).all():
        assert len(part) == round(sum(counts) * fraction)
    assert part.fingerprint == stratified_fraction(split, fraction, seed).fingerprint


def test_a_smaller_fraction_is_inside_a_larger_one_and_seeds_differ() -> None:
    split = rows([300, 500])
    small, large = stratified_fraction(split, 0.1, 0), stratified_fraction(split, 0.5, 0)
    assert set(small.ids) < set(large.ids)
    assert small.fingerprint != stratified_fraction(split, 0.1, 1).fingerprint
    assert stratified_fraction(split, 1, 0) is split


@given(st.floats(0.01, 1), st.permutations(range(40)))
def test_tails_by_words(fraction: float, order: list[int]) -> None:
    split = rows([20, 20]).select(order)
    longest, shortest = length_tail(split, "longest", fraction), length_tail(split, "shortest", fraction)
    size = max(1, round(40 * fraction))
    assert sorted(longest.word_counts) == sorted(split.word_counts)[-size:]
    assert sorted(shortest.word_counts) == sorted(split.word_counts)[:size]
    assert longest.ids == [identity for identity in split.ids if identity in set(longest.ids)]
    assert set(longest.ids) == set(length_tail(rows([20, 20]), "longest", fraction).ids)


@pytest.mark.parametrize("fraction", [0, -1, 1.5])
def test_impossible_fractions(fraction: float) -> None:
    with pytest.raises(ValueError, match="fraction"):
        stratified_fraction(rows([2, 2]), fraction, 0)
    with pytest.raises(ValueError, match="fraction"):
        length_tail(rows([2, 2]), "longest", fraction)
