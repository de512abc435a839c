"""Feed-forward networks in the ONNX graph: those of `recurra.models.feed_forward`, on padded rows."""

from __future__ import annotations

import numpy as np

from recurra.deployment.onnx.graph import Array, Graph
from recurra.deployment.onnx.parts import PartWriter
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
