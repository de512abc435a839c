from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from tokenizers import Tokenizer
from transformers import BertModel

from recurra.core.errors import CheckpointError
from recurra.data.vocabulary import as_transformers, train_wordpiece, wordpiece
from recurra.models.adaptation.convert import piece_vectors
from recurra.models.adaptation.source import find_encoder
from recurra.models.controls import load_linear_model
from recurra.models.controls.fitting import matrix_of
from recurra.models.controls.static import SETTINGS_NAME, TOKENIZER_NAME, StaticClassifier
from tiny_encoder import TEXTS, write_tiny_encoder


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return as_transformers(wordpiece(train_wordpiece(TEXTS, 200))).backend_tokenizer


def _rows(count: int, classes: int, seed: int = 0) -> tuple[list[str], np.ndarray]:
    rng = np.random.default_rng(seed)
    words = " ".join(TEXTS).replace(",", "").split()
    labels = rng.integers(0, classes, count)
    return [" ".join([*rng.choice(words, 4), sorted(set(words))[label]]) for label in labels], labels


def test_how_many_texts_are_read_at_once_changes_no_bit(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, labels = _rows(60, 2)
    vectors = np.random.default_rng(5).normal(size=(tokenizer.get_vocab_size(), 12)).astype(np.float32)
    expected = StaticClassifier.fit(texts, labels, vectors, tokenizer, encoder="tiny").logits(texts)
    monkeypatch.setattr("recurra.models.controls.weights.TEXTS_AT_ONCE", 7)
    parts = StaticClassifier.fit(texts, labels, vectors, tokenizer, encoder="tiny")
    assert np.array_equal(parts.logits(texts), expected)


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_of_pieces_are_the_regression_on_mean_vectors(tokenizer: Tokenizer, classes: int) -> None:
    texts, labels = _rows(300, classes)
    fresh, _ = _rows(50, classes, seed=1)
    pieces = tokenizer.get_vocab_size()
    vectors = np.random.default_rng(5).normal(size=(pieces, 12)).astype(np.float32)
    model = StaticClassifier.fit(texts, labels, vectors, tokenizer, encoder="tiny", num_labels=classes)

    def means(rows: list[str]) -> np.ndarray:
        return np.stack([vectors[tokenizer.encode(row, add_special_tokens=False).ids].mean(axis=0) for row in rows])

    scale, shift = means(texts).std(axis=0), means(texts).mean(axis=0)
    peer = LogisticRegression(C=model.inverse_regularisation, tol=1e-8, max_iter=5000)
    peer.fit((means(texts) - shift) / scale, labels)
    logits, wanted = model.logits(fresh), peer.decision_function((means(fresh) - shift) / scale)
    if classes == 2:
        assert np.corrcoef(logits[:, 1] - logits[:, 0], wanted)[0, 1] > 0.99999
        assert ((logits[:, 1] > logits[:, 0]) == (wanted > 0)).all()
    else:
        assert (logits.argmax(axis=1) == wanted.argmax(axis=1)).all()
    assert model.num_parameters == (1 if classes == 2 else classes) * (pieces + 1)
    assert model.logits([""]).shape == (1, classes)
    texts = ["good bad good film", "", "dull"]
    found, lists = (
        matrix_of(model.features(texts)).toarray(),
        [tokenizer.encode(t, add_special_tokens=False).ids for t in texts],
    )
    for row, ids in zip(found, lists, strict=True):
        assert row == pytest.approx(np.bincount(ids, minlength=pieces) / max(1, len(ids)))


def test_labels_that_texts_do_not_tell_are_fitted_with_the_most_regularisation(tokenizer: Tokenizer) -> None:
    texts, _ = _rows(200, 2)
    vectors = np.random.default_rng(5).normal(size=(tokenizer.get_vocab_size(), 12)).astype(np.float32)
    # As many of each for every text: whatever is learned of a text is wrong of its next copy.
    model = StaticClassifier.fit(texts * 2, [0] * 200 + [1] * 200, vectors, tokenizer, encoder="tiny", num_labels=2)
    assert model.inverse_regularisation == 0.003


def test_saved_and_loaded_logits_are_equal_to_the_bit(tmp_path: Path, tokenizer: Tokenizer) -> None:
    texts, labels = _rows(100, 2)
    vectors = np.random.default_rng(5).normal(size=(tokenizer.get_vocab_size(), 4)).astype(np.float32)
    model = StaticClassifier.fit(texts, labels, vectors, tokenizer, encoder="tiny")
    model.save(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["static.json", "static.safetensors", "tokenizer.json"]
    loaded = load_linear_model(tmp_path)
    assert isinstance(loaded, StaticClassifier)
    assert np.array_equal(loaded.logits([*texts, "", "[MASK] unknown"]), model.logits([*texts, "", "[MASK] unknown"]))
    assert loaded.description == model.description
    # One text alone goes another way through the tokenizer.
    assert np.array_equal(loaded.logits(texts[:1]), model.logits(texts)[:1])
    (tmp_path / TOKENIZER_NAME).write_text("{}")
    with pytest.raises(CheckpointError, match="no tokenizer that can be read"):
        StaticClassifier.load(tmp_path)
    (tmp_path / SETTINGS_NAME).write_text("[]")
    with pytest.raises(CheckpointError, match="not the settings"):
        load_linear_model(tmp_path)


@torch.no_grad()
def test_vectors_of_pieces_are_what_transformers_makes_of_each_alone(tmp_path: Path) -> None:
    folder = write_tiny_encoder(tmp_path / "tiny")
    source = find_encoder(str(folder))
    tokenizer = as_transformers(wordpiece(train_wordpiece(TEXTS, 200)))
    found = piece_vectors(source, tokenizer, batch_size=7)
    reference = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    rows = torch.tensor([[tokenizer.cls_token_id, piece, tokenizer.sep_token_id] for piece in range(len(tokenizer))])
    wanted = reference(input_ids=rows).last_hidden_state[:, 1] * torch.log1p(torch.arange(len(tokenizer)))[:, None]
    assert torch.allclose(found, wanted / wanted.square().mean().sqrt(), atol=1e-5)
