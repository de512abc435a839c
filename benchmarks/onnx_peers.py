"""Peers of an int8 export: BERT as ONNX Runtime's own tools make it, and a large whole-number product."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from benchmarks.turns import median_ms
from recurra.deployment.onnx import MODEL_NAME
from recurra.deployment.onnx.engine import CONFIGURATION_NAME
from recurra.deployment.onnx.graph import IR_VERSION, OPSET
from recurra.deployment.onnx.sessions import open_session

SQUARE = 2048


def write_bert(model: Any, folder: Path, *, fused: bool) -> None:
    """Writes BERT as an int8 ``model.onnx``, with its ``config.json``."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers import optimizer

    exported, merged = folder / "whole.onnx", folder / "merged.onnx"
    export_bert(model, exported)
    config = model.config
    config.to_json_file(folder / CONFIGURATION_NAME)
    if fused:
        graph = optimizer.optimize_model(
            str(exported), model_type="bert", num_heads=config.num_attention_heads, hidden_size=config.hidden_size
        )
        graph.save_model_to_file(str(merged))
    quantize_dynamic(
        str(merged if fused else exported),
        str(folder / MODEL_NAME),
        weight_type=QuantType.QInt8,
        per_channel=True,
        extra_options={"DefaultTensorType": TensorProto.FLOAT},
    )
    for path in (exported, merged):
        path.unlink(missing_ok=True)


def export_bert(model: Any, path: Path, output: str = "logits") -> None:
    """Writes BERT in FP32 for rows of any number and length; ``output`` is its first one."""
    ids = torch.randint(5, 1000, (2, 7))
    inputs = ["input_ids", "attention_mask"]
    axes = {name: {0: "batch", 1: "tokens"} for name in inputs} | {output: {0: "batch"}}
    model.config._attn_implementation = "eager"
    with warnings.catch_warnings():
        # The newer exporter needs one more package; this one supports BERT well.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            (ids, torch.ones_like(ids)),
            str(path),
            input_names=inputs,
            output_names=[output],
            dynamic_axes=axes,
            opset_version=OPSET,
            dynamo=False,
        )


def int8_rate(folder: Path, threads: int, repeats: int) -> float:
    """Operations a second of a large square product of whole numbers, by ONNX Runtime."""
    rng = np.random.default_rng(0)
    weight = rng.integers(-127, 128, (SQUARE, SQUARE), dtype=np.int8)
    shape = [SQUARE, SQUARE]
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["states", "weight"], ["product"])],
        "square",
        [helper.make_tensor_value_info("states", TensorProto.UINT8, shape)],
        [helper.make_tensor_value_info("product", TensorProto.INT32, shape)],
        initializer=[numpy_helper.from_array(weight, "weight")],
    )
    path = folder / "square.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION), str(path)
    )
    session = open_session(path, threads)
    states = {"states": rng.integers(0, 256, (SQUARE, SQUARE), dtype=np.uint8)}
    return 2 * SQUARE**3 / (median_ms({"product": lambda: session.run(None, states)}, repeats)["product"] / 1e3)
