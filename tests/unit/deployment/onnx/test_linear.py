"""Linear models as a graph: ONNX Runtime against numpy on texts of every kind; a program that knows nothing of us."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import CountVectorizer

from recurra.core.errors import CheckpointError, ConfigurationError
from recurra.data.tokenization import train_wordpiece, wordpiece
from recurra.deployment.onnx import MODEL_NAME
from recurra.deployment.onnx.engine import OnnxLinearEngine, units_of
from recurra.deployment.onnx.linear import build_linear, write_linear
from recurra.models.controls.fitting import fit_linear, fit_static, fit_tuned
from recurra.models.controls.linear import CHARACTERS, NGRAMS, WORDS, HashedColumns, LinearModel, Vectorizer
from reviews import review_rows

TEXTS, LABELS = (list(part) for part in zip(*review_rows(80), strict=True))
TRUTH = np.array([label == "positive" for label in LABELS], dtype=np.int64)
ODD = ["", " ", "a", "!!", "never seen before", "film " * 500, "é 😀 naïve n't x_1", "the\u00a0film", *TEXTS[:5]]


def fitted(kind: str) -> LinearModel:
    """A model on the rows of the tests; static ones have vectors of chance."""
    three = np.arange(len(TEXTS)) % 3
    if kind.startswith("static"):
        tokenizer = wordpiece(train_wordpiece(TEXTS, 120))
        vectors = np.random.default_rng(0).normal(size=(tokenizer.get_vocab_size(), 6)).astype(np.float32)
        labels = 3 if "three" in kind else 2
        truth = np.arange(len(TEXTS)) % labels
        return fit_static(TEXTS, truth, vectors, tokenizer, encoder="tiny", num_labels=labels)
    if kind == "linear":
        return fit_linear(TEXTS, TRUTH)
    if kind == "tuned":
        return fit_tuned(TEXTS, TRUTH)
    if kind == "three":
        return fit_tuned(TEXTS, three, num_labels=3)
    return fit_tuned(TEXTS, np.stack([TRUTH, three == 1, three == 2], axis=1), num_labels=3)


@pytest.mark.parametrize("kind", ["linear", "tuned", "three", "several", "static", "static of three"])
def test_the_graph_computes_what_numpy_does(kind: str, tmp_path: Path) -> None:
    model = fitted(kind)
    write_linear(model, tmp_path)
    engine = OnnxLinearEngine(tmp_path, threads=1)
    for texts in (ODD, TEXTS, ["one"], []):
        found = engine.logits(texts, 4)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, model.logits(texts), rtol=1e-6, atol=1e-7)
    # One text is what it is among others.
    assert np.array_equal(engine.logits([ODD[6]], 1), engine.logits(ODD, 4)[6:7])
    if kind == "linear":
        path = tmp_path / MODEL_NAME
        path.write_bytes(path.read_bytes().replace(b"words", b"wards"))
        with pytest.raises(CheckpointError, match="takes wards and is not an exported linear model"):
            OnnxLinearEngine(tmp_path)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[LinearModel, Path]:
    model, folder = fitted("tuned"), tmp_path_factory.mktemp("tuned")
    write_linear(model, folder)
    return model, folder


def test_any_text_at_all(tuned: tuple[LinearModel, Path]) -> None:
    model, engine = tuned[0], OnnxLinearEngine(tuned[1], threads=1)

    @given(st.lists(st.text(max_size=40), max_size=4))
    def agrees(texts: list[str]) -> None:
        np.testing.assert_allclose(engine.logits(texts, 4), model.logits(texts), rtol=1e-6, atol=1e-7)

    agrees()


@given(st.text(max_size=30), st.sampled_from([WORDS, CHARACTERS]))
def test_n_grams_are_runs_of_the_units(text: str, unit: str) -> None:
    units, (shortest, longest) = units_of(unit, text), NGRAMS[unit]["ngram_range"]
    runs = [
        units[start : start + length]
        for length in range(shortest, longest + 1)
        for start in range(len(units) - length + 1)
    ]
    own = CountVectorizer(**NGRAMS[unit]).build_analyzer()(text)
    assert sorted((" " if unit == WORDS else "").join(run) for run in runs if "" not in run) == sorted(own)


def test_a_program_that_knows_nothing_of_us_reads_it(tuned: tuple[LinearModel, Path]) -> None:
    """The program of docs/how-to/export.md."""
    model, folder = tuned
    session = onnxruntime.InferenceSession(str(folder / MODEL_NAME))
    for text in TEXTS[:5]:
        cut = re.findall(r"\w+", text)
        characters = [character for word in text.split() for character in (" ", *word, " ", "")]
        feeds = {"words": np.array(cut, dtype=object), "characters": np.array(characters, dtype=object)}
        (logits,) = session.run(None, feeds)
        np.testing.assert_allclose(logits, model.logits([text]), rtol=1e-6, atol=1e-7)


def test_hashed_n_grams_are_refused_and_characters_are_asked_for_where_they_count() -> None:
    vectorizers = [Vectorizer(WORDS, {"a": 0}, np.ones(1)), Vectorizer(CHARACTERS, {}, np.zeros(0))]
    graph = build_linear(LinearModel(vectorizers, [[1.0]], [0.0], 1.0))
    assert [each.name for each in graph.graph.input] == ["words"]
    model = LinearModel([Vectorizer(WORDS, HashedColumns(4), np.ones(4))], [[1.0] * 4], [0.0], 1.0)
    with pytest.raises(ConfigurationError, match="export it as safetensors"):
        build_linear(model)
