"""The classifier as an ONNX graph: the core is the body of a loop, so that its layers stand once and run any often.

The graph is written from the weights and the configuration, operation by operation: an exporter that follows a run of
the model would write the core once for each recurrence and fix their number. What is computed is that of
`recurra.models.modeling.RecurraForSequenceClassification` on padded rows; the tests compare the two for every key of
the configuration, and every export is compared on real rows. See `docs/decisions/0010-onnx-by-hand.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from recurra.core.errors import ConfigurationError
from recurra.deployment.onnx_exits import ExitWriter
from recurra.deployment.onnx_graph import Array, Carried, Graph, Linear
from recurra.deployment.onnx_layers import LayerWriter
from recurra.deployment.onnx_names import INPUT_IDS, LOGITS, MASK, RECURRENCES
from recurra.models.configuration import RecurraConfig

# What the graph is written for; a classifier of another kind is exported as safetensors.
_WRITTEN: dict[str, object] = {
    "norm": "rms", "norm_placement": "pre", "position": "rotary", "attention_bias": True, "embedding_norm": True,
    "embedding_cycles": 0,
}  # fmt: skip


def check_writable(config: RecurraConfig) -> None:
    """Refuses a model that the graph is not written for.

    Raises:
        ConfigurationError: Naming the key, its value, and what is allowed.
    """
    for key, written in _WRITTEN.items():
        if (value := getattr(config, key)) != written:
            raise ConfigurationError(
                f"'{key}' of the model is {value!r}; the ONNX graph is written for {written!r} alone; "
                "take --format safetensors"
            )


def build_classifier(
    config: RecurraConfig, weights: Mapping[str, Array], linear: Linear, *, max_length: int, metadata: dict[str, str]
) -> onnx.ModelProto:
    """Writes the graph.

    Inputs: ``input_ids`` and ``attention_mask``, int64 ``(batch, tokens)``; for a model with several recurrences also
    ``num_recurrences``, int64 ``()``, which may be left out and is then that of the configuration. Output: ``logits``,
    FP32 ``(batch, labels)``. A model with exits has the further inputs and outputs of
    `recurra.deployment.onnx_exits`.

    Args:
        config: The model's.
        weights: By the names of the model's state; FP32.
        linear: How linear maps and the token table are stored.
        max_length: Most tokens of a row.
        metadata: Kept in the file.

    Raises:
        ConfigurationError: As `check_writable` does.
    """
    check_writable(config)
    graph = Graph()
    layers = LayerWriter(graph, config, weights, linear, max_length)
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"]) for name in (INPUT_IDS, MASK)]
    outputs = [helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, ["batch", config.num_labels])]
    layers.positions(INPUT_IDS)
    layers.mask(MASK)
    states = layers.embed(INPUT_IDS)
    states = layers.stack(graph, states, "model.prelude", config.num_prelude_layers, narrow=False)
    layers.rows = replace(layers.rows, first=states)
    if config.num_recurrences > 1:
        inputs.append(helper.make_tensor_value_info(RECURRENCES, TensorProto.INT64, []))
    if config.exits:
        exits = ExitWriter(layers)
        exits.write(states)
        return graph.model([*inputs, *exits.inputs], [*outputs, *exits.outputs], metadata)
    _read(layers, states)
    return graph.model(inputs, outputs, metadata)


def _read(layers: LayerWriter, states: str) -> None:
    """All recurrences, the coda and the final head."""
    graph, config = layers.graph, layers.config
    leading, coda = config.pooling == "first", bool(config.num_coda_layers)
    states = _core(layers, states, narrow=leading and not coda)
    states = layers.stack(graph, states, "model.coda", config.num_coda_layers, narrow=leading)
    graph.nodes.append(helper.make_node("Add", list(layers.head(graph, layers.read(graph, states))), [LOGITS]))


def _core(layers: LayerWriter, states: str, *, narrow: bool) -> str:
    """The recurrence. The last one stands behind the loop if it computes the first position only."""
    graph, recurrences = layers.graph, layers.config.num_recurrences
    if recurrences == 1:
        return layers.recurrence(graph, states, graph.constant(0, np.int64), narrow=narrow)
    trips = graph.weight(RECURRENCES, np.asarray(recurrences, dtype=np.int64))
    last = graph.op("Sub", trips, graph.constant(1, np.int64))
    body = Graph(graph)
    iteration, inner = graph.name("iteration"), graph.name("states")
    result = layers.recurrence(body, inner, iteration, narrow=False)
    carried = [Carried(states, inner, result)]
    (states,) = graph.loop(last if narrow else trips, carried, body, iteration=iteration)
    return layers.recurrence(graph, states, last, narrow=True) if narrow else states
