"""The layers of the ONNX graph: embeddings, norms, attention, feed-forward networks, one recurrence, pooling.

Operation by operation what `recurra.models` computes on padded rows; see `docs/decisions/0010-onnx-by-hand.md`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from recurra.deployment.onnx_graph import Array, Graph, Linear
from recurra.models.configuration import RecurraConfig

# Added to the score of a key that must not be seen; its softmax is 0 in FP32.
_HIDDEN = -1e30


@dataclass(frozen=True)
class Rows:
    """Names of the values that have a row for each row of the batch, besides the states.

    Attributes:
        first: What the core was given, ``(batch, tokens, hidden)``.
        hidden: What is added to scores, ``(batch, 1, 1 or tokens, tokens)``.
        where: Index of the position that is read, ``(batch, 1)``; empty where it is the first.
    """

    first: str = ""
    hidden: str = ""
    where: str = ""


class LayerWriter:
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
        self.graph = graph
        self.config, self.weights, self.linear = config, weights, linear
        self.max_length = max_length
        self.cosines = self.sines = ""
        self.rows = Rows()

    @contextlib.contextmanager
    def among(self, rows: Rows) -> Iterator[None]:
        """Writes for other rows for the time: those of the body of a loop."""
        before, self.rows = self.rows, rows
        yield
        self.rows = before

    def positions(self, tokens: str) -> None:
        """Cosines and sines of the rotary embedding, ``(tokens, 1, head_dim / 2)``."""
        half = self.config.head_dim // 2
        rates = self.config.rope_theta ** (-np.arange(0, 2 * half, 2, dtype=np.float32) / self.config.head_dim)
        angles = np.outer(np.arange(self.max_length, dtype=np.float32), rates.astype(np.float32))
        found = []
        for name, values in (("cosines", np.cos(angles)), ("sines", np.sin(angles))):
            table = self.graph.weight(f"rotary.{name}", values.astype(np.float32)[:, None, :])
            zero = self.graph.numbers(0)
            found.append(self.graph.op("Slice", table, zero, tokens, zero))
        self.cosines, self.sines = found

    def mask(self, mask: str) -> None:
        """What is added to scores: ``(batch, 1, 1 or tokens, tokens)``."""
        graph = self.graph
        seen = graph.op("Unsqueeze", graph.op("Cast", mask, to=TensorProto.BOOL), graph.numbers(1, 2))
        if self.config.causal:
            length = graph.op("Squeeze", graph.op("Shape", mask, start=1, end=2))
            places = graph.op("Range", graph.constant(0, np.int64), length, graph.constant(1, np.int64))
            rows, columns = (graph.op("Unsqueeze", places, graph.numbers(axis)) for axis in (1, 0))
            # The diagonal stays open: a padded query without a key would be no number.
            own = graph.op("Equal", rows, columns)
            seen = graph.op("Or", graph.op("And", seen, graph.op("GreaterOrEqual", rows, columns)), own)
        self.rows = Rows(hidden=graph.op("Where", seen, graph.number(0.0), graph.number(_HIDDEN)))

    def embed(self, ids: str) -> str:
        """Embedding of tokens, ``(batch, tokens, hidden)``."""
        graph, prefix = self.graph, "model.embeddings"
        states = self.linear.embed(graph, ids, f"{prefix}.token", self.weights[f"{prefix}.token.weight"])
        if self.config.token_embedding_size != self.config.hidden_size:
            states = self._linear(graph, states, f"{prefix}.projection")
        if self.config.type_vocab_size:
            kind = graph.weight(f"{prefix}.token_type.0", self.weights[f"{prefix}.token_type.weight"][0])
            states = graph.op("Add", states, kind)
        return self.norm(graph, states, f"{prefix}.norm")

    def _linear(self, graph: Graph, states: str, name: str) -> str:
        return self.linear.apply(graph, states, name, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def norm(self, graph: Graph, states: str, name: str) -> str:
        """RMSNorm, in the form that runtimes know and fuse."""
        squares = graph.op("Pow", states, graph.number(2.0))
        mean = graph.op("ReduceMean", squares, axes=[-1], keepdims=1)
        root = graph.op("Sqrt", graph.op("Add", mean, graph.number(self.config.rms_norm_eps)))
        weight = graph.weight(f"{name}.weight", self.weights[f"{name}.weight"])
        return str(graph.op("Mul", graph.op("Div", states, root), weight))

    def stack(self, graph: Graph, states: str, prefix: str, layers: int, *, narrow: bool) -> str:
        """Layers one after the other; ``narrow`` gives the first position of the last one only."""
        for index in range(layers):
            last = index == layers - 1
            states = self._layer(graph, states, f"{prefix}.layers.{index}", split=last, narrow=narrow and last)
        return states

    def _layer(self, graph: Graph, states: str, name: str, *, split: bool, narrow: bool) -> str:
        """One layer; ``narrow`` gives its first position only, ``split`` keeps queries apart so that it can."""
        normed = self.norm(graph, states, f"{name}.attention_norm")
        attended = self._attention(graph, normed, f"{name}.attention", split=split, narrow=narrow)
        states = graph.op("Add", graph.slice(states, 0, 1, 1) if narrow else states, attended)
        inner = self.norm(graph, states, f"{name}.feed_forward_norm")
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

    def _attention(self, graph: Graph, states: str, name: str, *, split: bool, narrow: bool) -> str:
        config = self.config
        heads, head_dim, width = config.num_attention_heads, config.head_dim, config.hidden_size
        weight, bias = self._halves(f"{name}.qkv_proj")
        cosines, sines, hidden = self.cosines, self.sines, self.rows.hidden
        if split:
            asking = graph.slice(states, 0, 1, 1) if narrow else states
            query = self.linear.apply(graph, asking, f"{name}.q_proj", weight[:width], bias[:width])
            pair = self.linear.apply(graph, states, f"{name}.kv_proj", weight[width:], bias[width:])
            query = self._heads(graph, query, heads)
            key, value = graph.op("Split", self._heads(graph, pair, 2 * heads), axis=2, outputs=2)
            if narrow:
                cosines, sines = (graph.slice(table, 0, 1, 0) for table in (cosines, sines))
                hidden = graph.slice(hidden, 0, 1, 2)
            query, key = self._turn(graph, query, cosines, sines), self._turn(graph, key, self.cosines, self.sines)
        else:
            states = self.linear.apply(graph, states, f"{name}.qkv_proj", weight, bias)
            rows = self._heads(graph, states, 3 * heads)
            pair, value = graph.op("Split", rows, graph.numbers(2 * heads, heads), axis=2, outputs=2)
            query, key = graph.op("Split", self._turn(graph, pair, cosines, sines), axis=2, outputs=2)
        query, value = (graph.op("Transpose", part, perm=[0, 2, 1, 3]) for part in (query, value))
        scores = graph.op("MatMul", query, graph.op("Transpose", key, perm=[0, 2, 3, 1]))
        shares = graph.op("Softmax", graph.op("Add", scores, hidden), axis=-1)
        attended = graph.op("Transpose", graph.op("MatMul", shares, value), perm=[0, 2, 1, 3])
        flat = graph.op("Reshape", attended, graph.numbers(0, 0, heads * head_dim))
        return self._linear(graph, flat, f"{name}.out_proj")

    def _halves(self, name: str) -> tuple[Array, Array]:
        """Weight and bias of queries, keys and values, so turned that a rotary pair is ``(i, i + head_dim / 2)``.

        Queries and keys are reordered alike, which changes no score; the scale of scores is in the queries.
        """
        config = self.config
        order = np.concatenate([np.arange(0, config.head_dim, 2), np.arange(1, config.head_dim, 2)])
        turned = []
        for values in (self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]):
            parts = values.reshape(3, config.num_attention_heads, config.head_dim, -1)
            parts = np.concatenate([parts[:2][:, :, order], parts[2:]])
            parts[0] *= np.float32(config.head_dim**-0.5)
            turned.append(parts.reshape(values.shape))
        return turned[0], turned[1]

    def _heads(self, graph: Graph, states: str, heads: int) -> str:
        return str(graph.op("Reshape", states, graph.numbers(0, 0, heads, self.config.head_dim)))

    @staticmethod
    def _turn(graph: Graph, states: str, cosines: str, sines: str) -> str:
        """Rotary embedding of ``(batch, tokens, heads, head_dim)`` by halves."""
        one, two = graph.op("Split", states, axis=-1, outputs=2)
        left = graph.op("Sub", graph.op("Mul", one, cosines), graph.op("Mul", two, sines))
        right = graph.op("Add", graph.op("Mul", two, cosines), graph.op("Mul", one, sines))
        return str(graph.op("Concat", left, right, axis=-1))

    def recurrence(self, graph: Graph, states: str, index: str, *, narrow: bool) -> str:
        """One application of the core; ``index`` is its number, from 0."""
        config, prefix = self.config, "model.core"
        inputs = states
        if config.input_injection == "concat":
            inputs = self._linear(graph, graph.op("Concat", states, self.rows.first, axis=-1), f"{prefix}.adapter")
        elif config.input_injection == "add":
            later = graph.op("Cast", graph.op("Greater", index, graph.constant(0, np.int64)), to=TensorProto.FLOAT)
            inputs = graph.op("Add", states, graph.op("Mul", self.rows.first, later))
        if config.recurrence_embedding:
            name = f"{prefix}.recurrence_embedding.weight"
            inputs = graph.op("Add", inputs, graph.op("Gather", graph.weight(name, self.weights[name]), index, axis=0))
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

    def last_places(self, mask: str) -> str:
        """Index of each row's last real token, ``(batch, 1)``."""
        graph = self.graph
        length = graph.op("Squeeze", graph.op("Shape", mask, start=1, end=2))
        places = graph.op("Range", graph.constant(0, np.int64), length, graph.constant(1, np.int64))
        real = graph.op("Cast", graph.op("Cast", mask, to=TensorProto.BOOL), to=TensorProto.INT64)
        return str(graph.op("ArgMax", graph.op("Mul", real, places), axis=1, keepdims=1))

    def pool(self, graph: Graph, states: str) -> str:
        """States ``(batch, hidden)`` at the position that is read."""
        if self.config.pooling == "first":
            return str(graph.op("Squeeze", graph.slice(states, 0, 1, 1), graph.numbers(1)))
        where = graph.op("Unsqueeze", self.rows.where, graph.numbers(2))
        size = graph.op(
            "Concat", graph.op("Shape", where, start=0, end=2), graph.numbers(self.config.hidden_size), axis=0
        )
        found = graph.op("GatherElements", states, graph.op("Expand", where, size), axis=1)
        return str(graph.op("Squeeze", found, graph.numbers(1)))

    def final_norm(self, graph: Graph, states: str) -> str:
        """The norm before a head, if there is one."""
        return self.norm(graph, states, "model.final_norm") if self.config.final_norm else states

    def head(self, graph: Graph, pooled: str) -> tuple[str, str]:
        """The final head's product and its bias, to be added."""
        weight, bias = self.weights["classifier.weight"], self.weights["classifier.bias"]
        product = graph.op("MatMul", pooled, graph.weight("classifier.weight", weight.T))
        return str(product), graph.weight("classifier.bias", bias)
