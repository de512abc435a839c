"""Exits in the ONNX graph: labels, depths and logits are the model's, and who has left costs nothing."""

from __future__ import annotations

import json
import operator
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

onnx = pytest.importorskip("onnx", reason="pip install 'recurra[onnx]'")
runtime = pytest.importorskip("onnxruntime", reason="pip install 'recurra[onnx]'")

from onnx_graphs import FEED_FORWARDS, rows  # noqa: E402
from onnx_graphs import session_of as run_of  # noqa: E402
from recurra import RecurraForSequenceClassification  # noqa: E402
from recurra.deployment.onnx.graph import Int8Linear, Linear  # noqa: E402
from recurra.deployment.onnx.model import build_classifier  # noqa: E402
from recurra.models.exits.rules import (  # noqa: E402
    ConfidenceRule,
    EntropyRule,
    ExitRule,
    FixedExit,
)
from relaxed import relaxed_shapes  # noqa: E402
from tiny import stir, tiny_model  # noqa: E402

LONGEST = 12
NEVER = np.inf


def stirred(**shape: Any) -> RecurraForSequenceClassification:
    model = tiny_model(**shape).eval()
    stir(model)
    return model


def session_of(model: RecurraForSequenceClassification, linear: Linear | None = None) -> Any:
    weights = {name: values.numpy() for name, values in model.state_dict().items()}
    graph = build_classifier(model.config, weights, linear or Linear(), max_length=LONGEST, metadata={})
    onnx.checker.check_model(graph, full_check=True)
    return run_of(graph)


def torch_says(
    model: RecurraForSequenceClassification, inputs: dict[str, np.ndarray], rule: ExitRule | None = None
) -> Any:
    asked = {} if rule is None else {"exit_rule": rule}
    with torch.inference_mode():
        return model(**{name: torch.from_numpy(values) for name, values in inputs.items()}, **asked)


