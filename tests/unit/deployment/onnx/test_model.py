"""The ONNX graph computes what the model computes, for every key of the configuration, with each weight once.

Of exits: labels, depths and logits are the model's, and who has left costs nothing.
"""

from __future__ import annotations

import functools
import json
import operator
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as runtime
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from onnx_graphs import FEED_FORWARDS, SHAPES, exact_products, rows, session_of
from recurra import RecurraForSequenceClassification, preset
from recurra.core.errors import ConfigurationError
from recurra.deployment.export import formats
from recurra.deployment.export.formats import OnnxFormat
from recurra.deployment.onnx.graph import Graph, Int8Linear, Linear
from recurra.deployment.onnx.model import build_classifier, write_onnx
from relaxed import RELAXED
from tiny import stirred, tiny_model

LONGEST = 20


def build(model: RecurraForSequenceClassification, linear: Linear | None = None) -> Any:
    weights = {name: values.numpy() for name, values in model.state_dict().items()}
    metadata = {"run_id": "r"}
    graph = build_classifier(model.config, weights, linear or Linear(), max_length=LONGEST, metadata=metadata)
    onnx.checker.check_model(graph, full_check=True)
    return graph


def torch_says(model: RecurraForSequenceClassification, inputs: dict[str, np.ndarray]) -> Any:
    with torch.inference_mode():
        return model(**{name: torch.from_numpy(values) for name, values in inputs.items()})


@settings(max_examples=30)
@given(shape=st.builds(operator.or_, SHAPES, FEED_FORWARDS), batch=st.integers(1, 5), tokens=st.integers(1, LONGEST))
def test_the_graph_is_the_model(shape: dict[str, Any], batch: int, tokens: int) -> None:
    model = stirred(**shape)
    inputs = rows(batch, tokens)
    wanted = torch_says(model, inputs).logits.numpy()
    (found,) = session_of(build(model)).run(None, inputs)
    assert found.shape == (batch, 2) and found.dtype == np.float32
    # Random weights this large grow with every recurrence, and with them the rounding of sums in another order.
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=2e-5 * max(1.0, float(np.abs(wanted).max())))


@pytest.mark.parametrize(("key", "value"), [("norm", "none"), ("attention_bias", False)])
def test_a_model_that_the_graph_is_not_written_for_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"'{key}' of the model is {value!r}.*take --format safetensors"):
        OnnxFormat().check_model(tiny_model(**{key: value}).config)


def test_a_model_that_no_onnx_file_can_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "_MOST_ONNX_BYTES", 1000)
    engine: Any = SimpleNamespace(model=tiny_model())
    record: Any = None
    with pytest.raises(ConfigurationError, match="GiB in fp32, and an ONNX file holds less than 2; take --precision"):
        OnnxFormat().write(engine, record, "fp32", tmp_path)


@pytest.mark.parametrize(
    "shape", [{}, {"num_coda_layers": 1}, {"pooling": "last", "causal": True}, {"input_injection": "add"}, RELAXED]
)
def test_the_number_of_recurrences_is_an_input(shape: dict[str, Any]) -> None:
    model, inputs = stirred(num_recurrences=3, **shape), rows(4, 9)
    session = session_of(build(model))
    for number in (None, 1, 2, 3, 5):
        model.config.num_recurrences = number or 3
        (found,) = session.run(None, inputs if number is None else {**inputs, "num_recurrences": np.array(number)})
        np.testing.assert_allclose(found, torch_says(model, inputs).logits.numpy(), rtol=1e-3, atol=1e-3)


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
    """Runtimes that follow them need no run: what the loop declares is enough."""
    graph = build(stirred(**shape), linear)
    assert without_shape(onnx.shape_inference.infer_shapes(graph, strict_mode=True, data_prop=True).graph) == []
    for body in (node.attribute[0].g for node in graph.graph.node if node.op_type == "Loop"):
        sizes = [size.dim_param or size.dim_value for size in body.input[2].type.tensor_type.shape.dim]
        assert sizes == ["batch", "tokens", 16]


def test_the_file_is_hardly_larger_than_the_weights_and_no_larger_with_more_recurrences(tmp_path: Path) -> None:
    def size(recurrences: int, precision: str) -> int:
        model = RecurraForSequenceClassification(preset("recurrent", num_labels=2, num_recurrences=recurrences))
        write_onnx(model, precision, 128, tmp_path, {})
        return (tmp_path / "model.onnx").stat().st_size

    weights, fp32, int8 = 10_972_162 * 4, size(2, "fp32"), size(8, "int8")
    assert weights * 0.99 < fp32 <= 1.03 * weights and abs(fp32 - size(8, "fp32")) < 100
    assert 0.99 * weights / 4 < int8 <= 1.03 * weights / 4
    # With the vocabulary of BERT the tokenizer takes 0.7 MiB.
    assert int8 + 711_396 + 2**15 <= 12 * 2**20


