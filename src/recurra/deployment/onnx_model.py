"""The classifier as an ONNX graph: the core is the body of a loop, so that its layers stand once and run any often.

The graph is written from the weights and the configuration, operation by operation: an exporter that follows a run of
the model would write the core once for each recurrence and fix their number. What is computed is that of
`recurra.models.modeling.RecurraForSequenceClassification` on padded rows; the tests compare the two for every key of
the configuration, and every export is compared on real rows. See `docs/decisions/0010-onnx-by-hand.md`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper

from recurra.deployment.onnx_graph import Array, Graph, Linear
from recurra.models.configuration import RecurraConfig

RECURRENCES = "num_recurrences"
INPUT_IDS = "input_ids"
MASK = "attention_mask"
LOGITS = "logits"


def build_classifier(
    config: RecurraConfig, weights: Mapping[str, Array], linear: Linear, *, max_length: int, metadata: dict[str, str]
) -> onnx.ModelProto:
    """Writes the graph.

    Inputs: ``input_ids`` and ``attention_mask``, int64 ``(batch, tokens)``; for a model with several recurrences also
    ``num_recurrences``, int64 ``()``, which may be left out and is then that of the configuration. Output: ``logits``,
    FP32 ``(batch, labels)``.

    Args:
        config: The model's.
        weights: By the names of the model's state; FP32.
        linear: How linear maps and the token table are stored.
        max_length: Most tokens of a row.
        metadata: Kept in the file.
    """
    return _Writer(config, weights, linear, max_length).write(metadata)


class _Writer:
    def __init__(self, config: RecurraConfig, weights: Mapping[str, Array], linear: Linear, max_length: int) -> None:
        self.config, self.weights, self.linear = config, weights, linear
        self.max_length = max_length
        self.graph = Graph()
        self.cosines = self.sines = self.positions = self.seen = self.first = ""

    def write(self, metadata: dict[str, str]) -> onnx.ModelProto:
        """The whole model."""
        config, graph = self.config, self.graph
        ids, mask = INPUT_IDS, MASK
        shape = ["batch", "tokens"]
        inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in (ids, mask)]
        self._positions(ids)
        self._mask(mask)
        states = self._embed(ids)
        leading = config.pooling == "first"
        coda = bool(config.num_coda_layers)
        states = self._stack(graph, states, "model.prelude", config.num_prelude_layers, narrow=False)
        states = self._core(states, narrow=leading and not coda)
        states = self._stack(graph, states, "model.coda", config.num_coda_layers, narrow=leading)
        if config.final_norm:
            states = self._norm(graph, states, "model.final_norm")
        pooled = self._pool(states, mask)
        weight, bias = self.weights["classifier.weight"], self.weights["classifier.bias"]
        product = graph.op("MatMul", pooled, graph.weight("classifier.weight", weight.T))
        graph.nodes.append(helper.make_node("Add", [product, graph.weight("classifier.bias", bias)], [LOGITS]))
        if config.num_recurrences > 1:
            inputs.append(helper.make_tensor_value_info(RECURRENCES, TensorProto.INT64, []))
        outputs = [helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, ["batch", config.num_labels])]
        return graph.model(inputs, outputs, metadata)

    def _positions(self, ids: str) -> None:
        """Numbers of the positions ``(batch, tokens)``, and what the rotary embedding turns each by."""
        graph, half = self.graph, self.config.head_dim // 2
        rates = self.config.rope_theta ** (-np.arange(0, 2 * half, 2, dtype=np.float32) / self.config.head_dim)
        angles = np.outer(np.arange(self.max_length, dtype=np.float32), rates.astype(np.float32))
        self.cosines = graph.weight("rotary.cosines", np.cos(angles).astype(np.float32))
        self.sines = graph.weight("rotary.sines", np.sin(angles).astype(np.float32))
        self.positions = graph.op("Expand", self._places(ids), graph.op("Shape", ids))

    def _places(self, ids: str) -> str:
        """0, 1, ... for the tokens of a row."""
        graph = self.graph
        length = graph.op("Squeeze", graph.op("Shape", ids, start=1, end=2))
        return str(graph.op("Range", graph.constant(0, np.int64), length, graph.constant(1, np.int64)))

    def _mask(self, mask: str) -> None:
        """Which keys a query may see: ``(batch, 1, tokens, tokens)``, for runtimes widen no queries."""
        graph = self.graph
        self.seen = graph.op("Unsqueeze", graph.op("Cast", mask, to=TensorProto.BOOL), graph.numbers(1, 2))
        if not self.config.causal:
            tokens = graph.op("Shape", mask, start=1, end=2)
            shape = graph.op("Concat", graph.numbers(1, 1), tokens, graph.numbers(1), axis=0)
            self.seen = graph.op("Expand", self.seen, shape)
        else:
            places = self._places(mask)
            rows, columns = (graph.op("Unsqueeze", places, graph.numbers(axis)) for axis in (1, 0))
            # The diagonal stays open: a padded query without a key would be no number.
            own = graph.op("Equal", rows, columns)
            self.seen = graph.op("Or", graph.op("And", self.seen, graph.op("GreaterOrEqual", rows, columns)), own)

    def _embed(self, ids: str) -> str:
        graph, prefix = self.graph, "model.embeddings"
        states = self.linear.embed(graph, ids, f"{prefix}.token", self.weights[f"{prefix}.token.weight"])
        if self.config.token_embedding_size != self.config.hidden_size:
            states = self._linear(graph, states, f"{prefix}.projection")
        if self.config.type_vocab_size:
            kind = graph.weight(f"{prefix}.token_type.0", self.weights[f"{prefix}.token_type.weight"][0])
            states = graph.op("Add", states, kind)
        return self._norm(graph, states, f"{prefix}.norm")

    def _linear(self, graph: Graph, states: str, name: str) -> str:
        return self.linear.apply(graph, states, name, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def _norm(self, graph: Graph, states: str, name: str) -> str:
        weight = graph.weight(f"{name}.weight", self.weights[f"{name}.weight"])
        return str(graph.op("RMSNormalization", states, weight, axis=-1, epsilon=self.config.rms_norm_eps))

    def _stack(self, graph: Graph, states: str, prefix: str, layers: int, *, narrow: bool) -> str:
        for index in range(layers):
            states = self._layer(graph, states, f"{prefix}.layers.{index}", narrow=narrow and index == layers - 1)
        return states

    def _layer(self, graph: Graph, states: str, name: str, *, narrow: bool) -> str:
        """One layer; ``narrow`` gives its first position only."""
        normed = self._norm(graph, states, f"{name}.attention_norm")
        attended = self._attention(graph, normed, f"{name}.attention", narrow=narrow)
        states = graph.op("Add", graph.slice(states, 0, 1, 1) if narrow else states, attended)
        inner = self._norm(graph, states, f"{name}.feed_forward_norm")
        gate, up = self._gate_and_up(graph, inner, f"{name}.feed_forward")
        gated = graph.op("Mul", graph.op("Mul", gate, graph.op("Sigmoid", gate)), up)
        return str(graph.op("Add", states, self._linear(graph, gated, f"{name}.feed_forward.down_proj")))

    def _gate_and_up(self, graph: Graph, states: str, name: str) -> tuple[str, str]:
        """Two products: to cut the result of one in halves copies it, a sixth of the time of a batch."""
        weights = np.split(self.weights[f"{name}.gate_up_proj.weight"], 2)
        biases = np.split(self.weights[f"{name}.gate_up_proj.bias"], 2)
        gate, up = (
            self.linear.apply(graph, states, f"{name}.{part}_proj", weight, bias)
            for part, weight, bias in zip(("gate", "up"), weights, biases, strict=True)
        )
        return gate, up

    def _attention(self, graph: Graph, states: str, name: str, *, narrow: bool) -> str:
        """Queries, keys and values by products of their own: cutting the result of one copies it."""
        heads = self.config.num_attention_heads
        asking, positions, seen = states, self.positions, self.seen
        if narrow:
            asking, positions = (graph.slice(value, 0, 1, 1) for value in (states, self.positions))
            seen = graph.slice(seen, 0, 1, 2)
        weights, biases = self._query_key_value(f"{name}.qkv_proj")
        query, key, value = (
            self.linear.apply(graph, inputs, f"{name}.{part}_proj", weight, bias)
            for part, inputs, weight, bias in zip("qkv", (asking, states, states), weights, biases, strict=True)
        )
        query, key = self._turn(graph, query, positions), self._turn(graph, key, self.positions)
        attended = graph.op("Attention", query, key, value, seen, q_num_heads=heads, kv_num_heads=heads)
        return self._linear(graph, attended, f"{name}.out_proj")

    def _query_key_value(self, name: str) -> tuple[list[Array], list[Array]]:
        """Weights and biases, those of queries and keys so turned that a rotary pair is ``(i, i + head_dim / 2)``.

        Both are reordered alike, which changes no score; pairs side by side would be turned more slowly.
        """
        config = self.config
        order = np.concatenate([np.arange(0, config.head_dim, 2), np.arange(1, config.head_dim, 2)])
        turned = []
        for values in (self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]):
            heads = values.reshape(3, config.num_attention_heads, config.head_dim, -1)
            parts = [heads[0][:, order], heads[1][:, order], heads[2]]
            turned.append([part.reshape(config.hidden_size, *values.shape[1:]) for part in parts])
        return turned[0], turned[1]

    def _turn(self, graph: Graph, states: str, positions: str) -> str:
        """Rotary embedding of ``(batch, tokens, hidden)``."""
        tables = (self.cosines, self.sines)
        heads = self.config.num_attention_heads
        return str(graph.op("RotaryEmbedding", states, *tables, positions, num_heads=heads))

    def _core(self, states: str, *, narrow: bool) -> str:
        """The recurrence. The last one stands behind the loop if it computes the first position only."""
        graph, layers = self.graph, self.config.num_recurrences
        self.first = states
        if layers == 1:
            return self._recurrence(graph, states, graph.constant(0, np.int64), narrow=narrow)
        trips = graph.weight(RECURRENCES, np.asarray(layers, dtype=np.int64))
        last = graph.op("Sub", trips, graph.constant(1, np.int64))
        body = Graph(graph)
        iteration, inner = graph.name("iteration"), graph.name("states")
        result = self._recurrence(body, inner, iteration, narrow=False)
        states = graph.loop(last if narrow else trips, states, body, iteration=iteration, inner=inner, result=result)
        return self._recurrence(graph, states, last, narrow=True) if narrow else states

    def _recurrence(self, graph: Graph, states: str, index: str, *, narrow: bool) -> str:
        config, prefix = self.config, "model.core"
        inputs = states
        if config.input_injection == "concat":
            inputs = self._linear(graph, graph.op("Concat", states, self.first, axis=-1), f"{prefix}.adapter")
        elif config.input_injection == "add":
            later = graph.op("Cast", graph.op("Greater", index, graph.constant(0, np.int64)), to=TensorProto.FLOAT)
            inputs = graph.op("Add", states, graph.op("Mul", self.first, later))
        if config.recurrence_embedding:
            name = f"{prefix}.recurrence_embedding.weight"
            inputs = graph.op("Add", inputs, graph.op("Gather", graph.weight(name, self.weights[name]), index, axis=0))
        updated = self._stack(graph, inputs, f"{prefix}.block", config.num_core_layers, narrow=narrow)
        carried = graph.slice(states, 0, 1, 1) if narrow else states
        if config.learned_residual_scale:
            name = f"{prefix}.residual_scale"
            scale = graph.weight(name, self.weights[name])
        elif config.residual_scale == 0:
            return updated
        else:
            scale = graph.number(config.residual_scale)
        return str(graph.op("Add", updated, graph.op("Mul", carried, scale)))

    def _pool(self, states: str, mask: str) -> str:
        """States ``(batch, hidden)`` at the position that is read."""
        graph = self.graph
        if self.config.pooling == "first":
            return str(graph.op("Squeeze", graph.slice(states, 0, 1, 1), graph.numbers(1)))
        real = graph.op("Cast", graph.op("Cast", mask, to=TensorProto.BOOL), to=TensorProto.INT64)
        last = graph.op("ArgMax", graph.op("Mul", real, self._places(mask)), axis=1, keepdims=1)
        where = graph.op("Unsqueeze", last, graph.numbers(2))
        size = graph.op(
            "Concat", graph.op("Shape", where, start=0, end=2), graph.numbers(self.config.hidden_size), axis=0
        )
        found = graph.op("GatherElements", states, graph.op("Expand", where, size), axis=1)
        return str(graph.op("Squeeze", found, graph.numbers(1)))
