"""The classifier as an ONNX graph: the core is the body of a loop, so that its layers stand once and run any often.

The graph is written from the weights and the configuration, operation by operation: an exporter that follows a run of
the model would write the core once for each recurrence and fix their number. What is computed is that of
`recurra.models.modeling.RecurraForSequenceClassification` on padded rows; the tests compare the two for every key of
the configuration, and every export is compared on real rows. See `docs/decisions/0010-onnx-by-hand.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper
from transformers import PreTrainedModel

from recurra.core.errors import AuditError
from recurra.deployment.onnx.contract import INPUT_IDS, LOGITS, MASK, MODEL_NAME, RECURRENCES, check_writable
from recurra.deployment.onnx.exits import ExitWriter
from recurra.deployment.onnx.graph import Array, Carried, Graph, tensor
from recurra.deployment.onnx.layers import LayerWriter
from recurra.deployment.onnx.parts import FullLinear, Int8Linear, Linear
from recurra.models.configuration import RecurraConfig

LINEAR: dict[str, type[Linear]] = {"fp32": FullLinear, "int8": Int8Linear}
# What the file may hold above its weights: scales, rotary table, and the graph, which is small.
LARGEST_EXCESS = 0.03
GRAPH_BYTES = 2**16


def build_classifier(
    config: RecurraConfig, weights: Mapping[str, Array], linear: Linear, *, max_length: int, metadata: dict[str, str]
) -> onnx.ModelProto:
    """Writes the graph.

    Inputs: ``input_ids`` and ``attention_mask``, int64 ``(batch, tokens)``; for a model with several recurrences also
    ``num_recurrences``, int64 ``()``, which may be left out and is then that of the configuration. Output: ``logits``,
    FP32 ``(batch, labels)``. A model with exits has the further inputs and outputs of
    `recurra.deployment.onnx.exits`.

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
    states = layers.embed(INPUT_IDS, MASK)
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
    carried = [Carried(states, inner, result, tensor(TensorProto.FLOAT, "batch", "tokens", layers.config.hidden_size))]
    (states,) = graph.loop(last if narrow else trips, carried, body, iteration=iteration)
    return layers.recurrence(graph, states, last, narrow=True) if narrow else states


def write_onnx(model: PreTrainedModel, precision: str, max_length: int, folder: Path, metadata: dict[str, str]) -> None:
    """Writes ``config.json`` and ``model.onnx``.

    Args:
        model: The run's classifier, in FP32.
        precision: ``fp32`` or ``int8``.
        max_length: Most tokens of a row.
        folder: Where to write.
        metadata: Kept in the file.

    Raises:
        AuditError: If the file is larger than its weights allow: some would stand in it more than once.
    """
    weights = {name: values.detach().float().cpu().numpy() for name, values in model.state_dict().items()}
    graph = build_classifier(model.config, weights, LINEAR[precision](), max_length=max_length, metadata=metadata)
    onnx.checker.check_model(graph)
    path = folder / MODEL_NAME
    path.write_bytes(graph.SerializeToString())
    check_size(path.stat().st_size, sum(stored_bytes(name, values, precision) for name, values in weights.items()))
    model.config.save_pretrained(folder)


def stored_bytes(name: str, values: Array, precision: str) -> int:
    """Bytes that a weight takes in a file: in int8 a matrix has a scale a row, and the rest stays in FP32."""
    full = ("classifier.", "model.core.recurrences.")
    whole_numbers = precision == "int8" and values.ndim == 2 and not name.startswith(full)
    return int(values.size + 4 * values.shape[0] if whole_numbers else 4 * values.size)


def check_size(file_bytes: int, weight_bytes: int) -> None:
    """Holds the size of a file against that of its weights.

    Raises:
        AuditError: If it is more than 3 % and the graph's own size above.
    """
    most = (1 + LARGEST_EXCESS) * weight_bytes + GRAPH_BYTES
    if file_bytes > most:
        raise AuditError(
            f"the ONNX file has {file_bytes:,} bytes for {weight_bytes:,} bytes of weights (at most {most:,.0f}): "
            "some weights stand in it more than once; nothing was written"
        )
