"""Exports are read by another runtime: OpenVINO finds the labels and logits of ONNX Runtime, exits included."""

from __future__ import annotations

import json
import operator
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import openvino
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from onnx_graphs import FEED_FORWARDS, SHAPES, exact_products, rows, session_of
from recurra.cli.main import main
from recurra.deployment.export.build import export_run
from recurra.deployment.export.manifest import ExportOptions
from recurra.deployment.onnx.graph import Int8Linear, Linear
from recurra.deployment.onnx.model import build_classifier
from reviews import review_rows, train_tiny, write_reviews
from tiny import stirred
from tiny_encoder import write_tiny_encoder

# Half of them are cut anywhere, most before the word that tells the label: of those a head is less sure.
WHOLE = [text for text, _ in review_rows(60, seed=9)]
TEXTS = [*WHOLE[:30], *(" ".join(text.split()[: 2 + number % 8]) for number, text in enumerate(WHOLE[30:]))]
GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "export.md"
# OpenVINO's products do not saturate where those of ONNX Runtime do.
COMPARED = ["fp32", pytest.param("int8", marks=exact_products)]
LEARNS = ("max_epochs=6", "learning_rate=1e-2", "batch_size=8", "warmup_ratio=0.1", "label_smoothing=0.1")
# Models with most to go wrong; others: `test_any_configuration_is_read`.
RUNS = {
    "recurrent-exits": ("model.exits=[1]",),
    "convolution": ("model.feed_forward=conv+linear", "model.num_cycles=2", "model.pooling=max"),
}
PLANS: dict[str, dict[str, Any]] = {
    "encoder": {},
    "encoder-loop": {"plan": "0 (1 2)x2 3"},
    "encoder-exits": {"plan": "0 (1 2)x2", "exits": [1], "recurrence_norms": True, "low_rank": 3},
}
# Of the largest logit. In int8 one activation that is rounded the other way moves those behind it.
ALLOWED = {"fp32": 1e-4, "int8": 2e-2}


def train_encoder(root: Path, keys: dict[str, Any]) -> Path:
    """A run from a tiny BERT: LayerNorm behind each part, GELU, learned positions, mean pooling."""
    data, model = write_reviews(root / "reviews.csv"), root / "encoder.yaml"
    encoder = write_tiny_encoder(root / "encoder", data.read_text(encoding="utf-8").splitlines())
    model.write_text(yaml.safe_dump({"encoder": str(encoder), **keys}), encoding="utf-8")
    arguments = ["train", "--model", str(model), "--data", str(data), "--output", str(root / "run"), "--quiet"]
    arguments += ["--protocol", "finetune", "--cache-dir", str(root / "cache"), "--threads", "1", "--no-latency"]
    assert main([*arguments, "data.max_length=24", "max_epochs=4", "learning_rate=4e-3", "batch_size=8"]) == 0
    return root / "run"


FIRST, *OTHERS = [*RUNS, *PLANS]


