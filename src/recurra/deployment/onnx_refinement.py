"""Cycles of refinement in the ONNX graph: operation by operation `recurra.models.refinement` on padded rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from recurra.deployment.onnx_graph import Graph

if TYPE_CHECKING:
    from recurra.deployment.onnx_layers import LayerWriter


def write_cycles(layers: LayerWriter, graph: Graph, states: str, name: str) -> str:
    """Adds a feed-forward network of cycles.

    Args:
        layers: Writes maps and norms, and knows which tokens are real.
        graph: Where.
        states: ``(batch, tokens, hidden)``.
        name: The network's name among the model's weights.

    Returns:
        States of the same shape.
    """
    config = layers.config
    for number in range(config.num_cycles):
        cycle = f"{name}.cycles.{number}"
        mixed = states
        if config.has_convolution:
            dilation = config.dilations[number % len(config.dilations)]
            mixed = graph.op("Gelu", _convolve(layers, graph, states, f"{cycle}.mixer.depthwise", dilation))
            if config.feed_forward != "depthwise":
                mixed = layers.linear_map(graph, mixed, f"{cycle}.mixer.pointwise")
        inner = layers.norm(graph, mixed, f"{cycle}.norm")
        if config.feed_forward != "conv":
            up = graph.op("Gelu", layers.linear_map(graph, inner, f"{cycle}.transform.up_proj"))
            inner = layers.linear_map(graph, up, f"{cycle}.transform.down_proj")
        states = graph.op("Add", states, inner)
    return states


def _convolve(layers: LayerWriter, graph: Graph, states: str, name: str, dilation: int) -> str:
    """A depthwise convolution within each row; zeros are read in place of padding and beyond the row."""
    config = layers.config
    taps = layers.weights[f"{name}.weight"]
    weight = graph.weight(f"{name}.weight", np.ascontiguousarray(taps.T[:, None]))
    reach = (config.kernel_size - 1) * dilation
    ahead = 0 if config.causal_convolution else reach // 2
    convolved = graph.op(
        "Conv",
        graph.op("Transpose", layers.without_padding(graph, states, 0.0), perm=[0, 2, 1]),
        weight,
        group=config.hidden_size,
        dilations=[dilation],
        kernel_shape=[config.kernel_size],
        pads=[reach - ahead, ahead],
    )
    return str(graph.op("Transpose", convolved, perm=[0, 2, 1]))
