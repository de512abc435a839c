from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from recurra.core.errors import CheckpointError, DataError
from recurra.data.sst2 import load_sst2
from recurra.models.controls import weights
from recurra.models.controls.fitting import matrix_of
from recurra.models.controls.ngrams import (
    DEFAULT_C,
    SETTINGS_NAME,
    TOKEN_PATTERN,
    WEIGHTS_NAME,
    LinearClassifier,
    Ngrams,
    Vectorizer,
)

WORDS = ["good", "bad", "film", "plot", "a", "not", "very", "dull", "fun"]


def _corpus(rows: int, classes: int, seed: int = 0) -> tuple[list[str], np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, size=rows)
    texts = []
    for label in labels:
        words = [str(word) for word in rng.choice(WORDS, size=rng.integers(3, 9))]
        texts.append(" ".join([*words, WORDS[label]] if rng.random() < 0.8 else words))
    return texts, labels


def _softmax(logits: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("classes", [2, 3])
def test_softmax_of_logits_is_scikit_learns_probability(classes: int) -> None:
    texts, labels = _corpus(300, classes)
    fresh, _ = _corpus(50, classes, seed=1)
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), token_pattern=TOKEN_PATTERN)
    regression = LogisticRegression(C=DEFAULT_C, tol=1e-8, max_iter=10_000)
    regression.fit(vectorizer.fit_transform(texts), labels)
    expected = regression.predict_proba(vectorizer.transform(fresh))
    model = LinearClassifier.fit(texts, labels, num_labels=classes, seed=0)
    logits = model.logits(fresh)
    assert (logits.shape, logits.dtype) == ((50, classes), np.float32)
    assert _softmax(logits) == pytest.approx(expected, abs=2e-3)
    rows = 1 if classes == 2 else classes
    assert model.num_features == len(vectorizer.vocabulary_)
    assert model.num_parameters == rows * (len(vectorizer.vocabulary_) + 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(alphabet="aäb cé\t.'1", max_size=30), min_size=2, max_size=8), st.booleans(), st.integers(1, 9))
def test_features_are_those_of_scikit_learns_vectorizer(texts: list[str], sublinear: bool, at_once: int) -> None:
    fresh = [*texts, "aab ä", "zz"]
    for ngrams, reference in (
        (Ngrams("words", 1, 2, sublinear), {"ngram_range": (1, 2), "token_pattern": TOKEN_PATTERN}),
        (Ngrams("characters", 2, 5, sublinear), {"analyzer": "char_wb", "ngram_range": (2, 5)}),
        (Ngrams("characters", 3, 4, sublinear, 2), {"analyzer": "char_wb", "ngram_range": (3, 4), "min_df": 2}),
    ):
        with patch.object(weights, "TEXTS_AT_ONCE", at_once):
            vectorizer = Vectorizer.fit(ngrams, texts)
        peer = TfidfVectorizer(lowercase=False, sublinear_tf=sublinear, **reference)
        try:
            peer.fit(texts)
        except ValueError:
            assert vectorizer.terms == []
            continue
        assert vectorizer.terms == peer.get_feature_names_out().tolist()
        found = matrix_of(vectorizer.transform(fresh)).toarray()
        assert found == pytest.approx(peer.transform(fresh).toarray(), abs=1e-6)


@pytest.mark.parametrize("classes", [2, 4])
def test_tuned_is_no_worse_than_words_where_characters_carry_the_label(tmp_path: Path, classes: int) -> None:
    rng = np.random.default_rng(3)

    def rows(count: int) -> tuple[list[str], np.ndarray]:
        labels = rng.integers(0, classes, count)
        stems = ["".join(rng.choice(list("bcdfgaeiou"), 5)) for _ in labels]
        return [
            f"{stem}{['ing', 'est', 'ful', 'ish'][label]} here" for stem, label in zip(stems, labels, strict=True)
        ], labels

    texts, labels = rows(300)
    fresh, truth = rows(200)
    tuned = LinearClassifier.fit_tuned(texts, labels, num_labels=classes)
    words = LinearClassifier.fit(texts, labels, num_labels=classes)
    assert (tuned.logits(fresh).argmax(axis=1) == truth).mean() > 0.98
    assert (words.logits(fresh).argmax(axis=1) == truth).mean() < 0.7
    assert tuned.loss(fresh, truth) < 0.15
    assert "cross-validation" in tuned.description
    tuned.save(tmp_path)
    loaded = LinearClassifier.load(tmp_path)
    assert np.array_equal(loaded.logits(fresh), tuned.logits(fresh))
    assert loaded.description == tuned.description


