"""Dropout from 16 random bits an element."""

from __future__ import annotations

import pytest
import torch

from recurra.models.layers import Dropout, keep_mask


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_rate_the_scale_and_the_mean(p: float) -> None:
    torch.manual_seed(0)
    count = 400_000
    mask = keep_mask(torch.empty(count), p)
    kept = mask > 0
    # Five standard deviations of a binomial share.
    assert abs(float(kept.float().mean()) - (1 - p)) < 5 * (p * (1 - p) / count) ** 0.5
    torch.testing.assert_close(mask[kept], torch.full((int(kept.sum()),), 1 / (1 - p)), rtol=2e-4, atol=0)


def test_the_gradient_passes_where_the_value_did() -> None:
    torch.manual_seed(0)
    states = torch.randn(50, 8, requires_grad=True)
    dropped = Dropout(0.3)(states)
    dropped.sum().backward()
    torch.testing.assert_close(states.grad * states, dropped)


def test_the_seed_decides_and_evaluation_changes_nothing() -> None:
    states, dropout = torch.ones(40, 40), Dropout(0.4)
    torch.manual_seed(3)
    first, second = dropout(states), dropout(states)
    torch.manual_seed(3)
    assert torch.equal(dropout(states), first) and not torch.equal(first, second)
    assert dropout.eval()(states) is states or torch.equal(dropout(states), states)
    assert torch.equal(Dropout(0.0)(states), states)
