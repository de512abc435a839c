"""A model and a tokenizer that lie in one folder, and whether they are of one model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recurra.core.errors import CheckpointError, ConfigurationError
from recurra.data.vocabulary import SPECIAL_TOKENS, as_transformers, wordpiece
from recurra.deployment.engines.trained import TransformerEngine
from tiny import tiny_model

WORDS = [f"word{number}" for number in range(100)]


def write_model(folder: Path, pieces: int) -> None:
    tiny_model().save_pretrained(folder)
    vocabulary = {token: number for number, token in enumerate([*SPECIAL_TOKENS, *WORDS][:pieces])}
    as_transformers(wordpiece(vocabulary)).save_pretrained(folder)


def test_a_tokenizer_of_another_model_is_one_clear_line(tmp_path: Path) -> None:
    known = int(tiny_model().config.vocab_size)
    write_model(tmp_path / "fits", known)
    assert TransformerEngine.load(tmp_path / "fits", max_length=8).logits(["word1 word2"], 4).shape == (1, 2)
    write_model(tmp_path / "other", known + 1)
    with pytest.raises(CheckpointError, match=rf"tokens up to {known}, and its model knows {known}: .*two models"):
        TransformerEngine.load(tmp_path / "other", max_length=8)


def test_a_token_number_beyond_all_is_one_clear_line(tmp_path: Path) -> None:
    write_model(tmp_path, 20)
    path = tmp_path / "tokenizer.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    values["model"]["vocab"]["word1"] = 2**32
    path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises((ConfigurationError, CheckpointError)) as caught:
        TransformerEngine.load(tmp_path, max_length=8)
    assert "\n" not in str(caught.value)
