"""Feed-forward networks: SwiGLU or a perceptron, position by position, or cycles of refinement.

The cycles are the conv-TRM of "CRT-Deep", section 3.1.2; embeddings can be refined by them too.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurra.models.configuration import RecurraConfig
from recurra.models.convolution import DepthwiseConvolution
from recurra.models.dropout import Dropout
from recurra.models.names import GELU, SWIGLU
from recurra.models.normalisation import make_norm
from recurra.models.rows.layout import RowLayout


class SwiGLU(nn.Module):
    """``W3 (SiLU(W1 x) * W2 x)`` (Shazeer 2020, equation 6, with biases); W1 and W2 are one matrix product."""

    def __init__(self, config: RecurraConfig) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, states: Tensor, layout: RowLayout | None = None) -> Tensor:  # noqa: ARG002 - as cycles are called
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


class TokenConvolution(nn.Module):
    """``Conv`` of equation 2: a depthwise dilated convolution and GELU, then, if asked for, a pointwise linear map."""

    def __init__(self, config: RecurraConfig, dilation: int, *, pointwise: bool) -> None:
        super().__init__()
        width = config.hidden_size
        self.depthwise = DepthwiseConvolution(width, config.kernel_size, dilation, causal=config.causal_convolution)
        self.pointwise = nn.Linear(width, width) if pointwise else nn.Identity()

    def forward(self, states: Tensor, layout: RowLayout) -> Tensor:
        """Maps ``(batch, tokens, hidden)`` to the same; rows do not see each other, nor padding."""
        return self.pointwise(functional.gelu(layout.convolve(states, self.depthwise)))


class Unmixed(nn.Module):
    """Stands where a cycle has no convolution."""

    def forward(self, states: Tensor, layout: RowLayout) -> Tensor:  # noqa: ARG002 - as a convolution is called
        """Returns the states."""
        return states


class Perceptron(nn.Module):
    """Out to the inner width, GELU, and back: the ``MLP`` of equation 2, and the whole network of BERT's layers."""

    def __init__(self, config: RecurraConfig) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, states: Tensor, layout: RowLayout | None = None) -> Tensor:  # noqa: ARG002 - as cycles are called
        """Maps ``(batch, tokens, hidden)`` to the same shape."""
        return self.down_proj(functional.gelu(self.up_proj(states)))


class Cycle(nn.Module):
    """``h <- h + Dropout(MLP(Norm(Conv(h))))`` (CRT-Deep, equation 2), or one of its ablations (table 3).

    ``conv`` leaves out the MLP, ``linear`` the convolution, ``depthwise`` the convolution's pointwise map.
    """

    def __init__(self, config: RecurraConfig, dilation: int) -> None:
        super().__init__()
        kind = config.feed_forward
        self.mixer = (
            TokenConvolution(config, dilation, pointwise=kind != "depthwise") if config.has_convolution else Unmixed()
        )
        self.norm = make_norm(config)
        self.transform = nn.Identity() if kind == "conv" else Perceptron(config)
        self.dropout = Dropout(config.hidden_dropout)

    def forward(self, states: Tensor, layout: RowLayout) -> Tensor:
        """Maps ``(batch, tokens, hidden)`` to the same."""
        return states + self.dropout(self.transform(self.norm(self.mixer(states, layout))))


class Refinement(nn.Module):
    """Cycles one after the other, each with weights of its own; dilations in turn, beginning with the first."""

    def __init__(self, config: RecurraConfig, num_cycles: int) -> None:
        super().__init__()
        dilations = config.dilations
        self.cycles = nn.ModuleList(Cycle(config, dilations[number % len(dilations)]) for number in range(num_cycles))

    def forward(self, states: Tensor, layout: RowLayout) -> Tensor:
        """Maps ``(batch, tokens, hidden)`` to the same."""
        for cycle in self.cycles:
            states = cycle(states, layout)
        return states


def make_feed_forward(config: RecurraConfig) -> nn.Module:
    """Returns a new feed-forward network of the configured kind, called with states and layout."""
    if config.has_cycles:
        return Refinement(config, config.num_cycles)
    return {SWIGLU: SwiGLU, GELU: Perceptron}[config.feed_forward](config)
