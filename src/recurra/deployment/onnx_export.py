"""A run's model as ``model.onnx``, in FP32 or int8, each weight once."""

from __future__ import annotations

from pathlib import Path

import onnx
from transformers import PreTrainedModel

from recurra.core.errors import AuditError
from recurra.deployment.onnx_engine import MODEL_NAME
from recurra.deployment.onnx_graph import FullLinear, Linear
from recurra.deployment.onnx_int8 import Int8Linear
from recurra.deployment.onnx_model import build_classifier

LINEAR: dict[str, type[Linear]] = {"fp32": FullLinear, "int8": Int8Linear}
BYTES = {"fp32": 4, "int8": 1}
# What the file may hold above its weights: scales, rotary table, and the graph, which is small.
LARGEST_EXCESS = 0.03
GRAPH_BYTES = 2**16


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
    check_size(path.stat().st_size, sum(values.size for values in weights.values()) * BYTES[precision])
    model.config.save_pretrained(folder)


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
