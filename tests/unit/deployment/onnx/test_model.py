"""The ONNX graph computes what the model computes, for every key of the configuration, with each weight once."""

from __future__ import annotations

import operator
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

onnx = pytest.importorskip("onnx", reason="pip install 'recurra[onnx]'")
pytest.importorskip("onnxruntime", reason="pip install 'recurra[onnx]'")

from onnx_graphs import FEED_FORWARDS, SHAPES, rows, session_of  # noqa: E402
from recurra import RecurraForSequenceClassification, preset  # noqa: E402
from recurra.core.errors import AuditError, ConfigurationError  # noqa: E402
from recurra.deployment.export.formats import OnnxFormat  # noqa: E402
from recurra.deployment.onnx.graph import (  # noqa: E402
    Graph,
    Int8Linear,
    Linear,
)
from recurra.deployment.onnx.model import build_classifier, check_size, write_onnx  # noqa: E402
from relaxed import RELAXED  # noqa: E402
from tiny import stir, tiny_model  # noqa: E402

LONGEST = 20


def weights_of(model: RecurraForSequenceClassification) -> dict[str, np.ndarray]:
    return {name: values.numpy() for name, values in model.state_dict().items()}


def build(model: RecurraForSequenceClassification, linear: Linear | None = None) -> Any:
    graph = build_classifier(
        model.config, weights_of(model), linear or Linear(), max_length=LONGEST, metadata={"run_id": "r"}
    )
    onnx.checker.check_model(graph, full_check=True)
    return graph


def expected(model: RecurraForSequenceClassification, inputs: dict[str, np.ndarray]) -> np.ndarray:
    with torch.inference_mode():
        return model(**{name: torch.from_numpy(values) for name, values in inputs.items()}).logits.numpy()


def stirred(**shape: Any) -> RecurraForSequenceClassification:
    model = tiny_model(**shape).eval()
    stir(model)
    return model


@settings(max_examples=30)
@given(shape=st.builds(operator.or_, SHAPES, FEED_FORWARDS), batch=st.integers(1, 5), tokens=st.integers(1, LONGEST))
def test_the_graph_is_the_model(shape: dict[str, Any], batch: int, tokens: int) -> None:
    model = stirred(**shape)
    inputs = rows(batch, tokens)
    wanted = expected(model, inputs)
    (found,) = session_of(build(model)).run(None, inputs)
    assert found.shape == (batch, 2) and found.dtype == np.float32
    # Random weights this large grow with every recurrence, and with them the rounding of sums in another order.
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=2e-5 * max(1.0, float(np.abs(wanted).max())))


@pytest.mark.parametrize(("key", "value"), [("norm", "none"), ("attention_bias", False)])
def test_a_model_that_the_graph_is_not_written_for_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"'{key}' of the model is {value!r}.*take --format safetensors"):
        OnnxFormat().check_model(tiny_model(**{key: value}).config)


@pytest.mark.parametrize(
    "shape", [{}, {"num_coda_layers": 1}, {"pooling": "last", "causal": True}, {"input_injection": "add"}, RELAXED]
)
def test_the_number_of_recurrences_is_an_input(shape: dict[str, Any]) -> None:
    model, inputs = stirred(num_recurrences=3, **shape), rows(4, 9)
    session = session_of(build(model))
    np.testing.assert_allclose(session.run(None, inputs)[0], expected(model, inputs), rtol=1e-4, atol=1e-4)
    for number in (1, 2, 3, 5):
        model.config.num_recurrences = number
        (found,) = session.run(None, {**inputs, "num_recurrences": np.array(number)})
        np.testing.assert_allclose(found, expected(model, inputs), rtol=1e-3, atol=1e-3)


def without_shape(graph: Any) -> list[str]:
    """Operators of a graph, and of the bodies in it, with a result of unknown type or number of sizes."""
    known = {item.name: item.type.tensor_type for item in [*graph.value_info, *graph.output]}
    missing = []
    for node in graph.node:
        kinds = [known.get(name) for name in node.output if name]
        missing += [node.op_type for kind in kinds if kind is None or not (kind.elem_type and kind.HasField("shape"))]
        missing += [name for part in node.attribute if part.HasField("g") for name in without_shape(part.g)]
    return missing


@pytest.mark.parametrize("linear", [Linear(), Int8Linear()], ids=["fp32", "int8"])
@pytest.mark.parametrize(
    "shape",
    [{}, {"num_recurrences": 1}, {"norm": "layer", "norm_placement": "post", "position": "learned", "pooling": "mean"}],
    ids=["recurrent", "stacked", "encoder"],
)
def test_the_standards_own_rules_find_every_shape(shape: dict[str, Any], linear: Linear) -> None:
    """Runtimes that follow them need no run: without what the loop declares, nothing in and behind it has a shape."""
    graph = build(stirred(**shape), linear)
    assert without_shape(onnx.shape_inference.infer_shapes(graph, strict_mode=True, data_prop=True).graph) == []
    for node in graph.graph.node:
        if node.op_type == "Loop":
            body = node.attribute[0].g
            sizes = [[size.dim_param or size.dim_value for size in body.input[2].type.tensor_type.shape.dim]]
            assert sizes == [["batch", "tokens", 16]]
            for part in (*body.input[2:], *body.output[1:]):
                part.type.tensor_type.ClearField("shape")
            del graph.graph.value_info[:]
            inferred = onnx.shape_inference.infer_shapes(graph, strict_mode=True, data_prop=True).graph
            assert {"Attention", "Loop"} <= set(without_shape(inferred))


