"""The layers of the ONNX graph: embeddings, norms, attention, feed-forward networks, one recurrence, pooling.

They compute the same as `recurra.models` on padded rows; see `docs/decisions/0010-onnx-by-hand.md`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from onnx import TensorProto

from recurra.deployment.onnx.graph import Array, Graph, Linear
from recurra.models.configuration import RecurraConfig
from recurra.models.names import GELU

_SHARED, _OWN = "model.core.block.", "model.core.recurrences.{}."


@dataclass(frozen=True)
class Rows:
    """Names of the values with one entry for each row of the batch, or for each of its rows that has not left.

    Attributes:
        states: States ``(batch, tokens, hidden)``; empty, as is ``numbers``, outside of loops over exits.
        numbers: Index of each row in the batch, ``(batch,)``.
        seen: Which keys a query may see, ``(batch, 1, tokens, tokens)``.
        first: Input states of the core, ``(batch, tokens, hidden)``.
        where: Index of each row's last token, ``(batch, 1)``, which the head reads; empty for other poolings.
        real: Mask of real tokens, ``(batch, tokens)``; empty if no layer needs it.
    """

    states: str = ""
    numbers: str = ""
    seen: str = ""
    first: str = ""
    where: str = ""
    real: str = ""

    def present(self) -> dict[str, str]:
        """The names that are not empty, by attribute."""
        return {field: name for field, name in vars(self).items() if name}

    def renamed(self, names: Sequence[str]) -> Rows:
        """The same values under other names, in the order of `present`."""
        return replace(self, **dict(zip(self.present(), names, strict=True)))


class LayerWriter:
    """Writes layers into a graph, or into the bodies and branches in it."""

    def __init__(
        self, graph: Graph, config: RecurraConfig, weights: Mapping[str, Array], linear: Linear, max_length: int
    ) -> None:
        self.graph = graph
        self.config, self.weights, self.linear = config, weights, linear
        self.max_length = max_length
        self.rows = Rows()
        # Name of the number of the recurrence that is written, from 0, if each has weights of its own.
        self._recurrence = ""
        self.token_positions = self.cosines = self.sines = ""

    @contextlib.contextmanager
    def among(self, rows: Rows) -> Iterator[None]:
        """Writes for other rows inside the context: those of the body of a loop."""
        before, self.rows = self.rows, rows
        yield
        self.rows = before

    def linear_map(
        self, graph: Graph, states: str, name: str, part: str = "", outputs: Callable[[Array], Array] = np.asarray
    ) -> str:
        """A linear map of ``(..., inputs)`` by its name among the model's weights, or a part of its outputs."""
        stored_name = part or name
        product = self.linear.product(graph, states, stored_name, outputs(self.weights[f"{name}.weight"]))
        mapped = graph.op("Add", product, self._weight(graph, f"{name}.bias", f"{stored_name}.bias", outputs))
        if not self._has_own(f"{name}.down"):
            return mapped
        lowered = graph.op("MatMul", states, self._weight(graph, f"{name}.down", f"{name}.down", np.transpose))
        up = self._weight(graph, f"{name}.up", f"{stored_name}.up", lambda values: outputs(values).T)
        return graph.op("Add", mapped, graph.op("MatMul", lowered, up))

    def _has_own(self, name: str) -> bool:
        """Whether each recurrence has its own weight under this name of the shared layers."""
        return bool(self._recurrence) and name.replace(_SHARED, _OWN.format(0)) in self.weights

    def _weight(self, graph: Graph, name: str, stored: str, take: Callable[[Array], Array] = np.asarray) -> str:
        """Stores a weight, changed by ``take``; if each recurrence has its own, stores all and selects one."""
        if not self._has_own(name):
            return graph.weight(stored, take(self.weights[name]))
        recurrences = range(self.config.num_recurrences)
        stacked = np.stack([take(self.weights[name.replace(_SHARED, _OWN.format(number))]) for number in recurrences])
        values = graph.weight(stored.replace(_SHARED, _OWN.format("all")), stacked)
        return graph.op("Gather", values, self._recurrence, axis=0)

    def norm(self, graph: Graph, states: str, name: str) -> str:
        """RMSNorm or LayerNorm."""
        scale = self._weight(graph, f"{name}.weight", f"{name}.weight")
        epsilon = self.config.rms_norm_eps
        if self.config.norm == "rms":
            return graph.op("RMSNormalization", states, scale, axis=-1, epsilon=epsilon)
        shift = self._weight(graph, f"{name}.bias", f"{name}.bias")
        return graph.op("LayerNormalization", states, scale, shift, axis=-1, epsilon=epsilon)

    def without_padding(self, graph: Graph, states: str, value: float) -> str:
        """States ``(batch, tokens, hidden)`` with ``value`` at padding."""
        real = graph.op("Cast", graph.op("Unsqueeze", self.rows.real, graph.numbers(2)), to=TensorProto.BOOL)
        return graph.op("Where", real, states, graph.number(value))

    def positions(self, ids: str) -> None:
        """Writes the positions ``(tokens,)``, and the cosines and sines of a rotary embedding."""
        graph, half = self.graph, self.config.head_dim // 2
        length = graph.op("Squeeze", graph.op("Shape", ids, start=1, end=2))
        self.token_positions = graph.op("Range", graph.constant(0, np.int64), length, graph.constant(1, np.int64))
        if self.config.position != "rotary":
            return
        rates = self.config.rope_theta ** (-np.arange(0, 2 * half, 2, dtype=np.float32) / self.config.head_dim)
        angles = np.outer(np.arange(self.max_length, dtype=np.float32), rates.astype(np.float32))
        self.cosines = graph.weight("rotary.cosines", np.cos(angles).astype(np.float32))
        self.sines = graph.weight("rotary.sines", np.sin(angles).astype(np.float32))

    def mask(self, mask: str) -> None:
        """Computes the values of `Rows` that depend on the mask.

        The mask of visible keys is ``(batch, 1, tokens, tokens)``, because runtimes do not broadcast it to all queries.
        """
        graph = self.graph
        seen = graph.op("Unsqueeze", graph.op("Cast", mask, to=TensorProto.BOOL), graph.numbers(1, 2))
        if self.config.causal:
            rows, columns = (graph.op("Unsqueeze", self.token_positions, graph.numbers(axis)) for axis in (1, 0))
            # The diagonal stays visible: a padded query without any key would give NaN.
            diagonal = graph.op("Equal", rows, columns)
            seen = graph.op("Or", graph.op("And", seen, graph.op("GreaterOrEqual", rows, columns)), diagonal)
        else:
            tokens = graph.op("Shape", mask, start=1, end=2)
            seen = graph.op("Expand", seen, graph.op("Concat", graph.numbers(1, 1), tokens, graph.numbers(1), axis=0))
        where = ""
        if self.config.pooling == "last":
            real = graph.op("Cast", graph.op("Cast", mask, to=TensorProto.BOOL), to=TensorProto.INT64)
            where = graph.op("ArgMax", graph.op("Mul", real, self.token_positions), axis=1, keepdims=1)
        reads_mask = self.config.has_convolution or self.config.pooling in ("max", "mean")
        self.rows = Rows(seen=seen, where=where, real=mask if reads_mask else "")

    def embed(self, ids: str, mask: str) -> str:
        """Embedding of tokens, ``(batch, tokens, hidden)``."""
        graph, prefix = self.graph, "model.embeddings"
        states = self.linear.embed(graph, ids, f"{prefix}.token", self.weights[f"{prefix}.token.weight"])
        if self.config.token_embedding_size != self.config.hidden_size:
            states = self.linear_map(graph, states, f"{prefix}.projection")
        if self.config.position == "learned":
            # Only real tokens are counted, so that padding on the left shifts no position.
            one, zero = (graph.constant(number, np.int64) for number in (1, 0))
            positions = graph.op("Max", graph.op("Sub", graph.op("CumSum", mask, one), one), zero)
            table = self.weights[f"{prefix}.position.weight"][: self.max_length]
            states = graph.op("Add", states, self.linear.embed(graph, positions, f"{prefix}.position", table))
        if self.config.type_vocab_size:
            type_vector = graph.weight(f"{prefix}.token_type.0", self.weights[f"{prefix}.token_type.weight"][0])
            states = graph.op("Add", states, type_vector)
        return self.norm(graph, states, f"{prefix}.norm")

    def stack(self, graph: Graph, states: str, prefix: str, layers: int, *, narrow: bool) -> str:
        """A stack of layers; ``narrow`` computes only the first position of the last one."""
        if not layers:
            return states
        positions = graph.op("Expand", self.token_positions, graph.op("Shape", states, start=0, end=2))
        for index in range(layers):
            last = narrow and index == layers - 1
            states = self._layer(graph, states, f"{prefix}.layers.{index}", positions, narrow=last)
        return states

    def _layer(self, graph: Graph, states: str, name: str, positions: str, *, narrow: bool) -> str:
        """One layer; ``narrow`` computes only its first position."""
        if narrow and self.config.has_convolution:
            # A convolution after attention reads other positions than the first.
            return graph.slice(self._layer(graph, states, name, positions, narrow=False), 0, 1, 1)
        before = self.config.norm_placement == "pre"
        normed = self.norm(graph, states, f"{name}.attention_norm") if before else states
        attended = self._attention(graph, normed, f"{name}.attention", positions, narrow=narrow)
        states = graph.op("Add", graph.slice(states, 0, 1, 1) if narrow else states, attended)
        inner = self.norm(graph, states, f"{name}.{'feed_forward' if before else 'attention'}_norm")
        changed = self._feed_forward(graph, inner, f"{name}.feed_forward")
        if before:
            return graph.op("Add", states, changed)
        return self.norm(graph, graph.op("Add", inner, changed), f"{name}.feed_forward_norm")

    def _feed_forward(self, graph: Graph, states: str, name: str) -> str:
        if self.config.has_cycles:
            return self._cycles(graph, states, name)
        if self.config.feed_forward == GELU:
            return self._perceptron(graph, states, name)
        # Two products, because splitting the result of one copies it, which takes a sixth of a batch's time.
        gate, up = (
            self.linear_map(graph, states, f"{name}.gate_up_proj", f"{name}.{part}_proj", partial(_half, index))
            for index, part in enumerate(("gate", "up"))
        )
        gated = graph.op("Mul", graph.op("Mul", gate, graph.op("Sigmoid", gate)), up)
        return self.linear_map(graph, gated, f"{name}.down_proj")

    def _perceptron(self, graph: Graph, states: str, name: str) -> str:
        up = graph.op("Gelu", self.linear_map(graph, states, f"{name}.up_proj"))
        return self.linear_map(graph, up, f"{name}.down_proj")

    def _cycles(self, graph: Graph, states: str, name: str) -> str:
        config = self.config
        for number in range(config.num_cycles):
            cycle = f"{name}.cycles.{number}"
            mixed = states
            if config.has_convolution:
                dilation = config.dilations[number % len(config.dilations)]
                mixed = graph.op("Gelu", self._convolve(graph, states, f"{cycle}.mixer.depthwise", dilation))
                if config.feed_forward != "depthwise":
                    mixed = self.linear_map(graph, mixed, f"{cycle}.mixer.pointwise")
            inner = self.norm(graph, mixed, f"{cycle}.norm")
            if config.feed_forward != "conv":
                inner = self._perceptron(graph, inner, f"{cycle}.transform")
            states = graph.op("Add", states, inner)
        return states

    def _convolve(self, graph: Graph, states: str, name: str, dilation: int) -> str:
        """A depthwise convolution within each row; padding and positions beyond the row are read as zeros."""
        config = self.config
        taps = self.weights[f"{name}.weight"]
        weight = graph.weight(f"{name}.weight", np.ascontiguousarray(taps.T[:, None]))
        reach = (config.kernel_size - 1) * dilation
        ahead = 0 if config.causal_convolution else reach // 2
        convolved = graph.op(
            "Conv",
            graph.op("Transpose", self.without_padding(graph, states, 0.0), perm=[0, 2, 1]),
            weight,
            group=config.hidden_size,
            dilations=[dilation],
            kernel_shape=[config.kernel_size],
            pads=[reach - ahead, ahead],
        )
        return graph.op("Transpose", convolved, perm=[0, 2, 1])

    def _attention(self, graph: Graph, states: str, name: str, positions: str, *, narrow: bool) -> str:
        """Attention with separate products for queries, keys and values: splitting the result of one copies it."""
        heads = self.config.num_attention_heads
        query_states, query_positions, seen = states, positions, self.rows.seen
        if narrow:
            query_states, query_positions = (graph.slice(value, 0, 1, 1) for value in (states, positions))
            seen = graph.slice(seen, 0, 1, 2)
        query, key, value = (
            self.linear_map(graph, inputs, f"{name}.qkv_proj", f"{name}.{part}_proj", partial(self._third, part))
            for part, inputs in (("q", query_states), ("k", states), ("v", states))
        )
        if self.config.position == "rotary":
            query, key = self._turn(graph, query, query_positions), self._turn(graph, key, positions)
        attended = graph.op("Attention", query, key, value, seen, q_num_heads=heads, kv_num_heads=heads)
        return self.linear_map(graph, attended, f"{name}.out_proj")

    def _third(self, part: str, values: Array) -> Array:
        """Weights of queries, keys or values; for the former two a rotary pair is moved to ``(i, i + head_dim / 2)``.

        Queries and keys are reordered alike, which changes no score; rotating adjacent pairs would be slower.
        """
        config = self.config
        part_values: Array = np.split(values, 3)["qkv".index(part)]
        if part == "v" or config.position != "rotary":
            return part_values
        order = np.concatenate([np.arange(0, config.head_dim, 2), np.arange(1, config.head_dim, 2)])
        heads = part_values.reshape(config.num_attention_heads, config.head_dim, -1)
        return heads[:, order].reshape(part_values.shape)

    def _turn(self, graph: Graph, states: str, positions: str) -> str:
        """Rotary embedding of ``(batch, tokens, hidden)`` at positions ``(batch, tokens)``."""
        heads = self.config.num_attention_heads
        return graph.op("RotaryEmbedding", states, self.cosines, self.sines, positions, num_heads=heads)

    def recurrence(self, graph: Graph, states: str, index: str, *, narrow: bool) -> str:
        """One application of the core; ``index`` is its number, from 0."""
        config, prefix = self.config, "model.core"
        inputs = states
        if config.input_injection == "concat":
            inputs = self.linear_map(graph, graph.op("Concat", states, self.rows.first, axis=-1), f"{prefix}.adapter")
        elif config.input_injection == "add":
            later = graph.op("Cast", graph.op("Greater", index, graph.constant(0, np.int64)), to=TensorProto.FLOAT)
            inputs = graph.op("Add", states, graph.op("Mul", self.rows.first, later))
        if config.recurrence_embedding:
            name = f"{prefix}.recurrence_embedding.weight"
            inputs = graph.op("Add", inputs, graph.op("Gather", graph.weight(name, self.weights[name]), index, axis=0))
        if config.is_relaxed:
            # Beyond the trained recurrences the weights are those of the last.
            self._recurrence = graph.op("Min", index, graph.constant(config.num_recurrences - 1, np.int64))
        updated = self.stack(graph, inputs, f"{prefix}.block", config.num_core_layers, narrow=narrow)
        self._recurrence = ""
        carried = graph.slice(states, 0, 1, 1) if narrow else states
        if config.learned_residual_scale:
            name = f"{prefix}.residual_scale"
            scale = graph.weight(name, self.weights[name])
        elif config.residual_scale == 0:
            return updated
        else:
            scale = graph.number(config.residual_scale)
        return graph.op("Add", updated, graph.op("Mul", carried, scale))

    def read(self, graph: Graph, states: str) -> str:
        """The input of a head for each row, ``(batch, hidden)``: normed, if the model norms it, and pooled."""
        if self.config.pooling in ("max", "mean"):
            return self._pool(graph, self._final_norm(graph, states))
        # Only one position is read, so the others need no norm.
        return self._final_norm(graph, self._pool(graph, states))

    def _pool(self, graph: Graph, states: str) -> str:
        if self.config.pooling == "first":
            return graph.op("Squeeze", graph.slice(states, 0, 1, 1), graph.numbers(1))
        if self.config.pooling == "max":
            real = self.without_padding(graph, states, -np.inf)
            return graph.op("ReduceMax", real, graph.numbers(1), keepdims=0)
        if self.config.pooling == "mean":
            total = graph.op("ReduceSum", self.without_padding(graph, states, 0.0), graph.numbers(1), keepdims=0)
            tokens = graph.op("ReduceSum", self.rows.real, graph.numbers(1), keepdims=1)
            return graph.op("Div", total, graph.op("Cast", tokens, to=TensorProto.FLOAT))
        where = graph.op("Unsqueeze", self.rows.where, graph.numbers(2))
        size = graph.op(
            "Concat", graph.op("Shape", where, start=0, end=2), graph.numbers(self.config.hidden_size), axis=0
        )
        row = graph.op("GatherElements", states, graph.op("Expand", where, size), axis=1)
        return graph.op("Squeeze", row, graph.numbers(1))

    def _final_norm(self, graph: Graph, states: str) -> str:
        return self.norm(graph, states, "model.final_norm") if self.config.final_norm else states

    def head(self, graph: Graph, pooled: str) -> tuple[str, str]:
        """The final head's product and its bias, to be added."""
        weight, bias = self.weights["classifier.weight"], self.weights["classifier.bias"]
        product = graph.op("MatMul", pooled, graph.weight("classifier.weight", weight.T))
        return product, graph.weight("classifier.bias", bias)


def _half(index: int, values: Array) -> Array:
    half_values: Array = np.split(values, 2)[index]
    return half_values
