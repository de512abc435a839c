"""The gated network without gradients: the same numbers by another order of operations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from recurra.models.layers import SwiGLU
from tiny import stir, tiny_config


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
