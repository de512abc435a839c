"""The recurrence: layers, a core of layers that is applied several times, and the loop that applies it.

The loop recurs, reads the exit's head, asks the rule, drops the rows that stop, and goes on. Training and inference,
scoring and decoding all run it. They differ in what they do at a stop and in how rows are dropped, which the layout
knows. An ONNX graph implements the same loop; tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn

from recurra.models.configuration import RecurraConfig
from recurra.models.layers import Dropout, SelfAttention, leave_matrices, make_feed_forward, make_norm, relax
from recurra.models.rows import CachedRows, RowLayout


class Layer(nn.Module):
    """Pre-norm Transformer layer: ``h' = h + Drop(MHA(Norm1(h)))``, ``out = h' + Drop(FFN(Norm2(h')))``.

    Cycles of refinement have dropout inside and none after them.
    """

    def __init__(self, config: RecurraConfig) -> None:
        super().__init__()
        self.attention_norm = make_norm(config)
        self.attention = SelfAttention(config)
        self.feed_forward_norm = make_norm(config)
        self.feed_forward = make_feed_forward(config)
        self.dropout = Dropout(config.hidden_dropout)
        self.feed_forward_dropout = nn.Identity() if config.has_cycles else self.dropout
        self.reads_neighbours = config.has_convolution

    def forward(self, states: Tensor, layout: RowLayout, queries: int | None = None) -> Tensor:
        """Maps ``(batch, tokens, hidden)`` to the same, or to its first ``queries`` positions if given."""
        # A convolution after attention reads more positions than ``queries``.
        narrowed = None if self.reads_neighbours else queries
        states = self._apply_branches(states, layout, narrowed)
        return states if queries == narrowed or queries is None else layout.leading(states, queries)

    def keys_and_values(self, states: Tensor, rotary: Tensor | None) -> tuple[Tensor, Tensor]:
        """Keys and values of states ``(batch, tokens, hidden)``, ``(batch, tokens, heads, head_dim)`` each."""
        return self.attention.keys_and_values(self.attention_norm(states), rotary)

    def _apply_branches(self, states: Tensor, layout: RowLayout, queries: int | None) -> Tensor:
        attended = self.attention(self.attention_norm(states), layout, queries)
        states = (states if queries is None else layout.leading(states, queries)) + self.dropout(attended)
        return states + self.feed_forward_dropout(self.feed_forward(self.feed_forward_norm(states), layout))


class PostNormLayer(Layer):
    """Post-norm: ``x' = Norm1(x + Drop(MHA(x)))``, ``out = Norm2(x' + Drop(FFN(x')))`` (CRT-Deep, section 4.2.2)."""

    def keys_and_values(self, states: Tensor, rotary: Tensor | None) -> tuple[Tensor, Tensor]:
        """Keys and values of the states, which get no norm first."""
        return self.attention.keys_and_values(states, rotary)

    def _apply_branches(self, states: Tensor, layout: RowLayout, queries: int | None) -> Tensor:
        attended = self.attention(states, layout, queries)
        states = (states if queries is None else layout.leading(states, queries)) + self.dropout(attended)
        states = self.attention_norm(states)
        return self.feed_forward_norm(states + self.feed_forward_dropout(self.feed_forward(states, layout)))


class LayerStack(nn.Module):
    """Layers one after another.

    With activation checkpointing (``model.activation_checkpointing_enable()`` of transformers) a training step keeps
    only the input of each layer application, and recomputes the rest when its gradient is needed.
    """

    # transformers looks for this attribute, sets it, and sets the function beside it.
    gradient_checkpointing = False
    _gradient_checkpointing_func: Callable[..., Tensor]

    def __init__(self, config: RecurraConfig, num_layers: int) -> None:
        super().__init__()
        kind = Layer if config.norm_placement == "pre" else PostNormLayer
        self.layers = nn.ModuleList(kind(config) for _ in range(num_layers))

    def forward(
        self,
        states: Tensor,
        layout: RowLayout,
        queries: int | None = None,
        all_states: list[Tensor] | None = None,
    ) -> Tensor:
        """Maps ``(batch, tokens, hidden)`` to the same; only the last layer is narrowed to ``queries`` positions."""
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            narrowed = queries if index == last else None
            if self.gradient_checkpointing and self.training and torch.is_grad_enabled():
                states = self._gradient_checkpointing_func(layer, states, layout, narrowed)
            else:
                states = layer(states, layout, narrowed)
            if all_states is not None:
                all_states.append(states)
        return states


class RecurrentCore(nn.Module):
    """A stack of layers that is applied ``num_recurrences`` times: ``h(r+1) = F(h(r)) + alpha h(r)``.

    Guo et al., section 4.1.2. One call is one application; `run` is the loop.
    Ours and optional: a recurrence embedding and the core's first input can be added to the input of F, but not to the
    residual term. Recurrences may have norms, biases and low-rank updates of their own, see `recurra.models.layers`.
    """

    def __init__(self, config: RecurraConfig) -> None:
        super().__init__()
        self.num_recurrences = config.num_recurrences
        self.block = LayerStack(config, config.num_core_layers)
        self.recurrences = None
        if config.is_relaxed:
            self.recurrences = nn.ModuleList(
                relax(lambda: LayerStack(config, config.num_core_layers), self.block, config)
                for _ in range(config.num_recurrences)
            )
            if config.recurrence_norms:
                leave_matrices(self.block)
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

    def forward(
        self,
        states: Tensor,
        first: Tensor,
        recurrence: int,
        layout: RowLayout,
        *,
        queries: int | None = None,
        all_states: list[Tensor] | None = None,
    ) -> Tensor:
        """Applies the core once to ``(batch, tokens, hidden)``; appends each layer's states, the returned ones last."""
        inputs = self._core_input(states, first, recurrence)
        updated = self._stack(recurrence)(inputs, layout, queries, all_states)
        carried = states if queries is None else layout.leading(states, queries)
        states = self._add_residual(updated, carried)
        if all_states is not None:
            all_states[-1] = states
        return states

    def run(
        self,
        states: Tensor,
        layout: RowLayout,
        at_stop: Callable[[int, Tensor], Tensor | None],
        *,
        stops: Collection[int],
        last: int,
        queries: int | None = None,
        all_states: list[Tensor] | None = None,
    ) -> None:
        """Applies the core up to ``last`` times; rows that are dropped at a stop are no longer computed.

        Args:
            at_stop: Called after the recurrences in ``stops`` and the last one with their number and the remaining
                rows' states, ``(batch, tokens or leading ones, hidden)``. Says which of these rows are dropped,
                ``(remaining,)``; None drops no row.
        """
        first = states
        for done in range(1, last + 1):
            final = done == last
            states = self(states, first, done - 1, layout, queries=queries if final else None, all_states=all_states)
            if not final and done not in stops:
                continue
            stopping = at_stop(done, states if final or queries is None else layout.leading(states, queries))
            if final or stopping is None:
                continue
            remaining = (~stopping).nonzero()[:, 0]
            if len(remaining) == len(stopping):
                continue
            dropped = stopping.nonzero()[:, 0]
            if isinstance(layout, CachedRows):
                skipped = layout.take(states, dropped), layout.take(first, dropped)
                layout.note_skipped(dropped, done, *self.skipped_keys_and_values(*skipped, done, layout.rotary))
            if not len(remaining):
                if isinstance(layout, CachedRows):
                    layout.skip_recurrences(self.num_recurrences - done)
                break
            states, first = layout.take(states, remaining), layout.take(first, remaining)
            layout = layout.select(remaining)
            if not states.numel():
                break  # Only rows without tokens remain, which fill a packed batch up and whose logits mean nothing.

    def skipped_keys_and_values(
        self, states: Tensor, first: Tensor, done: int, rotary: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Keys and values ``(rows, recurrences skipped, heads, head_dim)`` of the core's first layer.

        They are as if the recurrences after ``done`` left the states ``(rows, 1, hidden)`` unchanged.
        """
        inputs = [self._core_input(states, first, number) for number in range(done, self.num_recurrences)]
        if self.recurrences is None:
            inputs = [torch.cat(inputs, dim=1)]
        layers = [self._stack(number).layers[0] for number in range(done, done + len(inputs))]
        pairs = [layer.keys_and_values(part, rotary) for layer, part in zip(layers, inputs, strict=True)]
        keys, values = (torch.cat(part, dim=1) if len(part) > 1 else part[0] for part in zip(*pairs, strict=True))
        return keys, values

    def _stack(self, recurrence: int) -> nn.Module:
        """The layers of a recurrence; beyond the trained recurrences, those of the last one."""
        if self.recurrences is None:
            return self.block
        return self.recurrences[min(recurrence, len(self.recurrences) - 1)]

    def _core_input(self, states: Tensor, first: Tensor, recurrence: int) -> Tensor:
        inputs = states
        if self.adapter is not None:
            # Autocast gives half precision here; the residual stream keeps its own type.
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
