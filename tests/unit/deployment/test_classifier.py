"""The classifier: labels in the order of the texts, whatever the batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from recurra import Classifier
from recurra.core.errors import CheckpointError, ConfigurationError
from recurra.data.cleaning import clean_texts
from recurra.deployment.classifier import log_probabilities
from recurra.deployment.engines import load_engine
from recurra.deployment.engines.computation import softmax
from recurra.deployment.engines.trained import TransformerEngine
from recurra.models.inference import imitates_bf16
from reviews import review_rows
from tiny import write_classifier

TEXTS = [text for text, _ in review_rows(40)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder: random weights of some size, and a tokenizer of its own."""
    folder = tmp_path_factory.mktemp("classifier")
    write_classifier(folder, TEXTS)
    return folder / "model"


def classifier(folder: Path, *, precision: str = "fp32", batch_size: int = 7) -> Classifier:
    engine = load_engine(folder, precision=precision, max_length=24)
    return Classifier(engine, ["no", "yes"], batch_size=batch_size)


MIXED = [*TEXTS[:20], "", "!!!", "Great " * 200, "   ", "<br/>", *TEXTS[20:], "unheardof 変 \x00 word", TEXTS[0]]


def test_probabilities_are_the_softmax_and_sum_to_one(folder: Path) -> None:
    model = classifier(folder)
    probabilities, logits = model.predict_proba(TEXTS), model.logits(TEXTS).astype(np.float64)
    assert probabilities.dtype == np.float64
    np.testing.assert_allclose(probabilities, np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True), rtol=1e-9)
    np.testing.assert_allclose(model.predict_log_proba(TEXTS), np.log(probabilities))
    assert np.array_equal(log_probabilities(np.array([[0.0, 1.0]])), [[-np.inf, 0.0]])
    assert np.array_equal(softmax(np.array([[1e4, 0.0], [-1e4, -1e4]])), [[1.0, 0.0], [0.5, 0.5]])


def test_a_batch_holds_a_text_at_least(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="batch_size is -1; allowed: 1 or more"):
        classifier(folder, batch_size=-1)


def test_a_stream_gives_what_the_whole_gives(folder: Path) -> None:
    model = classifier(folder)
    parts = list(model.stream([MIXED[:3], [], MIXED[3:]]))
    assert [len(part) for part in parts] == [3, 0, len(MIXED) - 3]
    np.testing.assert_allclose(np.concatenate(parts), model.predict_proba(MIXED), rtol=1e-4, atol=1e-5)


def test_texts_are_cleaned_as_the_training_data_were(folder: Path) -> None:
    model = classifier(folder)
    raw = [f"<b>{text.upper()}</b>  \n!!! http://a.b/c" for text in TEXTS[:5]]
    assert np.array_equal(model.logits(raw), model.logits(clean_texts(raw), clean=False))
    assert not np.array_equal(model.logits(raw), model.logits(raw, clean=False))


def test_a_preferred_precision_gives_way_on_a_cpu_and_one_that_is_asked_for_does_not(folder: Path) -> None:
    def computed(**values: str) -> tuple[str, str]:
        how = load_engine(folder, max_length=24, **values).computation
        return how.storage_precision, how.compute_precision

    assert computed() == ("fp32", "fp32")
    assert computed(preferred="bf16") == ("fp32", "fp32" if imitates_bf16(torch.device("cpu")) else "bf16")
    assert computed(preferred="bf16", precision="fp32") == ("fp32", "fp32")
    if not torch.cuda.is_available():
        # A run that was trained in FP16 on an accelerator.
        assert computed(preferred="fp16") == ("fp32", "fp32")
        with pytest.raises(ConfigurationError, match="needs an accelerator"):
            computed(precision="fp16")


def test_a_text_is_cut_at_the_shorter_of_both_limits(folder: Path) -> None:
    engine = load_engine(folder, precision="fp32", max_length=500)
    assert isinstance(engine, TransformerEngine)
    assert engine.max_length == 32
    long = "dull film " * 400
    assert np.array_equal(engine.logits([long], 1), engine.logits(["dull film " * 300], 1))


class CountingEngine:
    """Scores a text by its length; notes the batches."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], int]] = []

    def logits(self, texts: Sequence[str], batch_size: int) -> npt.NDArray[np.float32]:
        self.calls.append((list(texts), batch_size))
        return np.array([[len(text), 3.5] for text in texts], dtype=np.float32)


def test_any_engine_will_do() -> None:
    engine = CountingEngine()
    model = Classifier(engine, ["long", "short"], batch_size=5)
    assert model.predict(["A  b", "abcdef"]).tolist() == ["short", "long"]
    assert engine.calls == [(["a b", "abcdef"], 5)]
    assert model.classes_.tolist() == ["long", "short"]


def test_labels_of_another_model_are_refused_and_not_zipped_away() -> None:
    for names in (["a"], ["a", "b", "c"]):
        with pytest.raises(CheckpointError, match=f"gives 2 scores a text, and its record names {len(names)} labels"):
            Classifier(CountingEngine(), names).predict(["x"])
