from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurra.data.configuration import DataConfig
from recurra.data.corpora import CORPORA, load_dataset
from recurra.data.dataset import TextSplit
from recurra.data.splits import length_tail, rows_of_each_label, stratified_fraction


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


@given(st.lists(st.integers(1, 60), min_size=2, max_size=4), st.integers(1, 80), st.integers(0, 5))
def test_rows_of_each_label(counts: list[int], most: int, seed: int) -> None:
    split = rows(counts)
    part = rows_of_each_label(split, most, seed)
    assert np.bincount(part.labels, minlength=len(counts)).tolist() == [min(count, most) for count in counts]
    assert part.ids == [identity for identity in split.ids if identity in set(part.ids)]
    assert part.fingerprint == rows_of_each_label(split, most, seed).fingerprint
    assert set(part.ids) <= set(rows_of_each_label(split, most + 1, seed).ids)


def test_draws_of_rows_of_each_label_differ_and_lie_in_fractions_of_their_seed() -> None:
    split = rows([300, 300])
    draws = [rows_of_each_label(split, 8, seed) for seed in range(3)]
    assert len({draw.fingerprint for draw in draws}) == 3
    assert set(draws[1].ids) < set(stratified_fraction(split, 0.1, 1).ids)


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


@pytest.mark.data
@pytest.mark.parametrize("protocol", ["official", "pooled"])
def test_the_parts_that_the_papers_tables_need(data_root: Path, protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables 7 to 10: 10 % and 50 % of train with the rest unchanged; both tails of every split, at 30 % and 10 %."""
    whole = load_dataset(DataConfig(name="sst2", protocol=protocol), data_root)
    # Read once: only the parts differ.
    monkeypatch.setitem(CORPORA, "sst2", replace(CORPORA["sst2"], load=lambda *_: whole))
    train = whole.splits["train"]
    for share in (0.1, 0.5):
        part = load_dataset(DataConfig(name="sst2", protocol=protocol, fraction=share), data_root)
        assert len(part.splits["train"]) == round(share * len(train))
        assert abs(part.splits["train"].labels.mean() - train.labels.mean()) < 1 / len(part.splits["train"])
        for name in whole.reported_splits:
            assert part.splits[name].fingerprint == whole.splits[name].fingerprint
    for tail in ("longest", "shortest"):
        for share in (0.3, 0.1):
            config = DataConfig.parse(
                {"name": "sst2", "protocol": protocol, "length_tail": tail, "tail_fraction": share}
            )
            part = load_dataset(config, data_root)
            for name, split in part.splits.items():
                ordered = np.sort(whole.splits[name].word_counts)
                size = round(share * len(ordered))
                expected = ordered[-size:] if tail == "longest" else ordered[:size]
                assert np.array_equal(np.sort(split.word_counts), expected)
            assert any(f"the {tail} {share:.0%} of every split" in note for note in part.notes)