@pytest.fixture(scope="module", params=[FIRST, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def exports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The exports of a trained run, by precision."""
    name: str = request.param
    root = tmp_path_factory.mktemp(name)
    run = train_encoder(root, PLANS[name]) if name in PLANS else train_tiny(root, *RUNS[name], *LEARNS)
    for precision in ("fp32", "int8"):
        export_run(run, root / precision, ExportOptions("onnx", precision))
    return {precision: root / precision for precision in ("fp32", "int8")}


def encoded(folder: Path, texts: list[str]) -> dict[str, np.ndarray]:
    """Rows as the model card tells other programs to make them."""
    about = json.loads((folder / "export.json").read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(about["max_length"])
    tokenizer.enable_padding(pad_id=about["pad_token_id"])
    found = tokenizer.encode_batch(texts)
    return {
        "input_ids": np.array([row.ids for row in found]),
        "attention_mask": np.array([row.attention_mask for row in found]),
    }


def compiled(graph: Any) -> Any:
    """The graph in OpenVINO, in FP32: on some processors it takes bf16 unasked."""
    core = openvino.Core()
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    return core.compile_model(core.read_model(graph.SerializeToString()), "CPU", settings)


def assert_same(found: np.ndarray, wanted: np.ndarray, precision: str) -> None:
    """Labels are those of ONNX Runtime where one is ahead by more than the tolerance, and of 99 % of all rows."""
    allowed = ALLOWED[precision] * max(1.0, float(np.abs(wanted).max()))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=allowed)
    ordered, same = np.sort(wanted, axis=1), found.argmax(axis=1) == wanted.argmax(axis=1)
    assert same[ordered[:, -1] - ordered[:, -2] > 2 * allowed].all() and same.mean() >= 0.99


def without_defaults(graph: Any) -> Any:
    """The graph with nothing that may be left out, made by the lines of the guide."""
    found = onnx.ModelProto()
    found.CopyFrom(graph)
    lines = guide_blocks()[1].split("\n")
    names = {"graph": found, "onnx": onnx}
    exec("\n".join(line for line in lines if "onnx.load" not in line and "onnx.save" not in line), names)
    return found


def guide_blocks() -> list[str]:
    section = GUIDE.read_text(encoding="utf-8").split("### Read by other runtimes")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


@pytest.mark.parametrize("precision", COMPARED)
def test_labels_and_logits_are_those_of_onnx_runtime(exports: dict[str, Path], precision: str) -> None:
    graph = onnx.load(exports[precision] / "model.onnx")
    inputs = encoded(exports[precision], TEXTS)
    session, model = session_of(graph), compiled(graph)
    (wanted, *more), found = session.run(None, inputs), model(inputs)
    assert len(set(wanted.argmax(axis=1).tolist())) == 2, "the model says the same of every text: nothing is compared"
    assert_same(found["logits"], wanted, precision)
    assert [found[name].shape for name in ("exited_after", "exit_logits")[: len(more)]] == [one.shape for one in more]
    # One row of another length, as a server asks.
    alone = encoded(exports[precision], [f"{TEXTS[0]} {TEXTS[1]}"])
    assert_same(model(alone)["logits"], session.run(["logits"], alone)[0], precision)


@pytest.mark.parametrize(
    "exports",
    [FIRST, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS if name != "encoder")],
    indirect=True,
)
@pytest.mark.parametrize("precision", COMPARED)
def test_recurrences_and_exits_are_inputs_once_their_defaults_are_gone(
    exports: dict[str, Path], precision: str
) -> None:
    graph = onnx.load(exports[precision] / "model.onnx")
    named = {entry.name for entry in graph.graph.input}
    inputs, session = encoded(exports[precision], TEXTS), session_of(graph)
    model = compiled(without_defaults(graph))
    assert {entry.any_name for entry in model.inputs} == named
    for recurrences in (1, 2, 4):
        asked: dict[str, np.ndarray] = {**inputs, "num_recurrences": np.array(recurrences)}
        if "exit_confidences" not in named:
            assert_same(model(asked)["logits"], session.run(["logits"], asked)[0], precision)
            continue
        everybody = {**inputs, "exit_confidences": np.full(1, 2.0, np.float32)}
        said = session.run(["exit_logits"], everybody)[0][:, 0].astype(np.float64)
        sure = np.sort(1 / np.exp(said - said.max(axis=1, keepdims=True)).sum(axis=1))
        # The widest gap near the middle: rounding puts nobody on the other side.
        place = len(sure) // 4 + int(np.diff(sure[len(sure) // 4 : 3 * len(sure) // 4]).argmax())
        between = float(sure[place : place + 2].mean())
        for confidence, entropy in ((np.inf, -1.0), (2.0, -1.0), (0.0, -1.0), (between, -1.0), (2.0, 10.0)):
            bounds = {"exit_confidences": np.full(1, confidence, np.float32)}
            bounds["exit_entropies"] = np.full(1, entropy, np.float32)
            wanted = session.run(["logits", "exited_after", "exit_logits"], {**asked, **bounds})
            found = model({**asked, **bounds})
            assert_same(found["logits"], wanted[0], precision)
            assert found["exited_after"].tolist() == wanted[1].tolist()
            np.testing.assert_allclose(found["exit_logits"], wanted[2], rtol=0, atol=ALLOWED[precision] * 10)
            if confidence == between and recurrences > 1:
                assert set(wanted[1].tolist()) == {1, recurrences}


@exact_products
@pytest.mark.slow
@settings(max_examples=10)
@given(
    shape=st.builds(operator.or_, SHAPES, FEED_FORWARDS),
    exits=st.booleans(),
    linear=st.sampled_from([Linear(), Int8Linear()]),
    batch=st.integers(1, 5),
    tokens=st.integers(1, 20),
)
def test_any_configuration_is_read(shape: dict[str, Any], exits: bool, linear: Linear, batch: int, tokens: int) -> None:
    if exits:
        shape |= {"num_recurrences": shape["num_recurrences"] + 1, "num_coda_layers": 0, "exits": [1]}
    model = stirred(**shape)
    weights = {name: values.numpy() for name, values in model.state_dict().items()}
    graph = build_classifier(model.config, weights, linear, max_length=20, metadata={})
    inputs = rows(batch, tokens)
    (wanted,) = session_of(graph).run(["logits"], inputs)
    assert_same(compiled(graph)(inputs)["logits"], wanted, "int8" if isinstance(linear, Int8Linear) else "fp32")


@pytest.mark.parametrize("exports", [FIRST], indirect=True)
def test_the_lines_of_the_guide_run(exports: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exports").mkdir()
    (tmp_path / "exports" / "reviews-onnx").symlink_to(exports["fp32"])
    names: dict[str, Any] = {}
    for block in guide_blocks():
        exec(block, names)
    assert names["logits"].shape == (2, 2)
    kept = onnx.load(tmp_path / "with-inputs.onnx")
    onnx.checker.check_model(kept, full_check=True)
    optional = {"num_recurrences", "exit_confidences", "exit_entropies"}
    assert not optional & {weight.name for weight in kept.graph.initializer}
