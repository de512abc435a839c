"""Layers against their formulas and torch's own, in values and gradients, and in half precision."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from recurra import RecurraModel
from recurra.models.layers import BatchNorm, DepthwiseConvolution, Dropout, RMSNorm, SwiGLU, keep_mask, rotary_table
from recurra.models.rows import padding_mask
from references.recurrent_transformer import convolve
from tiny import stir, tiny_config, tiny_model

CPU = torch.device("cpu")


def test_the_rotary_table_survives_half_precision_copies_and_files(tmp_path: Path) -> None:
    """A buffer outside the checkpoint: loading leaves it at zero, half precision would round its angles."""
    model = tiny_model().model
    moved = [copy.deepcopy(model).half().float(), copy.deepcopy(model).to(torch.bfloat16)]
    for number, each in enumerate([model, moved[1]]):
        each.save_pretrained(tmp_path / str(number))
        moved.append(RecurraModel.from_pretrained(tmp_path / str(number)))
    for each in moved:
        assert each.rotary.dtype == torch.float32
        assert torch.equal(each.rotary, rotary_table(64, 8, 10_000.0, CPU))
        assert not any("rotary" in name for name in each.state_dict())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_a_row_of_padding_gives_no_nan_and_leaves_the_others_alone(causal: bool, dtype: torch.dtype) -> None:
    model = tiny_model(causal=causal).to(dtype).eval()
    ids = torch.randint(1, 40, (3, 6), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(3, 6, dtype=torch.long)
    mask[1] = 0
    mask[2, 4:] = 0
    output = model(ids, mask, labels=torch.tensor([0, 1, 0]))
    assert torch.isfinite(output.logits).all()
    output.loss.backward()
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters() if weight.grad is not None)
    near = 1e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(output.logits[:1], model(ids[:1]).logits, rtol=near, atol=near)
    # Without padding there is no mask, which is the kernels' fastest path.
    assert padding_mask(torch.ones_like(mask)) is None


SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 9), st.just(3))


@given(SHAPES, st.integers(1, 5), st.integers(1, 4), st.booleans())
@settings(max_examples=60)
def test_a_convolution_is_its_sum(shape: tuple[int, int, int], kernel: int, dilation: int, causal: bool) -> None:
    kernel = kernel if causal or kernel % 2 else kernel + 1
    dice = torch.Generator().manual_seed(0)
    convolution = DepthwiseConvolution(3, kernel, dilation, causal=causal).double()
    states = torch.randn(shape, dtype=torch.float64, generator=dice, requires_grad=True)
    direction = torch.randn(shape, dtype=torch.float64, generator=dice)
    found = convolution(states)
    wanted = [torch.stack(convolve([*row], convolution.weight, dilation, causal=causal)) for row in states]
    torch.testing.assert_close(found, torch.stack(wanted))
    sums = [(each * direction).sum() for each in (found, torch.stack(wanted))]
    torch.testing.assert_close(*(torch.autograd.grad(total, (states, convolution.weight)) for total in sums))
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
    for shape in ((0, 5, 8), (2, 0, 8)):
        convolution.zero_grad()
        convolution(torch.zeros(shape, dtype=dtype, requires_grad=True)).sum().backward()
        assert convolution.weight.grad.abs().max() == 0


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_rate_the_scale_and_the_mean_of_dropout(p: float) -> None:
    torch.manual_seed(0)
    count = 400_000
    mask = keep_mask(torch.empty(count), p)
    kept = mask > 0
    # Five standard deviations of a binomial share.
    assert abs(float(kept.float().mean()) - (1 - p)) < 5 * (p * (1 - p) / count) ** 0.5
    torch.testing.assert_close(mask[kept], torch.full((int(kept.sum()),), 1 / (1 - p)), rtol=2e-4, atol=0)


def test_the_seed_decides_on_dropout_and_evaluation_changes_nothing() -> None:
    states, dropout = torch.randn(40, 40, requires_grad=True), Dropout(0.4)
    torch.manual_seed(3)
    first, second = dropout(states), dropout(states)
    torch.manual_seed(3)
    assert torch.equal(dropout(states), first) and not torch.equal(first, second)
    assert torch.equal(dropout.eval()(states), states) and torch.equal(Dropout(0.0)(states), states)
    # The gradient passes where the value did.
    first.sum().backward()
    torch.testing.assert_close(states.grad * states, first)


class Doubled(nn.Module):
    """Stands for an adapter around a layer, which has the layer's weight too."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner
        self.weight, self.bias = inner.weight, inner.bias

    def forward(self, states: Tensor) -> Tensor:
        """Twice what the layer gives."""
        return 2 * self.inner(states)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_swiglu_says_the_same_without_gradients_and_leaves_its_input_alone(dtype: torch.dtype, wrapped: bool) -> None:
    layer = SwiGLU(tiny_config())
    stir(layer)
    layer.to(dtype)
    if wrapped:
        layer.gate_up_proj = Doubled(layer.gate_up_proj)
    states = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    before = states.clone()
    with torch.no_grad():
        found = layer(states)
    near = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 5e-2}[dtype]
    torch.testing.assert_close(found, layer(states).detach(), rtol=near, atol=near)
    assert torch.equal(states, before)


def stirred_norm(width: int) -> RMSNorm:
    torch.manual_seed(0)
    norm = RMSNorm(width, eps=1e-6)
    torch.nn.init.normal_(norm.weight, 1.0, 0.3)
    return norm


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_values_and_gradients_of_rms_norm_are_those_of_torch(scale: float) -> None:
    norm, states = stirred_norm(16), scale * torch.randn(2, 7, 16)
    results = []
    for compute in (norm, lambda x: functional.rms_norm(x, (16,), norm.weight, 1e-6)):
        inputs = states.clone().requires_grad_()
        norm.zero_grad()
        output = compute(inputs)
        output.square().sum().backward()
        results.append((output.detach(), inputs.grad, norm.weight.grad))
    torch.testing.assert_close(*results, rtol=2e-5, atol=2e-5 / min(scale, 1.0))


@pytest.mark.parametrize("gradients", [False, True])
def test_rms_norm_of_half_precision_is_computed_in_fp32_and_keeps_its_type(gradients: bool) -> None:
    norm, states = stirred_norm(64).bfloat16(), torch.randn(3, 64).bfloat16()
    wanted = functional.rms_norm(states.double(), (64,), norm.weight.double(), 1e-6).bfloat16()
    with torch.set_grad_enabled(gradients):
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
