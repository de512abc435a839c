"""The recurrence: layers, a core of layers that is applied several times, and the loop that applies it.

The loop recurs, reads the exit's head, asks the rule, drops the rows that stop, and goes on. Training and inference,
scoring and decoding all run it. They differ in what they do at a stop and in how rows are dropped, which the layout
knows. An ONNX graph implements the same loop; tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from recurra.models.configuration import RecurraConfig
from recurra.models.exits.rules import ExitRule
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

    Guo et al., section 4.1.2. One call is one application; `run_recurrences` is the loop.
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


@dataclass(frozen=True)
class Stop:
    """An exit or the last recurrence, with states ``(batch, tokens or leading ones, hidden)`` of the remaining rows."""

    recurrence: int
    final: bool
    states: Tensor


# Says at a stop which of the remaining rows are dropped, ``(remaining,)``; None drops no row.
AtStop = Callable[[Stop], Tensor | None]
# Logits ``(remaining, ..., classes)`` of the head at a stop, given the indices of the remaining rows.
ReadHead = Callable[[Stop, Tensor], Tensor]
# Which positions of the remaining rows decide, ``(remaining, positions)``, given their indices; None means all.
CountedPositions = Callable[[Tensor], Tensor | None]


def run_recurrences(
    core: RecurrentCore,
    states: Tensor,
    layout: RowLayout,
    at_stop: AtStop,
    *,
    stops: Collection[int],
    last: int,
    queries: int | None = None,
    all_states: list[Tensor] | None = None,
) -> None:
    """Applies the core up to ``last`` times; rows that are dropped at a stop are no longer computed."""
    first = states
    for done in range(1, last + 1):
        final = done == last
        states = core(states, first, done - 1, layout, queries=queries if final else None, all_states=all_states)
        if not final and done not in stops:
            continue
        stop_states = states if final or queries is None else layout.leading(states, queries)
        stopping = at_stop(Stop(done, final, stop_states))
        if final or stopping is None:
            continue
        remaining = (~stopping).nonzero()[:, 0]
        if len(remaining) == len(stopping):
            continue
        dropped = stopping.nonzero()[:, 0]
        if isinstance(layout, CachedRows):
            skipped = layout.take(states, dropped), layout.take(first, dropped)
            layout.note_skipped(dropped, done, *core.skipped_keys_and_values(*skipped, done, layout.rotary))
        if not len(remaining):
            if isinstance(layout, CachedRows):
                layout.skip_recurrences(core.num_recurrences - done)
            break
        states, first, layout = layout.take(states, remaining), layout.take(first, remaining), layout.select(remaining)
        if not states.numel():
            break  # Only rows without tokens remain, which fill a packed batch up and whose logits mean nothing.


def exit_early(
    core: RecurrentCore,
    states: Tensor,
    layout: RowLayout,
    rule: ExitRule,
    read_head: ReadHead,
    *,
    rows: int,
    stops: Collection[int],
    last: int,
    counted: CountedPositions | None = None,
    queries: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Lets each row stop after the first exit where the rule says so; returns its logits, and its recurrences."""
    remaining = torch.arange(rows, device=states.device)
    exited_after = torch.full((rows,), last, device=states.device)
    logits: Tensor | None = None

    def at_stop(stop: Stop) -> Tensor | None:
        nonlocal remaining, logits
        if not stop.final and not rule.asks(stop.recurrence):
            return None
        head_logits = read_head(stop, remaining)
        exits = torch.ones_like(remaining, dtype=torch.bool)
        if not stop.final:
            positions = None if counted is None else counted(remaining)
            exits = rule.decide(head_logits, stop.recurrence, counted=positions, rows=remaining)
        if logits is None:
            all_stop = len(remaining) == rows and bool(exits.all())
            logits = head_logits if all_stop else head_logits.new_zeros(rows, *head_logits.shape[1:])
        stopped, remaining = remaining[exits], remaining[~exits]
        exited_after[stopped] = stop.recurrence
        if logits is not head_logits:
            logits[stopped] = head_logits[exits]
        return exits

    run_recurrences(core, states, layout, at_stop, stops=stops, last=last, queries=queries)
    assert logits is not None
    return logits, exited_after
