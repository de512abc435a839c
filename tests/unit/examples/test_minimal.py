"""The scripts run and stay short; the readable twin computes what the library computes: outputs, gradients, exits."""

from __future__ import annotations

import importlib.util
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch

from recurra import RecurraForCausalLM, RecurraForSequenceClassification, preset
from recurra.models.exits.rules import ConfidenceRule
from tiny import assert_same_gradients

FOLDER = Path(__file__).parents[3] / "examples"
CLASSIFIERS = {"baseline": 1, "recurrent": 2}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def minimal() -> ModuleType:
    return load("minimal")


def test_they_stay_short_and_the_twin_imports_nothing_of_ours() -> None:
    twin, hops = ((FOLDER / name).read_text(encoding="utf-8") for name in ("minimal.py", "hops.py"))
    assert "import recurra" not in twin and "from recurra" not in twin
    assert len(twin.splitlines()) <= 300 and len(hops.splitlines()) <= 60


def test_the_script_on_hops_prints_accuracy_of_both_models(capsys: pytest.CaptureFixture[str]) -> None:
    hops = load("hops")
    hops.generate_depth = partial(hops.generate_depth, rows_per_level=20)
    found = hops.main(steps=2, rows=100)
    assert list(found) == list(hops.MODELS)
    assert all(len(values) == 8 and all(0 <= value <= 1 for value in values) for values in found.values())
    assert [line[:24].strip() for line in capsys.readouterr().out.splitlines()] == list(hops.MODELS)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    lengths = torch.tensor([9, 4, 1])
    real = torch.arange(9) < lengths[:, None]
    return torch.randint(3, 50, real.shape).masked_fill(~real, 0), real


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_the_classifiers_are_the_library_s(minimal: ModuleType, name: str) -> None:
    config = preset(
        name, vocab_size=50, hidden_size=16, num_attention_heads=2, intermediate_size=24, num_core_layers=2,
        num_labels=3, hidden_dropout=0.0, initializer_range=0.3,
    )  # fmt: skip
    ours = RecurraForSequenceClassification(config)
    twin = minimal.Classifier(50, 3, 16, 2, 24, 2, CLASSIFIERS[name], dropout=0.0)
    twin.load_state_dict(ours.state_dict())
    ids, real = batch()
    labels = torch.tensor([0, 2, 1])
    output = ours(ids, real, labels=labels)
    logits = twin(ids, real)
    loss = torch.nn.functional.cross_entropy(logits, labels)
    torch.testing.assert_close(logits, output.logits, atol=1e-5, rtol=1e-5)
    output.loss.backward()
    loss.backward()
    torch.testing.assert_close(loss, output.loss)
    assert_same_gradients(twin, ours, atol=2e-5, rtol=1e-4)


def test_the_language_model_is_the_library_s(minimal: ModuleType) -> None:
    config = preset(
        "crt-tiny", vocab_size=50, hidden_size=16, embedding_size=8, num_attention_heads=2, intermediate_size=24,
        num_cycles=3, embedding_cycles=2, num_recurrences=3, exits=[1, 2], max_position_embeddings=12,
        hidden_dropout=0.0, initializer_range=0.3,
    )  # fmt: skip
    ours = RecurraForCausalLM(config)
    twin = minimal.LanguageModel(50, 16, 8, 2, 24, 3, 3, [1, 2], 2, 12, dropout=0.0)
    twin.load_state_dict(ours.state_dict())
    ids, real = batch()
    output = ours(ids, real.long(), labels=ids, logits_to_keep=0, output_exits=True)
    for logits, expected in zip(twin(ids), [*output.exit_logits, output.logits], strict=True):
        torch.testing.assert_close(logits[real], expected[real], atol=1e-5, rtol=1e-5)
    loss = twin.loss(ids, real)
    torch.testing.assert_close(loss, output.loss)
    output.loss.backward()
    loss.backward()
    assert_same_gradients(twin, ours, atol=2e-5, rtol=1e-4)
    # The published schedule, and one at which some rows leave early.
    ours.eval()
    loops_taken = set()
    for schedule in ({}, {"start": 0.07, "decay": 0.9, "floor": 0.03}):
        for row, length in zip(ids, real.sum(1), strict=True):
            left = ours(row[None, :length], exit_rule=ConfidenceRule(**schedule), logits_to_keep=1)
            token, loops = twin.predict_next(row[None, :length], **schedule)
            assert (token, loops) == (int(left.logits.argmax()), int(left.exited_after))
            loops_taken.add(loops)
    assert len(loops_taken) > 1
