from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recurra.data import batching
from recurra.data.batching import Collator, LengthGroupedBatchSampler, padded_length, sorted_batches

LENGTHS = st.lists(st.integers(2, 60), min_size=0, max_size=300)


@given(LENGTHS, st.integers(1, 17), st.integers(0, 3))
def test_every_row_once_an_epoch_that_starts_with_its_longest_batch(
    lengths: list[int], batch_size: int, epoch: int
) -> None:
    sampler = LengthGroupedBatchSampler(lengths, batch_size, seed=1)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    assert all(len(batch) == batch_size for batch in batches[:-1])
    # The longest of the full ones comes first.
    longest = [max(lengths[row] for row in batch) for batch in batches if len(batch) == batch_size]
    assert longest == [] or longest[0] == max(longest)


@given(LENGTHS.filter(bool), st.integers(1, 17), st.integers(1, 5))
def test_a_curriculum_lets_the_shortest_in_first_and_all_in_the_end(
    lengths: list[int], batch_size: int, epochs: int
) -> None:
    sampler = LengthGroupedBatchSampler(lengths, batch_size, seed=1, curriculum_epochs=epochs)
    occurring = sorted(set(lengths))
    for epoch in range(epochs + 1):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        seen = [row for batch in batches for row in batch]
        admitted = occurring[: math.ceil(len(occurring) * min(epoch + 1, epochs) / epochs)]
        short = [row for row, length in enumerate(lengths) if length in admitted]
        assert len(batches) == len(sampler)
        assert len(seen) == len(lengths)
        # As evenly as it can be: of one length no row comes oftener than another but in the last, unfinished round.
        assert set(seen) <= set(short)
        largest = max(lengths.count(length) for length in admitted)
        for length in admitted:
            counts = [seen.count(row) for row in short if lengths[row] == length]
            round_of = largest // len(counts) if epoch + 1 < epochs else 1
            assert max(counts) - min(counts) <= round_of


def test_order_is_a_function_of_seed_and_epoch() -> None:
    lengths = np.random.default_rng(0).integers(2, 50, 500)

    def order(seed: int, epoch: int) -> list[list[int]]:
        sampler = LengthGroupedBatchSampler(lengths, 16, seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert order(0, 0) == order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)


def test_grouping_removes_most_of_the_padding_and_still_mixes(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = np.random.default_rng(0).geometric(0.1, 5000) + 2
    grouped = list(LengthGroupedBatchSampler(lengths, 16, 0))
    monkeypatch.setattr(batching, "WINDOW_BATCHES", 1)
    shuffled = list(LengthGroupedBatchSampler(lengths, 16, 0))
    padding = [sum(lengths[way].max() - lengths[way].mean() for way in batches) for batches in (grouped, shuffled)]
    assert padding[0] < 0.1 * padding[1]
    means = [lengths[batch].mean() for batch in grouped]
    # Batches come in random order: their mean length does not climb.
    assert abs(np.corrcoef(np.arange(len(means)), means)[0, 1]) < 0.2


@given(LENGTHS, st.integers(1, 40))
def test_sorted_batches_cover_all_longest_first(lengths: list[int], batch_size: int) -> None:
    batches = sorted_batches(lengths, batch_size)
    order = [row for batch in batches for row in batch.tolist()]
    assert sorted(order) == list(range(len(lengths)))
    assert [lengths[row] for row in order] == sorted(lengths, reverse=True)
    assert all(len(batch) <= batch_size for batch in batches)


@given(st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=9), min_size=1, max_size=8), st.integers(0, 5))
def test_collator_pads_on_the_right(rows: list[list[int]], pad: int) -> None:
    batch = Collator(pad)([{"input_ids": np.array(row, dtype=np.int32), "labels": len(row)} for row in rows])
    width = padded_length(max(map(len, rows)))
    assert batch["input_ids"].tolist() == [row + [pad] * (width - len(row)) for row in rows]
    assert batch["attention_mask"].tolist() == [[1] * len(row) + [0] * (width - len(row)) for row in rows]
    assert batch["labels"].tolist() == [len(row) for row in rows]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


@pytest.mark.parametrize(("shortest", "short"), [(5, 50), (51, 100)])
def test_under_a_curriculum_every_length_comes_half_as_often_as_the_commonest(shortest: int, short: int) -> None:
    lengths = np.array([2] * shortest + [3] * short + [4] * 500 + [9] * 500)
    sampler = LengthGroupedBatchSampler(lengths, 5, seed=0, curriculum_epochs=4)
    for epoch, admitted in enumerate(([2], [2, 3], [2, 3, 4], [2, 3, 4, 9])):
        sampler.set_epoch(epoch)
        drawn = np.bincount(lengths[np.concatenate(list(sampler))], minlength=10)
        assert [length for length in range(10) if drawn[length]] == admitted
        if len(admitted) < 4:
            # The last round is cut anywhere.
            assert drawn[admitted].max() < 1.1 * 2 * drawn[admitted].min()