@pytest.mark.parametrize("classes", [2, 3])
def test_telling_words_add_most_to_the_score_of_texts_that_have_the_label(classes: int) -> None:
    texts, labels = _corpus(200, classes)
    model = LinearClassifier.fit_tuned(texts, labels, num_labels=classes)
    found = model.telling_words(texts, labels, 3)
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), token_pattern=TOKEN_PATTERN, sublinear_tf=True)
    features = vectorizer.fit_transform(texts).toarray()
    terms = list(vectorizer.get_feature_names_out())
    own = model._vectorizers[0].terms
    for label in range(classes):
        weight = model._weight[0] * (2 * label - 1) if classes == 2 else model._weight[label]
        adds = {term: weight[own.index(term)] * features[labels == label, terms.index(term)].mean() for term in terms}
        assert found[label] == sorted(adds, key=lambda term: -adds[term])[:3]
        assert WORDS[label] in found[label]


def test_a_model_of_the_first_version_is_still_read(tmp_path: Path) -> None:
    texts, labels = _corpus(100, 2)
    model = LinearClassifier.fit(texts, labels)
    model.save(tmp_path)
    values = json.loads((tmp_path / SETTINGS_NAME).read_text(encoding="utf-8"))
    terms = values.pop("features")[0]["terms"]
    del values["fitted_by"]
    old = {**values, "version": 1, "ngram_range": [1, 2], "token_pattern": TOKEN_PATTERN, "vocabulary": terms}
    (tmp_path / SETTINGS_NAME).write_text(json.dumps(old), encoding="utf-8")
    assert np.array_equal(LinearClassifier.load(tmp_path).logits(texts), model.logits(texts))


@pytest.mark.parametrize("classes", [2, 4])
def test_saved_and_loaded_logits_are_equal_to_the_bit(tmp_path: Path, classes: int) -> None:
    texts, labels = _corpus(200, classes)
    model = LinearClassifier.fit(texts, labels, num_labels=classes)
    for _ in range(2):
        model.save(tmp_path / "runs" / "model")
    loaded = LinearClassifier.load(tmp_path / "runs" / "model")
    fresh = [*_corpus(50, classes, seed=1)[0], "unknown words only", "!"]
    assert np.array_equal(loaded.logits(fresh), model.logits(fresh))
    assert loaded.num_labels == classes
    assert loaded.inverse_regularisation == model.inverse_regularisation
    assert loaded.num_parameters == model.num_parameters
    assert sorted(path.name for path in (tmp_path / "runs" / "model").iterdir()) == [SETTINGS_NAME, WEIGHTS_NAME]


