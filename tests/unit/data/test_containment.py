"""Rows inside other rows, held against a search that compares words."""

from __future__ import annotations

import numpy as np
import pytest

from recurra.data.encoding import EncodedSplit
from recurra.training.stages import LONGEST_PART_TOKENS, rows_not_inside_others


def split_of(rows: list[list[int]]) -> EncodedSplit:
    framed = [[1, *row, 2] for row in rows]
    lengths = [len(row) for row in framed]
    return EncodedSplit(
        input_ids=np.array([token for row in framed for token in row], dtype=np.int32),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        labels=np.zeros(len(rows), dtype=np.int64),
    )


def naive(rows: list[list[int]]) -> list[int]:
    """Compares every row with every other."""

    def inside(part: list[int], whole: list[int]) -> bool:
        return any(whole[start : start + len(part)] == part for start in range(len(whole) - len(part) + 1))

    return [
        number
        for number, row in enumerate(rows)
        if not any(
            (len(other) > len(row) and inside(row, other)) or (other == row and position < number)
            for position, other in enumerate(rows)
        )
        or not row
    ]


@pytest.mark.parametrize("seed", range(5))
def test_it_agrees_with_comparing_every_row_with_every_other(seed: int) -> None:
    dice = np.random.default_rng(seed)
    # Few different words: many rows stand in others, many only nearly.
    rows = [dice.integers(3, 6, dice.integers(1, 9)).tolist() for _ in range(60)]
    rows += [dice.integers(3, 9, dice.integers(9, 14)).tolist() for _ in range(10)]
    rows += [rows[-1][2:9], rows[-2][:4]]
    expected = naive(rows)
    assert 0 < len(expected) < len(rows)
    assert rows_not_inside_others(split_of(rows)).tolist() == expected


def test_a_row_across_the_border_of_two_rows_is_kept() -> None:
    assert rows_not_inside_others(split_of([[5, 6, 7], [8, 9, 5], [6, 7, 8], [7, 8]])).tolist() == [0, 1, 2]


def test_rows_without_words_and_long_rows_are_kept() -> None:
    long = list(range(3, LONGEST_PART_TOKENS + 4))
    assert rows_not_inside_others(split_of([[], long, [*long, 9], long[1:], []])).tolist() == [0, 1, 2, 4]