def stored(graph: Any) -> dict[str, np.ndarray]:
    return {item.name: onnx.numpy_helper.to_array(item) for item in graph.graph.initializer}


@pytest.mark.parametrize("shape", [{}, {"num_recurrences": 1}, {"num_recurrences": 7}, {"num_coda_layers": 2}])
def test_every_weight_stands_once(shape: dict[str, Any]) -> None:
    model = stirred(**shape)
    values = [value for array in stored(build(model)).values() for value in np.sort(np.abs(array.ravel())).tolist()]
    counts = Counter(values)
    for name, weight in weights_of(model).items():
        if "qkv_proj" in name or "token_type" in name:
            continue
        for value in np.abs(weight.ravel())[:40].tolist():
            assert counts[value] == 1, name


def test_the_file_is_hardly_larger_than_the_weights_and_no_larger_with_more_recurrences(tmp_path: Path) -> None:
    sizes = {}
    for recurrences in (2, 8):
        model = RecurraForSequenceClassification(preset("recurrent", num_labels=2, num_recurrences=recurrences))
        folder = tmp_path / str(recurrences)
        folder.mkdir()
        write_onnx(model, "fp32", 128, folder, {})
        sizes[recurrences] = (folder / "model.onnx").stat().st_size
    weights = 10_972_162 * 4
    assert weights * 0.99 < sizes[2] <= 1.03 * weights
    assert abs(sizes[2] - sizes[8]) < 100
    folder = tmp_path / "int8"
    folder.mkdir()
    write_onnx(model, "int8", 128, folder, {})
    size = (folder / "model.onnx").stat().st_size
    assert 0.99 * weights / 4 < size <= 1.03 * weights / 4
    # With the vocabulary of BERT the tokenizer takes 0.7 MiB.
    assert size + 711_396 + 2**15 <= 12 * 2**20


def test_weights_that_stand_twice_would_be_found() -> None:
    check_size(1_030_000 + 2**16, 1_000_000)
    with pytest.raises(AuditError, match="some weights stand in it more than once; nothing was written"):
        check_size(1_030_001 + 2**16, 1_000_000)


# int8.


def naive_int8(states: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Dynamic quantisation as the ONNX standard defines it, in whole numbers and double precision."""
    low, high = min(states.min(), 0.0), max(states.max(), 0.0)
    step = np.float32((high - low) / 255)
    zero = int(np.clip(np.rint(-low / step), 0, 255))
    whole = np.clip(np.rint(states / step) + zero, 0, 255).astype(np.int64) - zero
    scale = np.abs(weight).max(axis=1) / 127
    rounded = np.rint(weight / scale[:, None]).astype(np.int64)
    return (whole @ rounded.T) * (float(step) * scale.astype(np.float64)) + bias


def test_an_int8_map_is_the_standards() -> None:
    dice = np.random.default_rng(3)
    states = dice.normal(0.3, 2.0, (4, 5, 16)).astype(np.float32)
    weight = (dice.normal(0, 1, (24, 16)) * dice.uniform(0.01, 3, (24, 1))).astype(np.float32)
    bias = dice.normal(0, 1, 24).astype(np.float32)
    graph = Graph()
    result = graph.op("Add", Int8Linear().product(graph, "states", "map", weight), graph.weight("map.bias", bias))
    info = onnx.helper.make_tensor_value_info
    floats = onnx.TensorProto.FLOAT
    model = graph.model([info("states", floats, [4, 5, 16])], [info(result, floats, [4, 5, 24])], {})
    (found,) = session_of(model).run(None, {"states": states})
    np.testing.assert_allclose(found, naive_int8(states, weight, bias), rtol=1e-4, atol=1e-4)


def test_an_int8_table_gives_each_row_by_its_own_scale() -> None:
    table = (np.random.default_rng(0).normal(0, 1, (9, 4)) * np.logspace(-3, 2, 9)[:, None]).astype(np.float32)
    graph = Graph()
    result = Int8Linear().embed(graph, "ids", "table", table)
    info = onnx.helper.make_tensor_value_info
    model = graph.model([info("ids", onnx.TensorProto.INT64, [9])], [info(result, onnx.TensorProto.FLOAT, [9, 4])], {})
    (found,) = session_of(model).run(None, {"ids": np.arange(9)})
    assert (np.abs(found - table) <= np.abs(table).max(axis=1, keepdims=True) / 254 * 1.001).all()


def test_int8_lies_near_the_model_and_in_a_quarter_of_the_bytes() -> None:
    model, inputs = stirred(num_recurrences=3), rows(64, 12)
    graph = build(model, Int8Linear())
    (found,) = session_of(graph).run(None, inputs)
    wanted = expected(model, inputs)
    assert not np.array_equal(found, wanted)
    assert np.abs(found - wanted).mean() < 0.05 * np.abs(wanted).mean()
    kinds = {name: array.dtype for name, array in stored(graph).items() if array.ndim == 2}
    wide = {name for name, dtype in kinds.items() if dtype != np.int8}
    assert wide == {"classifier.weight", "model.embeddings.token.weight_scale", "rotary.cosines", "rotary.sines"}
