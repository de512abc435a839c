"""The classifier: labels in the order of the texts, whatever the batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from recurra import Classifier
from recurra.core.errors import CheckpointError, ConfigurationError
from recurra.data.cleaning import clean_texts
from recurra.deployment.classifier import log_probabilities
from recurra.deployment.engines import load_engine
from recurra.deployment.engines.computation import softmax
from recurra.models.inference import imitates_bf16
from reviews import review_rows
from tiny import write_classifier

TEXTS = [text for text, _ in review_rows(40)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    """Random weights of some size, and a tokenizer of its own."""
    folder = tmp_path_factory.mktemp("classifier") / "model"
    write_classifier(folder.parent, TEXTS)
    model = Classifier(load_engine(folder, precision="fp32", max_length=500), ["no", "yes"], batch_size=7)
    # A text is cut at the shorter of both limits.
    assert model.engine.max_length == 32
    return model


MIXED = [*TEXTS[:20], "", "!!!", "Great " * 200, "   ", "<br/>", *TEXTS[20:], "unheardof 変 \x00 word", TEXTS[0]]


def test_probabilities_are_the_softmax_and_sum_to_one(model: Classifier) -> None:
    probabilities, logits = model.predict_proba(TEXTS), model.logits(TEXTS).astype(np.float64)
    assert probabilities.dtype == np.float64
    np.testing.assert_allclose(probabilities, np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True), rtol=1e-9)
    np.testing.assert_allclose(model.predict_log_proba(TEXTS), np.log(probabilities))
    assert np.array_equal(log_probabilities(np.array([[0.0, 1.0]])), [[-np.inf, 0.0]])
    assert np.array_equal(softmax(np.array([[1e4, 0.0], [-1e4, -1e4]])), [[1.0, 0.0], [0.5, 0.5]])


def test_a_stream_gives_what_the_whole_gives_and_texts_are_cleaned(model: Classifier) -> None:
    parts = list(model.stream([MIXED[:3], [], MIXED[3:]]))
    assert [len(part) for part in parts] == [3, 0, len(MIXED) - 3]
    np.testing.assert_allclose(np.concatenate(parts), model.predict_proba(MIXED), rtol=1e-4, atol=1e-5)
    raw = [f"<b>{text.upper()}</b>  \n!!! http://a.b/c" for text in TEXTS[:5]]
    assert np.array_equal(model.logits(raw), model.logits(clean_texts(raw), clean=False))
    assert not np.array_equal(model.logits(raw), model.logits(raw, clean=False))
    assert np.array_equal(model.logits(["dull film " * 400]), model.logits(["dull film " * 300]))


def test_a_preferred_precision_gives_way_on_a_cpu_and_one_that_is_asked_for_does_not(tmp_path: Path) -> None:
    write_classifier(tmp_path, TEXTS)

    def computed(**values: str) -> tuple[str, str]:
        how = load_engine(tmp_path / "model", max_length=24, **values).computation
        return how.storage_precision, how.compute_precision

    assert computed() == ("fp32", "fp32")
    assert computed(preferred="bf16") == ("fp32", "fp32" if imitates_bf16(torch.device("cpu")) else "bf16")
    assert computed(preferred="bf16", precision="fp32") == ("fp32", "fp32")
    if not torch.cuda.is_available():
        # A run that was trained in FP16 on an accelerator.
        assert computed(preferred="fp16") == ("fp32", "fp32")
        with pytest.raises(ConfigurationError, match="needs an accelerator"):
            computed(precision="fp16")


def test_a_run_gets_the_threads_that_are_asked_for(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    for threads in (0, 3):
        Classifier.open(run, threads=threads)
    assert asked == [3]


def test_any_engine_will_do_if_its_labels_are_as_many() -> None:
    calls: list[tuple[list[str], int]] = []

    def by_length(texts: Sequence[str], batch_size: int) -> np.ndarray:
        calls.append((list(texts), batch_size))
        return np.array([[len(text), 3.5] for text in texts], dtype=np.float32)

    engine: Any = SimpleNamespace(logits=by_length)
    model = Classifier(engine, ["long", "short"], batch_size=5)
    assert model.predict(["A  b", "abcdef"]).tolist() == ["short", "long"]
    assert calls == [(["a b", "abcdef"], 5)] and model.classes_.tolist() == ["long", "short"]
    with pytest.raises(ConfigurationError, match="batch_size is -1; allowed: 1 or more"):
        Classifier(engine, ["long", "short"], batch_size=-1)
    for names in (["a"], ["a", "b", "c"]):
        with pytest.raises(CheckpointError, match=f"gives 2 scores a text, and its record names {len(names)} labels"):
            Classifier(engine, names).predict(["x"])
