"""Graphs of ONNX in tests: a session on one thread, rows to run, and what a model can be."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as runtime
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


def rows(batch: int, tokens: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Padded rows; one of them has no padding."""
    dice = np.random.default_rng(seed)
    lengths = dice.integers(1, tokens + 1, batch)
    lengths[0] = tokens
    keep = np.arange(tokens) < lengths[:, None]
    ids = np.where(keep, dice.integers(1, 40, (batch, tokens)), 0)
    return {"input_ids": ids, "attention_mask": keep.astype(np.int64)}
