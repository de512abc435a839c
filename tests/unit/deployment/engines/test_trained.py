"""Models that lie in folders: whether tokenizer and model are of one, no code beside them, and rows in few sizes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurra.core.errors import CheckpointError, ConfigurationError
from recurra.data.tokenization import SPECIAL_TOKENS, as_transformers, read_tokenizer, wordpiece
from recurra.deployment.engines.computation import budget_batches
from recurra.deployment.engines.trained import (
    FlatRows,
    ForeignClassifier,
    TransformerEngine,
    filled_size,
)
from recurra.models.adaptation.source import find_encoder
from recurra.models.foreign import ForeignForSequenceClassification, foreign_configuration
from tiny import tiny_model
from tiny_encoder import TEXTS, write_foreign_encoder, write_tiny_encoder


def write_model(folder: Path, pieces: int) -> None:
    tiny_model().save_pretrained(folder)
    vocabulary = {
        token: number
        for number, token in enumerate([*SPECIAL_TOKENS, *(f"word{number}" for number in range(100))][:pieces])
    }
    as_transformers(wordpiece(vocabulary)).save_pretrained(folder)


def test_a_tokenizer_of_another_model_is_one_clear_line(tmp_path: Path) -> None:
    known = int(tiny_model().config.vocab_size)
    write_model(tmp_path / "fits", known)
    assert TransformerEngine.load(tmp_path / "fits", max_length=8).logits(["word1 word2"], 4).shape == (1, 2)
    write_model(tmp_path / "other", known + 1)
    with pytest.raises(CheckpointError, match=rf"token numbers up to {known}, but its model has {known} tokens"):
        TransformerEngine.load(tmp_path / "other", max_length=8)
    path = tmp_path / "fits" / "tokenizer.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    values["model"]["vocab"]["word1"] = 2**32
    path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises((ConfigurationError, CheckpointError)) as caught:
        TransformerEngine.load(tmp_path / "fits", max_length=8)
    assert "\n" not in str(caught.value)


def test_a_model_without_a_halting_head_chooses_no_recurrences(tmp_path: Path) -> None:
    source = find_encoder(str(write_foreign_encoder(tmp_path, "electra")), any_family=True)
    foreign = ForeignForSequenceClassification(foreign_configuration(source, num_labels=2))
    for model in (foreign, tiny_model()):
        engine = TransformerEngine(model, read_tokenizer(source.folder), precision="fp32", max_length=8)
        assert engine.recurrences(TEXTS, 4) is None


def test_code_beside_a_model_that_needs_none_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_tiny_encoder(tmp_path / "foreign", TEXTS, labels=["neg", "pos"])
    wanted = ForeignClassifier.load(folder, precision="fp32").logits(TEXTS)
    marker = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\n", encoding="utf-8")
    path = folder / "config.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    names = {"AutoModelForSequenceClassification": "evil.Model", "AutoConfig": "evil.Config"}
    path.write_text(json.dumps({**values, "auto_map": names}), encoding="utf-8")
    np.testing.assert_array_equal(ForeignClassifier.load(folder, precision="fp32").logits(TEXTS), wanted)
    assert not marker.exists()
    # Of a kind that only its own code knows there is nothing else to take, and nobody is asked whether to run it.
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda question="": asked.append(question) or "y")
    path.write_text(json.dumps({**values, "auto_map": names, "model_type": "evil"}), encoding="utf-8")
    with pytest.raises(CheckpointError) as caught:
        ForeignClassifier.load(folder, precision="fp32")
    assert "\n" not in str(caught.value) and not marker.exists() and asked == []
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="pickled weights can run code when they are read and are refused"):
        ForeignClassifier.load(folder, precision="fp32")


LENGTHS = st.lists(st.integers(1, 70), min_size=1, max_size=80)


@pytest.mark.parametrize("lengths", [[3], [2, 2], [1, 4, 2]])
def test_rows_are_cut_out_and_padded(lengths: list[int]) -> None:
    rows = flat_rows(lengths)
    ((order, inputs),) = rows.padded(len(lengths))
    assert sorted(order.tolist()) == list(range(len(lengths)))
    for row, index in enumerate(order):
        wanted = [*range(rows.offsets[index] + 1, rows.offsets[index + 1] + 1)]
        assert inputs["input_ids"][row].tolist() == wanted + [0] * (max(lengths) - lengths[index])
    assert ("attention_mask" in inputs) == (len(set(lengths)) > 1)
    if "attention_mask" in inputs:
        assert inputs["attention_mask"].sum(dim=1).tolist() == sorted(lengths, reverse=True)


def flat_rows(lengths: list[int]) -> FlatRows:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return FlatRows(np.arange(1, offsets[-1] + 1, dtype=np.int32), offsets, pad=0)


@given(LENGTHS, st.integers(1, 4), st.booleans())
def test_packed_batches_hold_every_row_once_longest_first(lengths: list[int], batch_size: int, few: bool) -> None:
    rows = flat_rows(lengths)
    seen: list[int] = []
    for indices, inputs in rows.packed(batch_size, few_sizes=few):
        ids, own = inputs["input_ids"], inputs["row_lengths"].tolist()
        assert ids.shape == (1, sum(own))
        pieces = np.split(ids[0].numpy(), np.cumsum(own)[:-1])
        for index, piece in zip(indices, pieces, strict=False):
            assert piece.tolist() == rows.input_ids[rows.offsets[index] : rows.offsets[index + 1]].tolist()
        assert all(not piece.any() for piece in pieces[len(indices) :])
        assert few or len(own) == len(indices)
        # Fillers are rows like others: the model refuses longer ones.
        assert max(own) == max(lengths[index] for index in indices)
        seen += indices.tolist()
    assert sorted(seen) == list(range(len(lengths)))
    assert [lengths[index] for index in seen] == sorted(lengths, reverse=True)


@given(LENGTHS, st.integers(1, 300))
def test_a_batch_keeps_its_budget_and_is_full(lengths: list[int], budget: int) -> None:
    lengths_of = np.array(lengths)
    batches = [lengths_of[rows] for rows in budget_batches(lengths_of, budget)]
    for batch, following in zip(batches, [*batches[1:], None], strict=True):
        assert batch.sum() <= budget or len(batch) == 1
        assert following is None or batch.sum() + following[0] > budget


@pytest.mark.parametrize("budget", [32, 512, 2048])
def test_a_filled_size_is_no_smaller_wastes_little_and_is_one_of_a_dozen(budget: int) -> None:
    sizes = {tokens: filled_size(tokens, budget) for tokens in range(1, 3 * budget)}
    for tokens, size in sizes.items():
        assert tokens <= size < max(2 * tokens, tokens + max(budget // 8, 16), 17)
    assert len({sizes[tokens] for tokens in range(1, budget + 1)}) <= 12 and sizes[budget] == budget


def test_fillers_make_a_round_number_of_rows_and_tokens() -> None:
    rows = flat_rows([5, 4, 4])
    inputs = rows.pack(np.arange(3), budget=256)
    assert inputs["input_ids"].tolist() == [[*range(1, 14), 0, 0, 0]]
    assert inputs["row_lengths"].tolist() == [5, 4, 4, 3] + [0] * 28