def probabilities(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def reference(exits: np.ndarray, last: np.ndarray, places: list[int], most: int, bounds: np.ndarray) -> Any:
    """Row by row: the first exit whose head is sure enough. ``exits`` is ``(exits, rows, labels)``."""
    depths, logits = [], []
    for row in range(len(last)):
        for number, place in enumerate(places):
            if bounds[number] < NEVER and probabilities(exits[number, row]).max() >= bounds[number]:
                depths.append(place)
                logits.append(exits[number, row])
                break
        else:
            depths.append(most)
            logits.append(last[row])
    return np.array(depths), np.stack(logits)


SHAPES = relaxed_shapes(
    {
        "num_recurrences": st.just(2),
        "num_prelude_layers": st.integers(0, 1),
        "num_core_layers": st.integers(1, 2),
        "residual_scale": st.sampled_from([0.0, 0.5]),
        "learned_residual_scale": st.booleans(),
        "recurrence_embedding": st.booleans(),
        "input_injection": st.sampled_from(["none", "add", "concat"]),
        "final_norm": st.booleans(),
        "causal": st.booleans(),
        "pooling": st.sampled_from(["first", "last", "max"]),
        "heads": st.sampled_from(["shared", "separate"]),
        "num_labels": st.sampled_from([2, 3]),
    }
)
DEPTHS = st.integers(2, 5).flatmap(
    lambda most: st.tuples(st.just(most), st.sets(st.integers(1, most - 1), min_size=1).map(sorted))
)


@settings(max_examples=40)
@given(
    shape=st.builds(operator.or_, SHAPES, FEED_FORWARDS),
    depth=DEPTHS,
    batch=st.integers(1, 7),
    tokens=st.integers(1, LONGEST),
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
    bounds = np.array([data.draw(st.sampled_from([0.0, 2.0, NEVER, *between])) for _ in places], dtype=np.float32)
    assume(np.abs(sure - bounds[:, None]).min() > 1e-4)
    depths, logits = reference(exits, last, places, most, bounds)
    names = ["logits", "exited_after", "exit_logits"]
    found, taken, said = session_of(model).run(names, {**inputs, "exit_confidences": bounds})
    if not (bounds < NEVER).any():
        assert len(taken) == len(said) == 0
        np.testing.assert_allclose(found, last, rtol=1e-3, atol=3e-5 * max(1.0, float(np.abs(last).max())))
        return
    assert taken.tolist() == depths.tolist()
    allowed = 3e-5 * max(1.0, float(np.abs(last).max()), float(np.abs(exits).max()))
    np.testing.assert_allclose(found, logits, rtol=1e-3, atol=allowed)
    assert found.shape == last.shape and said.shape == (batch, len(places), last.shape[1])
    heard = (bounds < NEVER) & (np.array(places) <= depths[:, None])
    assert (np.isnan(said).all(-1) == ~heard).all()
    np.testing.assert_allclose(said[heard], exits.transpose(1, 0, 2)[heard], rtol=1e-3, atol=allowed)


@pytest.mark.parametrize("pooling", ["first", "last", "max"])
@pytest.mark.parametrize(
    "rule",
    [ConfidenceRule.constant(0.75), ConfidenceRule(0.9, 0.85, 0.3), EntropyRule(0.6), FixedExit(1), FixedExit(3)],
    ids=lambda rule: rule.describe(),
)
def test_the_rules_of_torch_can_be_said_as_bounds(rule: ExitRule, pooling: str) -> None:
    model = stirred(num_recurrences=4, exits=[1, 3], pooling=pooling, heads="separate", num_labels=3)
    inputs = rows(40, 9)
    wanted = torch_says(model, inputs, rule)
    bounds = {"exit_confidences": np.full(2, NEVER, np.float32), "exit_entropies": np.full(2, -1.0, np.float32)}
    for number, place in enumerate((1, 3)):
        if isinstance(rule, EntropyRule):
            bounds["exit_confidences"][number], bounds["exit_entropies"][number] = 2.0, rule.threshold
        elif isinstance(rule, ConfidenceRule):
            bounds["exit_confidences"][number] = rule.bound(place)
        elif place >= rule.after:  # type: ignore[attr-defined]
            bounds["exit_confidences"][number] = 0.0
    found, taken = session_of(model).run(["logits", "exited_after"], {**inputs, **bounds})
    assert taken.tolist() == wanted.exited_after.tolist()
    if not isinstance(rule, FixedExit):
        assert len(set(taken.tolist())) > 1
    np.testing.assert_allclose(found, wanted.logits.numpy(), rtol=1e-3, atol=1e-3)


def test_exits_and_the_number_of_recurrences_go_together() -> None:
    model, inputs = stirred(num_recurrences=3, exits=[1, 2]), rows(4, 9)
    full = torch_says(model, inputs)
    session = session_of(model)
    nobody = {**inputs, "exit_confidences": np.full(2, 2.0, np.float32)}
    for number in (1, 2, 5):
        alone = session.run(["logits"], {**inputs, "num_recurrences": np.array(number)})[0]
        listened = session.run(["logits"], {**nobody, "num_recurrences": np.array(number)})[0]
        np.testing.assert_allclose(listened, alone, rtol=1e-4, atol=1e-4)
        _, taken, said = session.run(None, {**nobody, "num_recurrences": np.array(number)})
        if number == 1:  # no exit lies on the way
            assert len(taken) == len(said) == 0
            continue
        assert taken.tolist() == [number] * 4
        for index in (0, 1):
            if index + 1 < number:
                np.testing.assert_allclose(said[:, index], full.exit_logits[index].numpy(), rtol=1e-3, atol=1e-3)
            else:
                assert np.isnan(said[:, index]).all()


def nodes_of(graph: Any) -> list[Any]:
    found = list(graph.node)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                found += nodes_of(attribute.g)
    return found


def test_nothing_in_it_stops_runtimes_that_take_the_standard_less_exactly() -> None:
    """OpenVINO reads an empty constant as one number, and finds no shape for a loop skipped by its condition."""
    model = stirred(num_recurrences=3, exits=[1, 2])
    weights = {name: values.numpy() for name, values in model.state_dict().items()}
    graph = build_classifier(model.config, weights, Linear(), max_length=LONGEST, metadata={}).graph
    assert [weight.name for weight in graph.initializer if 0 in weight.dims] == []
    loops = [node for node in nodes_of(graph) if node.op_type == "Loop"]
    assert len(loops) == 2 and [node.input[1] for node in loops] == ["", ""]
    for node in loops:
        for part in node.attribute[0].g.input[2:]:
            # What is carried has sizes that are not known: of others a loop that does not run gives anything.
            assert any(not size.HasField("dim_value") for size in part.type.tensor_type.shape.dim), part.name


@pytest.mark.parametrize("pooling", ["first", "last", "max"])
def test_int8_leaves_where_its_own_heads_are_sure(pooling: str) -> None:
    model, inputs = stirred(num_recurrences=3, exits=[1, 2], pooling=pooling), rows(48, 10)
    session = session_of(model, Int8Linear())
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
    weights = {name: values.numpy() for name, values in model.state_dict().items()}
    graph = build_classifier(model.config, weights, Linear(), max_length=LONGEST, metadata={})
    ran = {}
    for name, bound in (("all", 0.0), ("none", 2.0)):
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        options.enable_profiling = True
        options.profile_file_prefix = str(tmp_path / name)
        session = runtime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
        session.run(None, {**inputs, "exit_confidences": np.full(5, bound, np.float32)})
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        kinds = Counter(event.get("args", {}).get("op_name") for event in events)
        # One in each layer, one in each head that is asked.
        ran[name] = kinds["Attention"], kinds["Softmax"]
    layers = model.config.num_core_layers
    assert ran == {"all": (layers, 1), "none": (6 * layers, 5)}
