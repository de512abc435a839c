"""The shifted multiply-adds equal torch's own convolution, in outputs and gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from recurra.models.layers import DepthwiseConvolution


def stock(states: Tensor, weight: Tensor, dilation: int, *, causal: bool) -> Tensor:
    """`nn.Conv1d` on transposed states, with the padding of each kind."""
    reach = (len(weight) - 1) * dilation
    left, right = (reach, 0) if causal else (reach // 2, reach // 2)
    padded = functional.pad(states.transpose(1, 2), (left, right))
    convolved = functional.conv1d(padded, weight.t()[:, None], dilation=dilation, groups=states.shape[2])
    return convolved.transpose(1, 2)


@given(
    rows=st.integers(1, 4),
    tokens=st.integers(1, 9),
    kernel=st.integers(1, 5),
    dilation=st.integers(1, 4),
    causal=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60)
def test_it_equals_the_stock_convolution(
    rows: int, tokens: int, kernel: int, dilation: int, causal: bool, seed: int
) -> None:
    kernel = kernel if causal or kernel % 2 else kernel + 1
    dice = torch.Generator().manual_seed(seed)
    convolution = DepthwiseConvolution(3, kernel, dilation, causal=causal).double()
    states = torch.randn(rows, tokens, 3, dtype=torch.float64, generator=dice, requires_grad=True)
    direction = torch.randn(rows, tokens, 3, dtype=torch.float64, generator=dice)
    found = convolution(states)
    ours = torch.autograd.grad((found * direction).sum(), (states, convolution.weight))
    wanted = stock(states, convolution.weight, dilation, causal=causal)
    theirs = torch.autograd.grad((wanted * direction).sum(), (states, convolution.weight))
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(ours, theirs)
    with torch.no_grad():
        assert torch.equal(convolution(states), found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrow_types_come_back_as_they_were_and_gradients_are_summed_in_fp32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    convolution = DepthwiseConvolution(8, 3, 2, causal=True).to(dtype)
    states = torch.randn(4, 300, 8).to(dtype).requires_grad_()
    found = convolution(states)
    found.sum().backward()
    assert found.dtype == states.grad.dtype == convolution.weight.grad.dtype == dtype
    wanted = states.detach().double()[:, :-2].sum((0, 1))
    near = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(convolution.weight.grad[1].double(), wanted, rtol=near, atol=20 * near)


def test_no_rows_and_no_tokens_are_no_mistake() -> None:
    convolution = DepthwiseConvolution(4, 3, 2, causal=True)
    for shape in ((0, 5, 4), (2, 0, 4)):
        states = torch.zeros(shape, requires_grad=True)
        convolution(states).sum().backward()
        assert convolution.weight.grad.abs().max() == 0
