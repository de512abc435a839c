"""RMSNorm's own gradient, held against finite differences and against torch's."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from recurra.models.layers import BatchNorm, RMSNorm


def _norm(width: int, dtype: torch.dtype = torch.float32) -> RMSNorm:
    norm = RMSNorm(width, eps=1e-6, dtype=dtype)
    torch.nn.init.normal_(norm.weight, 1.0, 0.3)
    return norm


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_values_and_gradients_are_those_of_torch(scale: float) -> None:
    torch.manual_seed(0)
    norm, states = _norm(16), scale * torch.randn(2, 7, 16)
    results = []
    for compute in (norm, lambda x: functional.rms_norm(x, (16,), norm.weight, 1e-6)):
        inputs = states.clone().requires_grad_()
        norm.zero_grad()
        output = compute(inputs)
        output.square().sum().backward()
        results.append((output.detach(), inputs.grad, norm.weight.grad))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5 / min(scale, 1.0))


def test_half_precision_is_computed_in_fp32_and_keeps_its_type() -> None:
    torch.manual_seed(0)
    norm, states = _norm(64).bfloat16(), torch.randn(3, 64).bfloat16()
    wanted = functional.rms_norm(states.double(), (64,), norm.weight.double(), 1e-6).bfloat16()
    for enabled in (False, True):
        with torch.set_grad_enabled(enabled):
            found = norm(states)
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found, wanted, rtol=2**-7, atol=0)


def test_batch_norm_is_its_formula_over_all_positions_and_rows() -> None:
    torch.manual_seed(0)
    norm = BatchNorm(5, eps=1e-5).double()
    torch.nn.init.normal_(norm.weight)
    states = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    mean, variance = states.mean((0, 1)), states.var((0, 1), unbiased=False)
    expected = (states - mean) / (variance + 1e-5).sqrt() * norm.weight + norm.bias
    torch.testing.assert_close(norm(states), expected)
    own, other = (torch.autograd.grad(value.sin().sum(), states)[0] for value in (norm(states), expected))
    torch.testing.assert_close(own, other)
    norm.eval()
    kept = (states - norm.running_mean) / (norm.running_var + 1e-5).sqrt() * norm.weight + norm.bias
    torch.testing.assert_close(norm(states), kept)
