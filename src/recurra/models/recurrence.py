"""The recurrence itself: layers, and a core applied several times."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recurra.models.attention import SelfAttention
from recurra.models.configuration import RecurraConfig
from recurra.models.dropout import Dropout
from recurra.models.feed_forward import SwiGLU
from recurra.models.layout import Layout
from recurra.models.normalisation import RMSNorm


class Layer(nn.Module):
    """Pre-norm Transformer layer: ``h' = h + Drop(MHA(Norm1(h)))``, ``out = h' + Drop(FFN(Norm2(h')))``."""

    def __init__(self, config: RecurraConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.attention = SelfAttention(config)
        self.feed_forward_norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.feed_forward = SwiGLU(config)
        self.dropout = Dropout(config.hidden_dropout)

    def forward(self, states: Tensor, layout: Layout, queries: int | None = None) -> Tensor:
        """Maps ``(batch, tokens, hidden)`` to the same, or to its first ``queries`` positions if given."""
        attended = self.attention(self.attention_norm(states), layout, queries)
        states = (states if queries is None else layout.leading(states, queries)) + self.dropout(attended)
        return states + self.dropout(self.feed_forward(self.feed_forward_norm(states)))


class LayerStack(nn.Module):
    """Layers one after the other."""

    def __init__(self, config: RecurraConfig, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config) for _ in range(num_layers))

    def forward(self, states: Tensor, layout: Layout, queries: int | None = None) -> Tensor:
        """Maps ``(batch, tokens, hidden)`` to the same; only the last layer is narrowed to ``queries`` positions."""
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            states = layer(states, layout, queries if index == last else None)
        return states if queries is None or self.layers else layout.leading(states, queries)


class RecurrentCore(nn.Module):
    """A stack of layers applied ``num_recurrences`` times: ``h(r+1) = F(h(r)) + alpha h(r)``.

    Guo et al., section 4.1.2, for every r. Optional, ours: a recurrence embedding and the injection of the core's first
    input are added to what F reads; they do not enter the residual term.
    """

    def __init__(self, config: RecurraConfig) -> None:
        super().__init__()
        self.num_recurrences = config.num_recurrences
        self.block = LayerStack(config, config.num_core_layers)
        self.fixed_scale = config.residual_scale
        self.residual_scale = (
            nn.Parameter(torch.full((1,), float(config.residual_scale))) if config.learned_residual_scale else None
        )
        self.recurrence_embedding = (
            nn.Embedding(config.num_recurrences, config.hidden_size) if config.recurrence_embedding else None
        )
        self.adapter = (
            nn.Linear(2 * config.hidden_size, config.hidden_size) if config.input_injection == "concat" else None
        )
        self.adds_input = config.input_injection == "add"

    def forward(self, states: Tensor, layout: Layout, queries: int | None = None) -> Tensor:
        """Maps ``(batch, tokens, hidden)`` to the same; the last recurrence is narrowed to ``queries`` positions."""
        first = states
        for recurrence in range(self.num_recurrences):
            narrowed = queries if recurrence == self.num_recurrences - 1 else None
            updated = self.block(self._core_input(states, first, recurrence), layout, narrowed)
            carried = states if narrowed is None else layout.leading(states, narrowed)
            states = self._add_residual(updated, carried)
        return states

    def _core_input(self, states: Tensor, first: Tensor, recurrence: int) -> Tensor:
        inputs = states
        if self.adapter is not None:
            # Autocast gives half precision here; the residual stream stays in its own.
            inputs = self.adapter(torch.cat((states, first), dim=-1)).to(states.dtype)
        elif self.adds_input and recurrence > 0:
            inputs = inputs + first
        if self.recurrence_embedding is not None:
            inputs = inputs + self.recurrence_embedding.weight[recurrence]
        return inputs

    def _add_residual(self, updated: Tensor, carried: Tensor) -> Tensor:
        if self.residual_scale is not None:
            return updated + self.residual_scale.to(updated.dtype) * carried
        return updated if self.fixed_scale == 0 else torch.add(updated, carried, alpha=self.fixed_scale)
