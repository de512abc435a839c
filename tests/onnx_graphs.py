"""Graphs of ONNX in tests: a session on one thread, rows to run, and what a model can be."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as runtime
import pytest
from hypothesis import strategies as st

from relaxed import relaxed_shapes

FEED_FORWARDS: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    st.just({"feed_forward": "gelu"}),
    st.fixed_dictionaries(
        {
            "feed_forward": st.sampled_from(["conv+linear", "conv", "linear", "depthwise"]),
            "num_cycles": st.integers(1, 3),
            "kernel_size": st.sampled_from([1, 3, 5]),
            "dilations": st.sampled_from([[1], [1, 2], [2, 3]]),
            "causal_convolution": st.booleans(),
        }
    ),
)

SHAPES: st.SearchStrategy[dict[str, Any]] = relaxed_shapes(
    {
        "num_prelude_layers": st.integers(0, 1),
        "num_core_layers": st.integers(1, 2),
        "num_recurrences": st.integers(1, 4),
        "num_coda_layers": st.integers(0, 2),
        "residual_scale": st.sampled_from([0.0, 0.5, 1.0]),
        "learned_residual_scale": st.booleans(),
        "recurrence_embedding": st.booleans(),
        "input_injection": st.sampled_from(["none", "add", "concat"]),
        "final_norm": st.booleans(),
        "causal": st.booleans(),
        "pooling": st.sampled_from(["first", "last", "max", "mean"]),
        "norm": st.sampled_from(["rms", "layer"]),
        "norm_placement": st.sampled_from(["pre", "post"]),
        "position": st.sampled_from(["rotary", "learned", "none"]),
        "type_vocab_size": st.sampled_from([0, 2]),
        "embedding_size": st.sampled_from([None, 8]),
        "hidden_size": st.sampled_from([16, 24]),
    }
)


def session_of(graph: Any) -> Any:
    """A session that is quiet and computes on one thread."""
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return runtime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _saturates() -> bool:
    """Whether two products of 8-bit numbers are cut to 16 bits before they are summed, as on x86 without VNNI."""
    info, kinds = onnx.helper.make_tensor_value_info, onnx.TensorProto
    shapes = [info("a", kinds.UINT8, [1, 4]), info("b", kinds.INT8, [4, 1])]
    node = onnx.helper.make_node("MatMulInteger", ["a", "b"], ["c"])
    graph = onnx.helper.make_graph([node], "product", shapes, [info("c", kinds.INT32, [1, 1])])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    inputs = {"a": np.full((1, 4), 255, np.uint8), "b": np.full((4, 1), 127, np.int8)}
    return bool(session_of(model).run(None, inputs)[0].item() != 4 * 255 * 127)


SATURATES = _saturates()
# `docs/how-to/export.md` says so to users.
exact_products = pytest.mark.skipif(SATURATES, reason="8-bit products saturate on this processor")


def rows(batch: int, tokens: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Padded rows; one of them has no padding."""
    dice = np.random.default_rng(seed)
    lengths = dice.integers(1, tokens + 1, batch)
    lengths[0] = tokens
    keep = np.arange(tokens) < lengths[:, None]
    ids = np.where(keep, dice.integers(1, 40, (batch, tokens)), 0)
    return {"input_ids": ids, "attention_mask": keep.astype(np.int64)}
