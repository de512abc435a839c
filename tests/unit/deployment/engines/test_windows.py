"""Texts in windows on both engines: pooled logits are the plain mean over windows, whatever else is in the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recurra import Classifier
from recurra.core.errors import ConfigurationError
from recurra.data.cleaning import clean_texts
from recurra.deployment.engines import load_engine
from recurra.deployment.export.build import trim
from recurra.deployment.onnx.engine import OnnxEngine
from recurra.models.exits.rules import ConfidenceRule
from recurra.models.loading import load_classifier_model
from reviews import review_rows
from tiny import write_classifier

TEXTS = [text for text, _ in review_rows(12)]
MIXED = [*TEXTS, "", " ".join(TEXTS[:4]), "Great " * 200, " ".join(TEXTS), TEXTS[0]]
LENGTH, MOST = 12, 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with an exit, and its ONNX graph beside it."""
    folder = tmp_path_factory.mktemp("windows")
    write_classifier(folder, TEXTS, graph_length=LENGTH, exits=[1])
    return folder


def classifier(folder: Path, kind: str, batch_size: int = 5) -> Classifier:
    reading: dict[str, Any] = {"max_length": LENGTH, "windows": MOST}
    if kind == "torch":
        engine: Any = load_engine(folder / "model", precision="fp32", **reading)
    else:
        engine = OnnxEngine(folder / "onnx", precision="fp32", pad_token_id=0, threads=1, **reading)
    return Classifier(engine, ["no", "yes"], batch_size=batch_size)


@torch.inference_mode()
def plain_loop(folder: Path) -> tuple[np.ndarray[Any, Any], int]:
    """Logits of each text, window by window; and the windows of the longest."""
    model, tokenizer = load_classifier_model(folder / "model").eval(), classifier(folder, "torch").engine.tokenizer  # type: ignore[attr-defined]
    found, most = [], 0
    for text in clean_texts(MIXED):
        first, *body, last = tokenizer.backend_tokenizer.encode(text).ids
        body = body[: MOST * (LENGTH - 2)]
        count = max(1, -(-len(body) // (LENGTH - 2)))
        parts = [body[index * len(body) // count : (index + 1) * len(body) // count] for index in range(count)]
        windows = [model(torch.tensor([[first, *part, last]])).logits[0] for part in parts]
        found.append(torch.stack(windows).mean(dim=0).numpy())
        most = max(most, count)
    return np.stack(found), most


@pytest.mark.parametrize("kind", ["torch", "onnx"])
def test_logits_are_the_mean_over_windows_alone_and_in_any_batch(folder: Path, kind: str) -> None:
    wanted, most = plain_loop(folder)
    assert most == MOST
    model = classifier(folder, kind)
    np.testing.assert_allclose(model.logits(MIXED), wanted, rtol=1e-4, atol=1e-4)
    alone = np.concatenate([model.logits([text]) for text in MIXED[-5:]])
    np.testing.assert_allclose(alone, wanted[-5:], rtol=1e-4, atol=1e-4)
    backwards = classifier(folder, kind, batch_size=2).logits(MIXED[::-1])
    np.testing.assert_allclose(backwards[::-1], wanted, rtol=1e-4, atol=1e-4)
    assert model.logits([]).shape == (0, 2)
    trace = model.trace(MIXED)
    assert trace.after == (1, 2) and len(trace) == len(MIXED)
    np.testing.assert_allclose(trace.probabilities[:, -1], model.predict_proba(MIXED), rtol=1e-3, atol=1e-4)
    rule = ConfidenceRule.constant(0.6)
    asked = (model.stop_early, lambda: model.stop_early(rule), lambda: model.classify(TEXTS, rule=rule))
    for ask in asked:
        with pytest.raises(ConfigurationError, match="reads a text in up to 5 and pools their scores; leave the rule"):
            ask()
    if kind == "torch":
        # A smaller vocabulary keeps the pieces of every window.
        texts = clean_texts(MIXED)
        smaller = trim(model.engine, texts, None)  # type: ignore[arg-type]
        assert smaller.windows == MOST
        np.testing.assert_allclose(smaller.logits(texts, 8), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["torch", "onnx"])
def test_what_is_behind_the_part_that_is_read_counts_for_nothing(folder: Path, kind: str) -> None:
    model = classifier(folder, kind)
    marks = "مُحَمَّدٌ नमस्ते ba\u200bd " * 6
    texts = [*MIXED, "<br/>Great " * 90, marks]
    logits = model.logits(texts)
    cut = model.are_cut(texts)
    assert set(cut.tolist()) == {True, False}
    with pytest.raises(TypeError, match="texts is one string"):
        model.are_cut("abc")
    same = np.isclose(model.logits([f"{text} bad" for text in texts]), logits, atol=1e-5).all(axis=1)
    assert cut.tolist() == same.tolist()
    long = [text for text, is_cut in zip(texts, cut, strict=True) if is_cut]
    read = [text[: model.most_read(text)] for text in long]
    assert sum(map(len, read)) < sum(map(len, long))
    # What is read whole is explained whole, marks that are no letters of their own included.
    assert all(model.most_read(text) is None for text, is_cut in zip(texts, cut, strict=True) if not is_cut)
    assert model.logits([f"{text} bad" for text in read]) == pytest.approx(logits[cut], abs=1e-5)
    # Some words have no tokens, so the words behind them are read too.
    hidden = "\u200b " * 999 + "bad"
    assert not model.are_cut([hidden])[0] and model.most_read(hidden) is None
