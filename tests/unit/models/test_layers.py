"""Layers against their formulas and torch's own, in values and gradients, and in half precision."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from recurra import RecurraModel
from recurra.models.layers import (
    BatchNorm,
    DepthwiseConvolution,
    Dropout,
    RMSNorm,
    SwiGLU,
    apply_rotary,
    keep_mask,
    rotary_table,
)
from recurra.models.rows import attend, attention_mask, padding_mask
from tiny import stir, tiny_config, tiny_model

CPU = torch.device("cpu")


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 400), st.sampled_from([2, 4, 16, 64]))
@settings(max_examples=50)
def test_scores_depend_on_the_relative_position_alone(first: int, second: int, shift: int, width: int) -> None:
    dice = torch.Generator().manual_seed(first * 41 + second)
    query, key = torch.randn(2, 1, 1, width, generator=dice, dtype=torch.float64)
    table = rotary_table(512, width, 10_000.0, CPU)

    def score(at_query: int, at_key: int) -> float:
        turned = apply_rotary(query, table[at_query : at_query + 1])
        return float((turned * apply_rotary(key, table[at_key : at_key + 1])).sum())

    assert score(first + shift, second + shift) == pytest.approx(score(first, second), abs=2e-4 * math.sqrt(width))


def _reload(model: RecurraModel, folder: Path) -> RecurraModel:
    model.save_pretrained(folder)
    return RecurraModel.from_pretrained(folder)


@pytest.mark.parametrize(
    "move",
    [
        lambda model, _: model.to(torch.bfloat16),
        lambda model, _: model.half().float(),
        lambda model, _: copy.deepcopy(model),
        _reload,
        lambda model, folder: _reload(model.to(torch.bfloat16), folder),
    ],
    ids=["to", "half", "copy", "saved", "saved in bf16"],
)
def test_the_rotary_table_survives(move: Callable[[RecurraModel, Path], RecurraModel], tmp_path: Path) -> None:
    """A buffer outside the checkpoint: loading leaves it at zero, half precision would round its angles."""
    moved = move(tiny_model().model, tmp_path)
    assert moved.rotary.dtype == torch.float32
    assert torch.equal(moved.rotary, rotary_table(64, 8, 10_000.0, CPU))
    assert not any("rotary" in name for name in moved.state_dict())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_a_row_of_padding_gives_no_nan_and_leaves_the_others_alone(causal: bool, dtype: torch.dtype) -> None:
    model = tiny_model(causal=causal).to(dtype).train()
    model.config.hidden_dropout = 0.0
    model.eval()
    ids = torch.randint(1, 40, (3, 6), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(3, 6, dtype=torch.long)
    mask[1] = 0
    mask[2, 4:] = 0
    output = model(ids, mask, labels=torch.tensor([0, 1, 0]))
    assert torch.isfinite(output.logits).all()
    output.loss.backward()
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters() if weight.grad is not None)
    alone = model(ids[:1]).logits
    torch.testing.assert_close(output.logits[:1], alone, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("queries", [9, 1])
@pytest.mark.parametrize("gradients", [True, False])
def test_half_precision_attention_equals_the_fused_kernel_in_fp32(
    causal: bool, masked: bool, queries: int, gradients: bool
) -> None:
    dice = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(3, 2, 9, 8, generator=dice).bfloat16() for _ in range(3))
    query = query[:, :, :queries]
    keep = torch.arange(9) < torch.tensor([[9], [4], [6]] if masked else [[9]] * 3)
    mask, kernel_causal = attention_mask(padding_mask(keep), 9, causal, CPU)
    if mask is not None and mask.shape[-2] > 1:
        mask = mask[:, :, :queries]
    assert (mask is None) == (not masked)
    with torch.set_grad_enabled(gradients):
        ours = attend(query, key, value, mask, kernel_causal)
    wanted = functional.scaled_dot_product_attention(
        query.float(), key.float(), value.float(), attn_mask=mask, is_causal=kernel_causal
    )
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours.float(), wanted, rtol=2e-2, atol=2e-2)


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


def network(dtype: torch.dtype) -> SwiGLU:
    layer = SwiGLU(tiny_config())
    stir(layer)
    return layer.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_without_gradients_it_equals_the_formula_and_leaves_its_input_alone(dtype: torch.dtype) -> None:
    layer = network(dtype)
    states = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    before = states.clone()
    with torch.no_grad():
        found = layer(states)
    first, second = layer.gate_up_proj.weight.double().chunk(2)
    first_bias, second_bias = layer.gate_up_proj.bias.double().chunk(2)
    gate = functional.linear(states.double(), first, first_bias)
    inner = gate * torch.sigmoid(gate) * functional.linear(states.double(), second, second_bias)
    wanted = functional.linear(inner, layer.down_proj.weight.double(), layer.down_proj.bias.double())
    near = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 5e-2}[dtype]
    torch.testing.assert_close(found.double(), wanted, rtol=near, atol=near)
    torch.testing.assert_close(found, layer(states).detach(), rtol=near, atol=near)
    assert torch.equal(states, before)


class Doubled(nn.Module):
    """Stands for an adapter around a layer, which has the layer's weight too."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner
        self.weight, self.bias = inner.weight, inner.bias

    def forward(self, states: Tensor) -> Tensor:
        """Twice what the layer gives."""
        return 2 * self.inner(states)


def test_a_wrapped_layer_is_called_without_gradients_too() -> None:
    layer = network(torch.float32)
    layer.gate_up_proj = Doubled(layer.gate_up_proj)
    states = torch.randn(2, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = layer(states)
    torch.testing.assert_close(found, layer(states).detach())


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
