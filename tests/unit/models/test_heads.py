"""Pooling over a row's real tokens, and cross-entropy a few tokens at a time: equal to that of all logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from recurra.models.heads import IGNORED, next_token_targets, pool, vocabulary_cross_entropy

ROWS = [[[1.0, -5.0], [3.0, -7.0], [2.0, -6.0]], [[-4.0, 9.0]], []]
WANTED = {
    "max": torch.tensor([[3.0, -5.0], [-4.0, 9.0], [0.0, 0.0]]),
    "mean": torch.tensor([[2.0, -6.0], [-4.0, 9.0], [0.0, 0.0]]),
}


@pytest.mark.parametrize("pooling", WANTED)
def test_padding_and_other_rows_are_not_read_and_a_row_without_tokens_gives_zeros(pooling: str) -> None:
    gaps = [[[100.0, 100.0]] * (3 - len(row)) for row in ROWS]
    for left in (False, True):
        states = torch.tensor([gap + row if left else row + gap for row, gap in zip(ROWS, gaps, strict=True)])
        assert torch.equal(pool(states, pooling, states[:, :, 0] != 100, None), WANTED[pooling])
    packed = torch.tensor([[token for row in ROWS for token in row]])
    assert torch.equal(pool(packed, pooling, None, torch.tensor([3, 1, 0])), WANTED[pooling])
    assert torch.equal(pool(packed[:, :3], pooling, None, None), WANTED[pooling][:1])


def problem(positions: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    dice = torch.Generator().manual_seed(positions)
    states = torch.randn(positions, 5, generator=dice, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(11, 5, generator=dice, dtype=torch.float64).to(dtype).requires_grad_()
    targets = torch.randint(0, 11, (positions,), generator=dice)
    targets[::3] = IGNORED
    return states, weight, targets


def naive(states: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """-log softmax at the target, summed over what is counted."""
    scores = torch.log_softmax((states @ weight.t()).double(), dim=-1)
    kept = targets != IGNORED
    return -scores[kept, targets[kept]].sum()


@pytest.mark.parametrize("positions", [0, 1, 2, 7, 10])
@pytest.mark.parametrize("chunk_logits", [1, 33, 10_000], ids=["a row each", "three rows", "at once"])
def test_value_and_gradients_equal_those_of_all_logits(positions: int, chunk_logits: int) -> None:
    states, weight, targets = problem(positions)
    found = vocabulary_cross_entropy(states, weight, targets, chunk_logits=chunk_logits)
    wanted = naive(states, weight, targets)
    torch.testing.assert_close(found, wanted)
    # Scaled, as a loss is that is divided by the number of tokens or by a gradient scaler.
    ours = torch.autograd.grad(found * 0.37, (states, weight))
    theirs = torch.autograd.grad(wanted * 0.37, (states, weight))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("differentiable", [True, False])
def test_autocast_multiplies_in_half_precision_and_sums_in_fp32(differentiable: bool) -> None:
    states, weight, targets = problem(10, torch.float32)
    with torch.set_grad_enabled(differentiable), torch.autocast("cpu", dtype=torch.bfloat16):
        found = vocabulary_cross_entropy(states, weight, targets)
    assert found.dtype == torch.float32
    wanted = naive(states, weight, targets)
    torch.testing.assert_close(found.double(), wanted, rtol=2e-2, atol=1e-2)
    if differentiable:
        ours, theirs = (torch.autograd.grad(value, (states, weight)) for value in (found, wanted))
        assert [slope.dtype for slope in ours] == [torch.float32] * 2
        torch.testing.assert_close(ours, theirs, rtol=5e-2, atol=5e-2)


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation makes."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
        self.elements = max([self.elements, *sizes])
        return made


def test_no_operation_makes_more_than_a_chunk_of_logits() -> None:
    """200 positions and 300 words: 60,000 logits, of which 3,000 may exist at once; the weight has 1,500."""
    states, weight = torch.randn(200, 5, requires_grad=True), torch.randn(300, 5, requires_grad=True)
    targets = torch.randint(0, 300, (200,))
    with Largest() as ours:
        vocabulary_cross_entropy(states, weight, targets, chunk_logits=3_000).backward()
    assert ours.elements == 3_000
    with Largest() as all_at_once:
        functional.cross_entropy(states @ weight.t(), targets).backward()
    assert all_at_once.elements == 60_000


def test_targets_are_the_next_tokens_without_padding_and_what_is_ignored() -> None:
    labels = torch.tensor([[5, 6, 7, 8], [5, 6, IGNORED, 8], [9, 9, 6, 7]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1], [0, 0, 1, 1]])
    none = IGNORED
    wanted = [[6, 7, none, none], [6, none, 8, none], [none, none, 7, none]]
    assert next_token_targets(labels, mask).tolist() == wanted
    assert next_token_targets(labels, None)[0].tolist() == [6, 7, 8, none]
