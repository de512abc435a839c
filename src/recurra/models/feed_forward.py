"""Feed-forward networks: SwiGLU or a perceptron, position by position, or cycles of refinement.

The cycles are the conv-TRM of "CRT-Deep", section 3.1.2; embeddings can be refined by them too.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurra.models.configuration import RecurraConfig
from recurra.models.convolution import DepthwiseConvolution
from recurra.models.names import GELU, SWIGLU
from recurra.models.normalisation import Dropout, make_norm
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


class ScaleKeepingLinear(nn.Linear):
    """A map up from a narrow token table whose fresh weights keep the table's scale.

    Weights of ``initializer_range`` would shrink the token to a fraction of what is added to it next: positions, and
    the first branch of the first layer. Then a small language model learns the frequencies of words and little else for
    hundreds of steps (`docs/log.md`). Where a norm follows, the scale does not matter.
    """

    def reset_scale(self) -> None:
        """Draws the weights."""
        nn.init.normal_(self.weight, std=self.in_features**-0.5)


class Embeddings(nn.Module):
    """Token table (optionally factorised and refined by cycles), learned positions if not rotary, types, norm, dropout.

    With refinement: ``E = TRM(Linear(Embed(x))) + PosEmbed(p)`` (CRT-Deep, equation 1).
    """

    def __init__(self, config: RecurraConfig) -> None:
        super().__init__()
        width = config.token_embedding_size
        self.token = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        linear = nn.Linear if config.embedding_norm else ScaleKeepingLinear
        self.projection = linear(width, config.hidden_size) if width != config.hidden_size else nn.Identity()
        self.refinement = Refinement(config, config.embedding_cycles) if config.embedding_cycles else None
        learned = config.position == "learned"
        self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size) if learned else None
        self.token_type = nn.Embedding(config.type_vocab_size, config.hidden_size) if config.type_vocab_size else None
        self.norm = make_norm(config) if config.embedding_norm else nn.Identity()
        given = config.embedding_dropout
        self.dropout = Dropout(config.hidden_dropout if given is None else given)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None, layout: RowLayout) -> Tensor:
        """Maps ids ``(batch, tokens)`` to states ``(batch, tokens, hidden)``; missing token types mean type 0."""
        # Under autocast the projection gives half precision; the residual stream has the type of the weights.
        states = self.projection(self.token(input_ids)).to(self.token.weight.dtype)
        if self.refinement is not None:
            states = self.refinement(states, layout)
        if self.position is not None:
            states = states + self.position(layout.positions(input_ids.device))
        if self.token_type is not None:
            types = self.token_type.weight[0] if token_type_ids is None else self.token_type(token_type_ids)
            states = states + types
        return self.dropout(self.norm(states))

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        return f"factorised={isinstance(self.projection, nn.Linear)}"
