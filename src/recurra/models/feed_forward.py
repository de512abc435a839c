"""Feed-forward networks: SwiGLU, position by position, or cycles of refinement."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurra.models.configuration import SWIGLU, RecurraConfig
from recurra.models.layout import Layout
from recurra.models.refinement import Refinement


class SwiGLU(nn.Module):
    """``W3 (SiLU(W1 x) * W2 x)`` (Shazeer 2020, equation 6, with biases); W1 and W2 are one matrix product."""

    def __init__(self, config: RecurraConfig) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, states: Tensor, layout: Layout | None = None) -> Tensor:  # noqa: ARG002 - as cycles are called
        """Maps ``(batch, tokens, hidden)`` to the same shape."""
        # A layer that was wrapped or quantised has to be called.
        if states.device.type == "cpu" and not torch.is_grad_enabled() and type(self.gate_up_proj) is nn.Linear:
            return self.down_proj(self._gated(states))
        gate, up = self.gate_up_proj(states).chunk(2, dim=-1)
        return self.down_proj(functional.silu(gate) * up)

    def _gated(self, states: Tensor) -> Tensor:
        """The gated product without anything kept for a backward pass.

        Two halves that are contiguous can be overwritten: the gate becomes the result, and half as much memory is
        written as by operations that each make their own.
        """
        gate_weight, up_weight = self.gate_up_proj.weight.chunk(2)
        gate_bias, up_bias = self.gate_up_proj.bias.chunk(2)
        gate = functional.silu(functional.linear(states, gate_weight, gate_bias), inplace=True)
        return gate.mul_(functional.linear(states, up_weight, up_bias))


def make_feed_forward(config: RecurraConfig) -> nn.Module:
    """Returns a new feed-forward network of the configured kind, called with states and layout."""
    return SwiGLU(config) if config.feed_forward == SWIGLU else Refinement(config, config.num_cycles)