def naive_int8(states: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Dynamic quantisation as the ONNX standard defines it, in whole numbers and double precision."""
    low, high = min(states.min(), 0.0), max(states.max(), 0.0)
    step = np.float32((high - low) / 255)
    zero = int(np.clip(np.rint(-low / step), 0, 255))
    whole = np.clip(np.rint(states / step) + zero, 0, 255).astype(np.int64) - zero
    scale = np.abs(weight).max(axis=1) / 127
    rounded = np.rint(weight / scale[:, None]).astype(np.int64)
    return (whole @ rounded.T) * (float(step) * scale.astype(np.float64)) + bias


@exact_products
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


@exact_products
def test_int8_lies_near_the_model_and_in_a_quarter_of_the_bytes() -> None:
    model, inputs = stirred(num_recurrences=3), rows(64, 12)
    graph = build(model, Int8Linear())
    (found,) = session_of(graph).run(None, inputs)
    wanted = torch_says(model, inputs).logits.numpy()
    assert not np.array_equal(found, wanted)
    assert np.abs(found - wanted).mean() < 0.05 * np.abs(wanted).mean()
    kinds = {item.name: item.data_type for item in graph.graph.initializer if len(item.dims) == 2}
    wide = {name for name, kind in kinds.items() if kind != onnx.TensorProto.INT8}
    assert wide == {"classifier.weight", "model.embeddings.token.weight_scale", "rotary.cosines", "rotary.sines"}


def probabilities(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def reference(exits: np.ndarray, last: np.ndarray, places: list[int], most: int, bounds: np.ndarray) -> Any:
    """Row by row: the first exit whose head is sure enough. ``exits`` is ``(exits, rows, labels)``."""
    depths, logits = np.full(len(last), most), last.copy()
    for row in range(len(last)):
        for number, place in enumerate(places):
            if bounds[number] < np.inf and probabilities(exits[number, row]).max() >= bounds[number]:
                depths[row], logits[row] = place, exits[number, row]
                break
    return depths, logits


EXIT_SHAPES = st.fixed_dictionaries(
    {
        "num_coda_layers": st.just(0),
        "heads": st.sampled_from(["shared", "separate"]),
        "num_labels": st.sampled_from([2, 3]),
    }
)
DEPTHS = st.integers(2, 5).flatmap(
    lambda most: st.tuples(st.just(most), st.sets(st.integers(1, most - 1), min_size=1).map(sorted))
)


@settings(max_examples=25)
@given(
    shape=st.builds(lambda *parts: functools.reduce(operator.or_, parts), SHAPES, FEED_FORWARDS, EXIT_SHAPES),
    depth=DEPTHS,
    batch=st.integers(1, 7),
    tokens=st.integers(1, 12),
    data=st.data(),
)
def test_who_leaves_and_with_what_is_the_models(
    shape: dict[str, Any], depth: tuple[int, list[int]], batch: int, tokens: int, data: st.DataObject
) -> None:
    most, places = depth
    model = stirred(**{**shape, "num_recurrences": most, "exits": places})
    inputs = rows(batch, tokens)
    full = torch_says(model, inputs)
    exits, last = np.stack([said.numpy() for said in full.exit_logits]), full.logits.numpy()
    sure = probabilities(exits).max(-1)
    # Bounds that nobody meets, everybody meets, are not asked about, or lie between what two rows say.
    spread = np.sort(sure.ravel())
    between = [float(value) for value in (spread[1:] + spread[:-1]) / 2]
    bounds = np.array([data.draw(st.sampled_from([0.0, 2.0, np.inf, *between])) for _ in places], dtype=np.float32)
    assume(np.abs(sure - bounds[:, None]).min() > 1e-4)
    depths, logits = reference(exits, last, places, most, bounds)
    names = ["logits", "exited_after", "exit_logits"]
    found, taken, said = session_of(build(model)).run(names, {**inputs, "exit_confidences": bounds})
    if not (bounds < np.inf).any():
        assert len(taken) == len(said) == 0
        np.testing.assert_allclose(found, last, rtol=1e-3, atol=3e-5 * max(1.0, float(np.abs(last).max())))
        return
    assert taken.tolist() == depths.tolist()
    allowed = 3e-5 * max(1.0, float(np.abs(last).max()), float(np.abs(exits).max()))
    np.testing.assert_allclose(found, logits, rtol=1e-3, atol=allowed)
    assert found.shape == last.shape and said.shape == (batch, len(places), last.shape[1])
    heard = (bounds < np.inf) & (np.array(places) <= depths[:, None])
    assert (np.isnan(said).all(-1) == ~heard).all()
    np.testing.assert_allclose(said[heard], exits.transpose(1, 0, 2)[heard], rtol=1e-3, atol=allowed)


@pytest.mark.parametrize("entropies", [(0.6, 0.6), (-1.0, 0.6), (0.6, -1.0)])
def test_entropies_are_bounds_each_of_its_exit(entropies: tuple[float, float]) -> None:
    model, inputs = stirred(num_recurrences=4, exits=[1, 3], heads="separate", num_labels=3), rows(40, 9)
    output = torch_says(model, inputs)
    heads = [scores.numpy() for scores in (*output.exit_logits, output.logits)]
    measured = [-(shares * np.log(shares)).sum(-1) for shares in map(probabilities, heads[:2])]
    chosen = [next((at for at in (0, 1) if measured[at][row] <= entropies[at]), 2) for row in range(40)]
    bounds = {"exit_confidences": np.full(2, 2.0, np.float32), "exit_entropies": np.array(entropies, np.float32)}
    logits, taken = session_of(build(model)).run(["logits", "exited_after"], {**inputs, **bounds})
    assert taken.tolist() == [(1, 3, 4)[index] for index in chosen] and len({*chosen}) > 1
    wanted = np.stack([heads[index][row] for row, index in enumerate(chosen)])
    np.testing.assert_allclose(logits, wanted, rtol=1e-3, atol=1e-3)


def test_exits_and_the_number_of_recurrences_go_together() -> None:
    model, inputs = stirred(num_recurrences=3, exits=[1, 2]), rows(4, 9)
    full = torch_says(model, inputs)
    session = session_of(build(model))
    for number in (1, 2, 5):
        asked = {**inputs, "num_recurrences": np.array(number)}
        (alone,) = session.run(["logits"], asked)
        listened, taken, said = session.run(None, {**asked, "exit_confidences": np.full(2, 2.0, np.float32)})
        np.testing.assert_allclose(listened, alone, rtol=1e-4, atol=1e-4)
        # No exit lies on the way to the first.
        assert taken.tolist() == ([] if number == 1 else [number] * 4) and len(said) == len(taken)
        for index in range(2 * (number > 1)):
            heard = full.exit_logits[index].numpy() if index + 1 < number else np.full((4, 2), np.nan)
            np.testing.assert_allclose(said[:, index], heard, rtol=1e-3, atol=1e-3)


@exact_products
@pytest.mark.parametrize("pooling", ["first", "last", "max"])
def test_int8_leaves_where_its_own_heads_are_sure(pooling: str) -> None:
    model, inputs = stirred(num_recurrences=3, exits=[1, 2], pooling=pooling), rows(48, 10)
    session = session_of(build(model, Int8Linear()))
    names = ["logits", "exited_after", "exit_logits"]
    full = torch_says(model, inputs)
    last, _, exits = session.run(names, {**inputs, "exit_confidences": np.full(2, 2.0, np.float32)})
    wanted = np.stack([said.numpy() for said in full.exit_logits], axis=1)
    assert np.abs(exits - wanted).mean() < 0.05 * np.abs(wanted).mean()
    bounds = np.full(2, float(np.quantile(probabilities(exits[:, 0]).max(-1), 0.5)), np.float32)
    found, taken, said = session.run(names, {**inputs, "exit_confidences": bounds})
    assert set(taken.tolist()) == {1, 2, 3}
    # After the first exit the batch is another one, and with it the scale of its activations.
    assert (taken == 1).tolist() == (probabilities(said[:, 0]).max(-1) >= bounds[0]).tolist()
    np.testing.assert_array_equal(found[taken == 1], exits[taken == 1, 0])
    np.testing.assert_array_equal(found[taken == 2], said[taken == 2, 1])
    assert np.abs(found - last)[taken == 3].mean() < 0.05 * np.abs(last).mean()


def test_rows_that_left_are_not_computed(tmp_path: Path) -> None:
    """Counted in what the loop computes, not timed: the profile names every node that ran."""
    model, inputs = stirred(num_recurrences=6, exits=[1, 2, 3, 4, 5]), rows(16, 9)
    graph = build(model).SerializeToString()
    layers = model.config.num_core_layers
    # One in each layer, one in each head that is asked.
    for bound, wanted in ((0.0, (layers, 1)), (2.0, (6 * layers, 5))):
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        options.enable_profiling = True
        options.profile_file_prefix = str(tmp_path / str(bound))
        session = runtime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        session.run(None, {**inputs, "exit_confidences": np.full(5, bound, np.float32)})
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        kinds = Counter(event.get("args", {}).get("op_name") for event in events)
        assert (kinds["Attention"], kinds["Softmax"]) == wanted
