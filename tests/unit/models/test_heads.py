"""Largest values and means over a row's real tokens, whatever lies beside them."""

from __future__ import annotations

import pytest
import torch

from recurra.models.heads import pool

ROWS = [[[1.0, -5.0], [3.0, -7.0], [2.0, -6.0]], [[-4.0, 9.0]], []]
WANTED = {
    "max": torch.tensor([[3.0, -5.0], [-4.0, 9.0], [0.0, 0.0]]),
    "mean": torch.tensor([[2.0, -6.0], [-4.0, 9.0], [0.0, 0.0]]),
}


@pytest.mark.parametrize("pooling", WANTED)
@pytest.mark.parametrize("left", [False, True])
def test_padding_is_not_read_and_a_row_without_tokens_gives_zeros(left: bool, pooling: str) -> None:
    gaps = [[[100.0, 100.0]] * (3 - len(row)) for row in ROWS]
    both = list(zip(ROWS, gaps, strict=True))
    states = torch.tensor([gap + row if left else row + gap for row, gap in both])
    mask = torch.tensor(
        [[0] * len(gap) + [1] * len(row) if left else [1] * len(row) + [0] * len(gap) for row, gap in both]
    )
    assert torch.equal(pool(states, pooling, mask, None), WANTED[pooling])


@pytest.mark.parametrize("pooling", WANTED)
def test_packed_rows_do_not_see_each_other(pooling: str) -> None:
    states = torch.tensor([[token for row in ROWS for token in row]])
    assert torch.equal(pool(states, pooling, None, torch.tensor([3, 1, 0])), WANTED[pooling])


def test_the_gradient_goes_to_the_largest_alone() -> None:
    states = torch.tensor([ROWS[0]], requires_grad=True)
    pool(states, "max", None, None).sum().backward()
    assert states.grad.tolist() == [[[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]]]
