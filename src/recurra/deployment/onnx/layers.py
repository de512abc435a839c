"""The layers of the ONNX graph: embeddings, norms, attention, feed-forward networks, one recurrence, pooling.

Operation by operation what `recurra.models` computes on padded rows; see `docs/decisions/0010-onnx-by-hand.md`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import TensorProto

from recurra.deployment.onnx.graph import Array, Graph, Linear, PartWriter, Rows
from recurra.models.configuration import RecurraConfig
from recurra.models.names import GELU


def write_feed_forward(parts: PartWriter, graph: Graph, states: str, name: str) -> str:
    """Adds a feed-forward network.

    Args:
        parts: Writes maps and norms, and knows which tokens are real.
        graph: Where.
        states: ``(batch, tokens, hidden)``.
        name: The network's name among the model's weights.

    Returns:
        States of the same shape.
    """
    if parts.config.has_cycles:
        return _write_cycles(parts, graph, states, name)
    if parts.config.feed_forward == GELU:
        return _perceptron(parts, graph, states, name)
    gate, up = _gate_and_up(parts, graph, states, name)
    gated = graph.op("Mul", graph.op("Mul", gate, graph.op("Sigmoid", gate)), up)
    return parts.linear_map(graph, gated, f"{name}.down_proj")


def _gate_and_up(parts: PartWriter, graph: Graph, states: str, name: str) -> tuple[str, str]:
    """Two products: to cut the result of one in halves copies it, a sixth of the time of a batch."""
    gate, up = (
        parts.linear_map(graph, states, f"{name}.gate_up_proj", f"{name}.{part}_proj", outputs)
        for part, outputs in (("gate", _first_half), ("up", _second_half))
    )
    return gate, up


def _first_half(values: Array) -> Array:
    return values[: len(values) // 2]


def _second_half(values: Array) -> Array:
    return values[len(values) // 2 :]


def _perceptron(parts: PartWriter, graph: Graph, states: str, name: str) -> str:
    up = graph.op("Gelu", parts.linear_map(graph, states, f"{name}.up_proj"))
    return parts.linear_map(graph, up, f"{name}.down_proj")


def _write_cycles(parts: PartWriter, graph: Graph, states: str, name: str) -> str:
    config = parts.config
    for number in range(config.num_cycles):
        cycle = f"{name}.cycles.{number}"
        mixed = states
        if config.has_convolution:
            dilation = config.dilations[number % len(config.dilations)]
            mixed = graph.op("Gelu", _convolve(parts, graph, states, f"{cycle}.mixer.depthwise", dilation))
            if config.feed_forward != "depthwise":
                mixed = parts.linear_map(graph, mixed, f"{cycle}.mixer.pointwise")
        inner = parts.norm(graph, mixed, f"{cycle}.norm")
        if config.feed_forward != "conv":
            inner = _perceptron(parts, graph, inner, f"{cycle}.transform")
        states = graph.op("Add", states, inner)
    return states


def _convolve(parts: PartWriter, graph: Graph, states: str, name: str, dilation: int) -> str:
    """A depthwise convolution within each row; zeros are read in place of padding and beyond the row."""
    config = parts.config
    taps = parts.weights[f"{name}.weight"]
    weight = graph.weight(f"{name}.weight", np.ascontiguousarray(taps.T[:, None]))
    reach = (config.kernel_size - 1) * dilation
    ahead = 0 if config.causal_convolution else reach // 2
    convolved = graph.op(
        "Conv",
        graph.op("Transpose", parts.without_padding(graph, states, 0.0), perm=[0, 2, 1]),
        weight,
        group=config.hidden_size,
        dilations=[dilation],
        kernel_shape=[config.kernel_size],
        pads=[reach - ahead, ahead],
    )
    return str(graph.op("Transpose", convolved, perm=[0, 2, 1]))


class LayerWriter(PartWriter):
    """Writes layers into a graph, or into the bodies and branches in it.

    Args:
        graph: The main graph.
        config: The model's.
        weights: By the names of the model's state; FP32.
        linear: How linear maps and the token table are stored.
        max_length: Most tokens of a row.
    """

    def __init__(
        self, graph: Graph, config: RecurraConfig, weights: Mapping[str, Array], linear: Linear, max_length: int
    ) -> None:
        super().__init__(graph, config, weights, linear)
        self.max_length = max_length
        self.places = self.cosines = self.sines = ""

    def positions(self, ids: str) -> None:
        """Numbers of a row's positions ``(tokens,)``, and what the rotary embedding, if any, turns each by."""
        graph, half = self.graph, self.config.head_dim // 2
        length = graph.op("Squeeze", graph.op("Shape", ids, start=1, end=2))
        self.places = graph.op("Range", graph.constant(0, np.int64), length, graph.constant(1, np.int64))
        if self.config.position == "learned":
            return
        rates = self.config.rope_theta ** (-np.arange(0, 2 * half, 2, dtype=np.float32) / self.config.head_dim)
        angles = np.outer(np.arange(self.max_length, dtype=np.float32), rates.astype(np.float32))
        self.cosines = graph.weight("rotary.cosines", np.cos(angles).astype(np.float32))
        self.sines = graph.weight("rotary.sines", np.sin(angles).astype(np.float32))

    def mask(self, mask: str) -> None:
        """Makes what `Rows` says of the mask.

        Which keys a query may see is ``(batch, 1, tokens, tokens)``, for runtimes do not widen it to all queries.
        """
        graph = self.graph
        seen = graph.op("Unsqueeze", graph.op("Cast", mask, to=TensorProto.BOOL), graph.numbers(1, 2))
        if self.config.causal:
            rows, columns = (graph.op("Unsqueeze", self.places, graph.numbers(axis)) for axis in (1, 0))
            # The diagonal stays open: a padded query without a key would be no number.
            own = graph.op("Equal", rows, columns)
            seen = graph.op("Or", graph.op("And", seen, graph.op("GreaterOrEqual", rows, columns)), own)
        else:
            tokens = graph.op("Shape", mask, start=1, end=2)
            seen = graph.op("Expand", seen, graph.op("Concat", graph.numbers(1, 1), tokens, graph.numbers(1), axis=0))
        where = self._last_places(mask) if self.config.pooling == "last" else ""
        asked = self.config.has_convolution or self.config.pooling in ("max", "mean")
        self.rows = Rows(seen=seen, where=where, real=mask if asked else "")

    def embed(self, ids: str, mask: str) -> str:
        """Embedding of tokens, ``(batch, tokens, hidden)``."""
        graph, prefix = self.graph, "model.embeddings"
        states = self.linear.embed(graph, ids, f"{prefix}.token", self.weights[f"{prefix}.token.weight"])
        if self.config.token_embedding_size != self.config.hidden_size:
            states = self.linear_map(graph, states, f"{prefix}.projection")
        if self.config.position == "learned":
            # Real tokens are counted, so that padding on the left moves nothing.
            one, zero = (graph.constant(number, np.int64) for number in (1, 0))
            places = graph.op("Max", graph.op("Sub", graph.op("CumSum", mask, one), one), zero)
            table = self.weights[f"{prefix}.position.weight"][: self.max_length]
            states = graph.op("Add", states, self.linear.embed(graph, places, f"{prefix}.position", table))
        if self.config.type_vocab_size:
            kind = graph.weight(f"{prefix}.token_type.0", self.weights[f"{prefix}.token_type.weight"][0])
            states = graph.op("Add", states, kind)
        return self.norm(graph, states, f"{prefix}.norm")

    def stack(self, graph: Graph, states: str, prefix: str, layers: int, *, narrow: bool) -> str:
        """Layers one after the other; ``narrow`` gives the first position of the last one only."""
        if not layers:
            return states
        positions = graph.op("Expand", self.places, graph.op("Shape", states, start=0, end=2))
        for index in range(layers):
            last = narrow and index == layers - 1
            states = self._layer(graph, states, f"{prefix}.layers.{index}", positions, narrow=last)
        return states

    def _layer(self, graph: Graph, states: str, name: str, positions: str, *, narrow: bool) -> str:
        """One layer; ``narrow`` gives its first position only."""
        if narrow and self.config.has_convolution:
            # A convolution after attention reads positions that are not asked for.
            return graph.slice(self._layer(graph, states, name, positions, narrow=False), 0, 1, 1)
        before = self.config.norm_placement == "pre"
        normed = self.norm(graph, states, f"{name}.attention_norm") if before else states
        attended = self._attention(graph, normed, f"{name}.attention", positions, narrow=narrow)
        states = str(graph.op("Add", graph.slice(states, 0, 1, 1) if narrow else states, attended))
        inner = self.norm(graph, states, f"{name}.{'feed_forward' if before else 'attention'}_norm")
        changed = write_feed_forward(self, graph, inner, f"{name}.feed_forward")
        if before:
            return str(graph.op("Add", states, changed))
        return self.norm(graph, str(graph.op("Add", inner, changed)), f"{name}.feed_forward_norm")

    def _attention(self, graph: Graph, states: str, name: str, positions: str, *, narrow: bool) -> str:
        """Queries, keys and values by products of their own: cutting the result of one copies it."""
        heads = self.config.num_attention_heads
        asking, own, seen = states, positions, self.rows.seen
        if narrow:
            asking, own, seen = (graph.slice(value, 0, 1, axis) for value, axis in ((states, 1), (own, 1), (seen, 2)))
        query, key, value = (
            self.linear_map(graph, inputs, f"{name}.qkv_proj", f"{name}.{part}_proj", outputs)
            for part, inputs, outputs in zip(
                "qkv", (asking, states, states), (self._queries, self._keys, self._values), strict=True
            )
        )
        if self.config.position == "rotary":
            query, key = self._turn(graph, query, own), self._turn(graph, key, positions)
        attended = graph.op("Attention", query, key, value, seen, q_num_heads=heads, kv_num_heads=heads)
        return self.linear_map(graph, attended, f"{name}.out_proj")

    def _queries(self, values: Array) -> Array:
        """The third of queries, so turned that a rotary pair is ``(i, i + head_dim / 2)``.

        Queries and keys are reordered alike, which changes no score; pairs side by side would be turned more slowly.
        """
        return self._turned(np.split(values, 3)[0])

    def _keys(self, values: Array) -> Array:
        return self._turned(np.split(values, 3)[1])

    def _values(self, values: Array) -> Array:
        third: Array = np.split(values, 3)[2]
        return third

    def _turned(self, values: Array) -> Array:
        config = self.config
        if config.position == "learned":
            return values
        order = np.concatenate([np.arange(0, config.head_dim, 2), np.arange(1, config.head_dim, 2)])
        heads = values.reshape(config.num_attention_heads, config.head_dim, -1)
        return heads[:, order].reshape(values.shape)

    def _turn(self, graph: Graph, states: str, positions: str) -> str:
        """Rotary embedding of ``(batch, tokens, hidden)`` at positions ``(batch, tokens)``."""
        heads = self.config.num_attention_heads
        return str(graph.op("RotaryEmbedding", states, self.cosines, self.sines, positions, num_heads=heads))

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
        with self.within(self._own_number(graph, index)):
            updated = self.stack(graph, inputs, f"{prefix}.block", config.num_core_layers, narrow=narrow)
        carried = graph.slice(states, 0, 1, 1) if narrow else states
        if config.learned_residual_scale:
            name = f"{prefix}.residual_scale"
            scale = graph.weight(name, self.weights[name])
        elif config.residual_scale == 0:
            return updated
        else:
            scale = graph.number(config.residual_scale)
        return str(graph.op("Add", updated, graph.op("Mul", carried, scale)))

    def _own_number(self, graph: Graph, index: str) -> str:
        """Of the recurrence whose own weights are read: beyond those that were trained, the last one's."""
        if not self.config.is_relaxed:
            return ""
        return str(graph.op("Min", index, graph.constant(self.config.num_recurrences - 1, np.int64)))

    def _last_places(self, mask: str) -> str:
        """Index of each row's last real token, ``(batch, 1)``."""
        graph = self.graph
        real = graph.op("Cast", graph.op("Cast", mask, to=TensorProto.BOOL), to=TensorProto.INT64)
        return str(graph.op("ArgMax", graph.op("Mul", real, self.places), axis=1, keepdims=1))

    def read(self, graph: Graph, states: str) -> str:
        """What a head reads of each row, ``(batch, hidden)``: normed, if the model norms it, and pooled."""
        if self.config.pooling in ("max", "mean"):
            return self._pool(graph, self._final_norm(graph, states))
        # One position: the norm of the others would be thrown away.
        return self._final_norm(graph, self._pool(graph, states))

    def _pool(self, graph: Graph, states: str) -> str:
        if self.config.pooling == "first":
            return str(graph.op("Squeeze", graph.slice(states, 0, 1, 1), graph.numbers(1)))
        if self.config.pooling == "max":
            real = self.without_padding(graph, states, -np.inf)
            return str(graph.op("ReduceMax", real, graph.numbers(1), keepdims=0))
        if self.config.pooling == "mean":
            total = graph.op("ReduceSum", self.without_padding(graph, states, 0.0), graph.numbers(1), keepdims=0)
            tokens = graph.op("ReduceSum", self.rows.real, graph.numbers(1), keepdims=1)
            return str(graph.op("Div", total, graph.op("Cast", tokens, to=TensorProto.FLOAT)))
        where = graph.op("Unsqueeze", self.rows.where, graph.numbers(2))
        size = graph.op(
            "Concat", graph.op("Shape", where, start=0, end=2), graph.numbers(self.config.hidden_size), axis=0
        )
        found = graph.op("GatherElements", states, graph.op("Expand", where, size), axis=1)
        return str(graph.op("Squeeze", found, graph.numbers(1)))

    def _final_norm(self, graph: Graph, states: str) -> str:
        """The norm before a head, if there is one."""
        return self.norm(graph, states, "model.final_norm") if self.config.final_norm else states

    def head(self, graph: Graph, pooled: str) -> tuple[str, str]:
        """The final head's product and its bias, to be added."""
        weight, bias = self.weights["classifier.weight"], self.weights["classifier.bias"]
        product = graph.op("MatMul", pooled, graph.weight("classifier.weight", weight.T))
        return str(product), graph.weight("classifier.bias", bias)