@pytest.mark.parametrize("fit", [LinearClassifier.fit, LinearClassifier.fit_tuned])
def test_how_many_texts_are_read_at_once_changes_no_bit(fit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, labels = _corpus(60, 2)
    whole = fit(texts, labels)
    expected = whole.logits(texts)
    monkeypatch.setattr(weights, "TEXTS_AT_ONCE", 7)
    parts = fit(texts, labels)
    for model in (whole, parts):
        assert np.array_equal(model.logits(texts), expected)
    assert [each.terms for each in parts.vectorizers] == [each.terms for each in whole.vectorizers]
    assert np.array_equal(parts.weight, whole.weight) and np.array_equal(parts.bias, whole.bias)
    assert parts.features(texts).columns.dtype == np.int32


def test_one_letter_words_and_word_order_count() -> None:
    texts = ["not good", "good not", "a film", "film a"] * 10
    model = LinearClassifier.fit(texts, np.tile([0, 1, 0, 1], 10))
    assert model.logits(["not good", "good not", "a film", "film a"]).argmax(axis=1).tolist() == [0, 1, 0, 1]


def test_selection_chooses_the_c_of_the_lowest_loss() -> None:
    texts, labels = _corpus(200, 2)
    selection = _corpus(200, 2, seed=1)
    grid = (0.01, 1.0, 1000.0)
    chosen = LinearClassifier.fit(texts, labels, selection=selection, c_grid=grid)
    losses = {c: LinearClassifier.fit(texts, labels, selection=selection, c_grid=[c]).loss(*selection) for c in grid}
    assert chosen.inverse_regularisation == min(losses, key=losses.__getitem__)
    assert chosen.loss(*selection) == min(losses.values())
    assert len(set(losses.values())) == 3


@pytest.mark.parametrize(("num_labels", "seen"), [(3, (0, 2)), (4, (0, 1, 3))])
def test_a_class_that_training_lacks_gets_no_chance_but_a_finite_loss(num_labels: int, seen: tuple[int, ...]) -> None:
    texts, labels = _corpus(200, len(seen))
    model = LinearClassifier.fit(texts, np.asarray(seen)[labels], num_labels=num_labels)
    full = LinearClassifier.fit(texts, labels, num_labels=len(seen))
    logits = model.logits(texts)
    assert logits.shape == (200, num_labels)
    assert np.isfinite(logits).all()
    assert _softmax(logits)[:, list(seen)] == pytest.approx(_softmax(full.logits(texts)), abs=1e-5)


def test_same_fit_twice_is_the_same_and_no_texts_give_no_rows() -> None:
    texts, labels = _corpus(100, 2)
    first, second = (LinearClassifier.fit(texts, labels, seed=seed) for seed in (0, 1))
    assert np.array_equal(first.logits(texts), second.logits(texts))
    assert first.logits([]).shape == (0, 2)


def test_the_seed_of_a_tuned_fit_is_that_of_its_folds() -> None:
    texts, labels = _corpus(100, 2)
    first, second, again = (LinearClassifier.fit_tuned(texts, labels, seed=seed).logits(texts) for seed in (0, 1, 0))
    assert np.array_equal(first, again) and not np.array_equal(first, second)


@pytest.mark.parametrize(
    ("texts", "labels", "error", "words"),
    [
        (["a b", "c d"], [1, 1], DataError, "at least two classes"),
        (["a b", "c d"], [0, 2], DataError, "allowed: 0 to 1"),
        (["!", "?"], [0, 1], DataError, "none of the 2"),
        (["a"], [0, 1], ValueError, "1 texts"),
    ],
)
def test_fit_refuses(texts: list[str], labels: list[int], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        LinearClassifier.fit(texts, labels)
    assert "\n" not in str(caught.value)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _edit(folder: Path, **changes: Any) -> None:
    settings = json.loads((folder / SETTINGS_NAME).read_text(encoding="utf-8"))
    (folder / SETTINGS_NAME).write_text(json.dumps(settings | changes), encoding="utf-8")


def _of_100_dimensions() -> bytes:
    """What the format allows and numpy does not."""
    header = json.dumps({"weight": {"dtype": "F32", "shape": [1] * 100, "data_offsets": [0, 4]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4)


def _kind(**changes: Any) -> dict[str, Any]:
    return {
        "unit": "words", "shortest": 1, "longest": 2, "sublinear": False, "least_texts": 1, "terms": ["a"], **changes
    }  # fmt: skip


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / SETTINGS_NAME).unlink(), "missing"),
        (lambda folder: (folder / WEIGHTS_NAME).unlink(), "missing"),
        (lambda folder: _truncate(folder / SETTINGS_NAME), "not whole JSON"),
        (lambda folder: _truncate(folder / WEIGHTS_NAME), "not a whole safetensors"),
        (lambda folder: (folder / WEIGHTS_NAME).write_bytes(pickle.dumps({"weight": 1})), "not a whole safetensors"),
        (lambda folder: (folder / WEIGHTS_NAME).write_bytes(_of_100_dimensions()), "not a whole safetensors"),
        (lambda folder: (folder / SETTINGS_NAME).write_text("[1]"), "not the settings"),
        (lambda folder: _edit(folder, format="other"), "not the settings"),
        (lambda folder: _edit(folder, version=99), "version 99"),
        (lambda folder: _edit(folder, features=[]), "does not write"),
        (lambda folder: _edit(folder, features=[_kind(unit=".")]), "does not write"),
        (lambda folder: _edit(folder, features=[_kind(longest=10**9)]), "does not write"),
        (lambda folder: _edit(folder, features=[_kind(terms=["a", "a"])]), "does not write"),
        (lambda folder: _edit(folder, features=[_kind(terms=["a"])]), "holds"),
        (lambda folder: _edit(folder, version=1, ngram_range=[1, 2], token_pattern="."), "does not write"),
        (lambda folder: _edit(folder, num_labels="2"), "does not write"),
        (lambda folder: save_file({"weight": np.zeros((1, 2))}, folder / WEIGHTS_NAME), "does not belong"),
    ],
)
def test_damaged_or_foreign_folders_are_refused_in_one_line(tmp_path: Path, damage: Any, words: str) -> None:
    LinearClassifier.fit(*_corpus(100, 2)).save(tmp_path)
    damage(tmp_path)
    with pytest.raises(CheckpointError, match=words) as caught:
        LinearClassifier.load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "split", "accuracy"), [("official", "validation", 0.81), ("pooled", "test", 0.927)]
)
def test_sst2_reaches_the_known_accuracy(data_root: Path, protocol: str, split: str, accuracy: float) -> None:
    dataset = load_sst2(protocol, 0, data_root)
    train, reported = dataset.splits["train"], dataset.splits[split]
    model = LinearClassifier.fit(train.texts, train.labels)
    right = (model.logits(reported.texts).argmax(axis=1) == reported.labels).mean()
    assert right == pytest.approx(accuracy, abs=0.02 if split == "validation" else 0.006)
