"""The linear controls against scikit-learn and SciPy: features, fits, choices, files."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from scipy.optimize import minimize
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC
from tokenizers import Tokenizer
from transformers import BertModel

from recurra.core.errors import CheckpointError, DataError
from recurra.core.record import are_unequal
from recurra.data.sst2 import load_sst2
from recurra.data.tokenization import as_transformers, train_wordpiece, wordpiece
from recurra.models.adaptation.convert import piece_vectors
from recurra.models.adaptation.source import find_encoder
from recurra.models.controls import LINEAR_NAME, fitting, linear
from recurra.models.controls.fitting import (
    DEFAULT_C,
    Candidate,
    Problem,
    choose,
    cross_entropy,
    fit_linear,
    fit_static,
    fit_tuned,
)
from recurra.models.controls.linear import CHARACTERS, NGRAMS, WORDS, LinearModel, Vectorizer, features_of, label_scores
from tiny_encoder import TEXTS, write_tiny_encoder

WORD_LIST = ["good", "bad", "film", "plot", "a", "not", "very", "dull", "fun"]


def _corpus(rows: int, classes: int, seed: int = 0) -> tuple[list[str], np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, size=rows)
    texts = []
    for label in labels:
        words = [str(word) for word in rng.choice(WORD_LIST, size=rng.integers(3, 9))]
        texts.append(" ".join([*words, WORD_LIST[label]] if rng.random() < 0.8 else words))
    return texts, labels


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return as_transformers(wordpiece(train_wordpiece(TEXTS, 200))).backend_tokenizer


def _vectors(tokenizer: Tokenizer) -> np.ndarray:
    return np.random.default_rng(5).normal(size=(tokenizer.get_vocab_size(), 12)).astype(np.float32)


@pytest.mark.parametrize("classes", [2, 3])
def test_softmax_of_logits_is_scikit_learns_probability(classes: int) -> None:
    texts, labels = _corpus(300, classes)
    fresh, _ = _corpus(50, classes, seed=1)
    vectorizer = TfidfVectorizer(**NGRAMS[WORDS])
    regression = LogisticRegression(C=DEFAULT_C, tol=1e-8, max_iter=10_000)
    regression.fit(vectorizer.fit_transform(texts), labels)
    expected = regression.predict_proba(vectorizer.transform(fresh))
    model = fit_linear(texts, labels, num_labels=classes)
    logits = model.logits(fresh)
    assert (logits.shape, logits.dtype) == ((50, classes), np.float32)
    assert softmax(logits, axis=1) == pytest.approx(expected, abs=2e-3)
    assert model.num_parameters == (1 if classes == 2 else classes) * (len(vectorizer.vocabulary_) + 1)


@given(st.lists(st.text(alphabet="a\u00e4b c\u00e9\t.'1", max_size=30), min_size=2, max_size=8), st.booleans())
def test_features_are_those_of_scikit_learns_vectorizer(texts: list[str], sublinear: bool) -> None:
    fresh = [*texts, "aab \u00e4", "zz", "ab" * 40]
    for unit in (WORDS, CHARACTERS):
        vectorizer = Vectorizer.fit(unit, texts, sublinear=sublinear, most=10**6)
        peer = TfidfVectorizer(sublinear_tf=sublinear, **NGRAMS[unit])
        try:
            peer.fit(texts)
        except ValueError:
            assert vectorizer.terms == []
            continue
        assert vectorizer.terms == peer.get_feature_names_out().tolist()
        assert features_of([vectorizer], fresh).toarray() == pytest.approx(peer.transform(fresh).toarray(), abs=1e-6)


def test_large_data_are_hashed_and_many_labels_get_the_most_frequent_features(tmp_path: Path) -> None:
    texts, labels = _corpus(300, 2)
    with patch.object(linear, "MOST_CHARACTERS", 1_000), patch.object(linear, "HASHED_WIDTH", 1_024):
        hashed = fit_tuned(texts, labels)
    assert "words 1 to 2, hashed" in hashed.description and hashed.weight.shape == (1, 1_024)
    fresh, truth = _corpus(200, 2, seed=1)
    right = [(model.logits(fresh).argmax(axis=1) == truth).mean() for model in (hashed, fit_linear(texts, labels))]
    assert right[0] > right[1] - 0.03
    assert any("good" in term for term in hashed.telling_words(texts, labels, 3)[0])
    hashed.save(tmp_path)
    assert np.array_equal(LinearModel.load(tmp_path).logits(fresh), hashed.logits(fresh))
    with patch.object(linear, "MOST_WEIGHTS", 40):
        assert fit_tuned(texts, labels).weight.shape == (1, 20)


@pytest.mark.parametrize("classes", [2, 3])
def test_telling_words_add_most_to_the_score_of_texts_that_have_the_label(classes: int) -> None:
    texts, labels = _corpus(200, classes)
    model = fit_tuned(texts, labels, num_labels=classes)
    telling = model.telling_words(texts, labels, 3)
    features = TfidfVectorizer(sublinear_tf=True, **NGRAMS[WORDS]).fit_transform(texts).toarray()
    terms = model.vectorizers[0].terms
    for label in range(classes):
        weight = model.weight[0] * (2 * label - 1) if classes == 2 else model.weight[label]
        adds = dict(zip(terms, weight[: len(terms)] * features[labels == label].mean(axis=0), strict=True))
        assert telling[label] == sorted(adds, key=lambda term: -adds[term])[:3]
        assert WORD_LIST[label] in telling[label]


def test_telling_words_of_thousands_of_labels_take_hardly_longer_than_of_three() -> None:
    rng = np.random.default_rng(0)
    words = Vectorizer(WORDS, {f"w{number}": number for number in range(1_000)}, np.ones(1_000))
    texts = [" ".join(f"w{number}" for number in row) for row in rng.integers(0, 1_000, (4_000, 20))]
    seconds = []
    for count in (3, 2_000):
        model = LinearModel([words], rng.normal(size=(count, 1_000)), np.zeros(count), 1.0)
        start = time.process_time()
        telling = model.telling_words(texts, np.arange(4_000) % count, 3)
        seconds.append(time.process_time() - start)
    assert seconds[1] < 2 * seconds[0]
    own = {word for text in (texts[7], texts[2_007]) for word in text.split()}
    assert len(telling) == 2_000 and len(telling[7]) == 3 and set(telling[7]) <= own


@pytest.mark.parametrize("kind", ["linear", "tuned of four", "static"])
def test_saved_and_loaded_logits_are_equal_to_the_bit(tmp_path: Path, kind: str, tokenizer: Tokenizer) -> None:
    texts, labels = _corpus(200, 4 if "four" in kind else 2)
    if kind == "static":
        model = fit_static(texts, labels, _vectors(tokenizer), tokenizer, encoder="tiny")
    else:
        model = fit_linear(texts, labels) if kind == "linear" else fit_tuned(texts, labels, num_labels=4)
    folder = tmp_path / "runs" / "model"
    for _ in range(2):
        model.save(folder)
    loaded = LinearModel.load(folder)
    fresh = [*_corpus(50, 2, seed=1)[0], "unknown words only", "!", "", "[MASK] unknown"]
    wanted = model.logits(fresh)
    assert np.array_equal(loaded.logits(fresh), wanted)
    # A text alone, and among others that are read in other parts.
    assert np.array_equal(np.concatenate([loaded.logits([text]) for text in fresh]), wanted)
    with patch.object(linear, "_TEXTS_AT_ONCE", 7):
        assert np.array_equal(loaded.logits(fresh), wanted)
    assert loaded.logits([]).shape == (0, loaded.num_labels)
    for name in ("num_labels", "description", "inverse_regularisation"):
        assert getattr(loaded, name) == getattr(model, name)
    assert [path.name for path in folder.iterdir()] == [LINEAR_NAME]


def test_words_longer_than_any_are_not_kept_in_memory() -> None:
    texts = ["这部电影很好" * 40, "a good film"]
    vectorizer = Vectorizer.fit(CHARACTERS, texts, sublinear=True, most=1_000)
    list(vectorizer.rows(texts))
    assert vectorizer._of_short_word.cache_info().currsize == 3


def _changed(path: Path, **changes: Any) -> None:
    with safe_open(path, "numpy") as file:
        ((name, text),) = file.metadata().items()
    arrays = load_file(path)
    state = {**json.loads(text), **{key: value for key, value in changes.items() if key not in arrays}}
    arrays |= {key: value for key, value in changes.items() if key in arrays}
    save_file(arrays, path, metadata={name: json.dumps(state)})


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.rename(path.with_name("linear.json")), "was made by an older version; train it"),
        (lambda path: path.write_bytes(path.read_bytes()[:200]), "damaged or not ours"),
        (lambda path: save_file({"weight": np.zeros((1, 2))}, path), "damaged or not ours"),
        (lambda path: _changed(path, version=99), "format version 99, this one reads 3"),
        (lambda path: _changed(path, weight=np.zeros((1, 2))), "do not fit the features"),
        (lambda path: _changed(path, bias=np.array([np.inf])), "not finite"),
        (lambda path: _changed(path, features=[{"unit": "letters"}]), "damaged or not ours"),
    ],
)
def test_damaged_old_or_foreign_folders_are_refused_in_one_line(tmp_path: Path, damage: Any, words: str) -> None:
    fit_linear(*_corpus(100, 2)).save(tmp_path)
    damage(tmp_path / LINEAR_NAME)
    with pytest.raises(CheckpointError, match=words) as caught:
        LinearModel.load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("texts", "labels", "error", "words"),
    [
        (["a b", "c d"], [1, 1], DataError, "at least two classes"),
        (["a b", "c d"], [0, 2], DataError, "allowed: 0 to 1"),
        (["!", "?"], [0, 1], DataError, "none of the 2 .* or take linear-tuned"),
        (["a"], [0, 1], ValueError, "1 texts"),
    ],
)
def test_fit_refuses(texts: list[str], labels: list[int], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        fit_linear(texts, labels)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_of_pieces_are_the_regression_on_mean_vectors(tokenizer: Tokenizer, classes: int) -> None:
    words = " ".join(TEXTS).replace(",", "").split()
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, 350)
    rows = [" ".join([*rng.choice(words, 4), sorted(set(words))[label]]) for label in labels]
    vectors = _vectors(tokenizer)
    model = fit_static(rows[:300], labels[:300], vectors, tokenizer, encoder="tiny", num_labels=classes)
    means = np.stack([vectors[tokenizer.encode(row, add_special_tokens=False).ids].mean(axis=0) for row in rows])
    scaled = (means - means[:300].mean(axis=0)) / means[:300].std(axis=0)
    peer = LogisticRegression(C=model.inverse_regularisation, tol=1e-8, max_iter=5000).fit(scaled[:300], labels[:300])
    logits, wanted = model.logits(rows[300:]), peer.decision_function(scaled[300:])
    if classes == 2:
        assert np.corrcoef(logits[:, 1] - logits[:, 0], wanted)[0, 1] > 0.99999
    else:
        assert (logits.argmax(axis=1) == wanted.argmax(axis=1)).all()
    assert model.num_parameters == (1 if classes == 2 else classes) * (len(vectors) + 1)


@torch.no_grad()
def test_vectors_of_pieces_are_what_transformers_makes_of_each_alone(tmp_path: Path) -> None:
    folder = write_tiny_encoder(tmp_path / "tiny")
    tokenizer = as_transformers(wordpiece(train_wordpiece(TEXTS, 200)))
    found = piece_vectors(find_encoder(str(folder)), tokenizer, batch_size=7)
    reference = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    rows = torch.tensor([[tokenizer.cls_token_id, piece, tokenizer.sep_token_id] for piece in range(len(tokenizer))])
    wanted = reference(input_ids=rows).last_hidden_state[:, 1] * torch.log1p(torch.arange(len(tokenizer)))[:, None]
    assert torch.allclose(found, wanted / wanted.square().mean().sqrt(), atol=1e-5)


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "split", "accuracy"), [("official", "validation", 0.81), ("pooled", "test", 0.927)]
)
def test_sst2_reaches_the_known_accuracy(data_root: Path, protocol: str, split: str, accuracy: float) -> None:
    dataset = load_sst2(protocol, 0, data_root)
    train, reported = dataset.splits["train"], dataset.splits[split]
    model = fit_linear(train.texts, train.labels)
    right = (model.logits(reported.texts).argmax(axis=1) == reported.labels).mean()
    assert right == pytest.approx(accuracy, abs=0.02 if split == "validation" else 0.006)


def _problem(features: np.ndarray, targets: np.ndarray, labels: int, *, independent: bool = False) -> Problem:
    return Problem(features, targets, labels, independent, 0)


def _clouds(rows: int, shares: list[float], seed: int = 0, width: int = 6) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.choice(len(shares), rows, p=shares)
    centres = np.random.default_rng(99).normal(size=(len(shares), width))
    return centres[labels] + rng.normal(scale=1.5, size=(rows, width)), labels


@pytest.mark.parametrize("shares", [[0.5, 0.5], [0.4, 0.3, 0.3]])
def test_the_factor_changes_no_decision_and_makes_probabilities_fit(shares: list[float]) -> None:
    features, labels = _clouds(400, shares)
    fresh, truth = _clouds(2000, shares, seed=1)
    problem = _problem(features, labels, len(shares))
    choice = choose(problem, [Candidate("hinge", 1.0)])
    weight, bias = problem.fit(choice.candidate)
    peer = LinearSVC(C=1.0, random_state=0).fit(features, labels)
    logits = choice.factor * label_scores(fresh @ weight.T + bias, independent=False)
    assert (logits.argmax(axis=1) == peer.predict(fresh)).mean() > 0.995
    own = cross_entropy(logits, truth, independent=False)
    assert all(own <= cross_entropy(logits * by, truth, independent=False) + 0.01 for by in (0.25, 0.5, 2.0, 4.0))


def test_the_best_by_the_measure_is_chosen_and_unequal_classes_are_judged_by_macro_f1() -> None:
    unequal = choose(_problem(*_clouds(600, [0.93, 0.07]), 2), [Candidate("logistic", 1e-4)])
    assert unequal.measure == "macro F1" and unequal.candidate.balanced
    features, labels = _clouds(900, [0.5, 0.25, 0.25], width=2)
    problem, candidates = _problem(features, labels, 3), [Candidate("logistic", c) for c in (1e-6, 1.0)]
    choice = choose(problem, candidates)
    assert choice.measure == "accuracy" and choice.candidate.c == 1.0
    accuracy = (problem.left_out(choice.candidate).argmax(axis=1) == labels).mean()
    assert choice.score == pytest.approx(accuracy, abs=0.01) and 0.4 < accuracy < 0.95
    assert are_unequal([30, 10, 20]) and not are_unequal([29, 10, 20]) and not are_unequal([10, 0])


def test_equal_texts_are_left_out_together() -> None:
    """Of labels by chance nothing can be known, but from the same text in another fold; and nothing is claimed."""
    texts = [f"word{number} word{number}x" for number in range(150)] * 2
    labels = np.random.default_rng(0).integers(0, 2, 150).tolist() * 2
    probabilities, _ = fitting.out_of_fold_probabilities(texts, labels, num_labels=2)
    assert (probabilities.argmax(axis=1) == labels).mean() < 0.65 and abs(probabilities - 0.5).mean() < 0.1
    assert (fit_tuned(texts, np.array(labels)).logits(texts).argmax(axis=1) == labels).mean() > 0.95


def test_independent_labels_and_labels_that_a_fold_lacks() -> None:
    features, first = _clouds(120, [0.5, 0.5])
    problem = _problem(features, np.stack([first, 1 - first, np.zeros_like(first)], axis=1), 3, independent=True)
    assert choose(problem, [Candidate("logistic", 1.0)]).measure == "log-likelihood"
    weight, bias = problem.fit(Candidate("logistic", 1.0))
    assert weight.shape == (3, features.shape[1]) and not weight[2].any() and bias[2] == -25
    rare = _problem(features, np.where(np.arange(120) == 5, 2, first), 4)
    assert np.isfinite(rare.left_out(Candidate("hinge", 1.0))).all()
    weight, bias = rare.fit(Candidate("hinge", 1.0))
    assert not weight[3].any() and bias[3] == -25
    two = _problem(features[:2], np.array([0, 1]), 2).fit(Candidate("hinge", 1.0))
    assert np.isfinite(two[0]).all()
    with pytest.raises(DataError, match="1 training rows"):
        choose(_problem(features[:1], first[:1], 2), [Candidate("hinge", 1.0)])


@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("labels", [2, 3])
def test_answers_are_learned_by_the_cross_entropy_with_them(labels: int, independent: bool) -> None:
    rng = np.random.default_rng(4)
    features = rng.normal(size=(150, 4))
    logits = features @ rng.normal(size=(4, labels)) + rng.normal(size=(150, labels))
    answers = expit(logits) if independent else softmax(logits, axis=1)
    problem = _problem(features, answers, labels, independent=independent)
    assert choose(problem, [Candidate("logistic", 0.7)]).factor == 1
    weight, bias = problem.fit(Candidate("logistic", 0.7))

    # The same loss, written out and minimised by SciPy: C times the cross-entropies, and the penalty of the weights.
    one = labels == 2 and not independent
    width = 1 if one else labels

    def scores(weights: np.ndarray) -> np.ndarray:
        table = weights.reshape(width, 5)
        return features @ table[:, :4].T + table[:, 4]

    def loss(weights: np.ndarray) -> float:
        each = scores(weights)
        if one:
            each = np.concatenate([np.zeros_like(each), each], axis=1)
        if independent:
            apart = -(answers * log_expit(each) + (1 - answers) * log_expit(-each)).sum()
        else:
            apart = -(answers * log_softmax(each, axis=1)).sum()
        return 0.7 * float(apart) + 0.5 * float((weights.reshape(width, 5)[:, :4] ** 2).sum())

    wanted = minimize(loss, np.zeros(width * 5), method="BFGS", options={"gtol": 1e-6}).x.reshape(width, 5)
    np.testing.assert_allclose(weight, wanted[:, :4], atol=2e-3)
    if one or independent:
        np.testing.assert_allclose(bias, wanted[:, 4], atol=2e-3)


def test_the_c_of_the_lowest_loss_on_the_selection_split_is_chosen_and_the_seed_is_that_of_the_folds() -> None:
    texts = ["good film", "bad film", "good plot", "bad plot", "dull", "fun"] * 10
    labels = np.array([1, 0, 1, 0, 0, 1] * 10)
    noise = np.where(np.random.default_rng(0).random(60) < 0.3, 1 - labels, labels)
    assert fit_linear(texts, labels, selection=(texts, 1 - labels)).inverse_regularisation == 1
    assert fit_linear(texts, labels, selection=(texts, labels)).inverse_regularisation == 30
    first, second, again = (fit_tuned(texts, noise, seed=seed).logits(texts) for seed in (0, 1, 0))
    assert np.array_equal(first, again) and not np.array_equal(first, second)


@pytest.mark.slow
def test_hundreds_of_labels_of_three_rows_are_fitted_in_seconds() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(300), 3)
    texts = [" ".join([*(f"w{word}" for word in rng.integers(0, 500, 40)), f"own{label}"]) for label in labels]
    for fit in (fit_tuned, fit_linear):
        start = time.process_time()
        model = fit(texts, labels, num_labels=300)
        assert time.process_time() - start < 20
        assert (model.logits(texts).argmax(axis=1) == labels).mean() > 0.9
