"""Every unusable model folder gives one clear line."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from recurra.core.errors import CheckpointError
from recurra.models.folder import MOST, least_elements, weight_elements
from recurra.models.loading import load_classifier_model
from recurra.models.names import LANGUAGE_PRESETS, PRESETS
from relaxed import RELAXED
from tiny import tiny_config, tiny_model


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def only_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"weight": torch.ones(1)}, folder / "pytorch_model.bin")


def pickle_in_disguise(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(pickle.dumps({"weight": [1.0] * 100}))


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def no_configuration(folder: Path) -> None:
    (folder / "config.json").unlink()


def broken_configuration(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "recurra",', encoding="utf-8")


def list_for_configuration(folder: Path) -> None:
    (folder / "config.json").write_text("[1]", encoding="utf-8")


def binary_configuration(folder: Path) -> None:
    (folder / "config.json").write_bytes(b"\xff\xfe\x00\x01")


def of_another_family(folder: Path) -> None:
    change(folder, model_type="bert")


def unknown_key(folder: Path) -> None:
    change(folder, num_recurences=2)


def impossible_value(folder: Path) -> None:
    change(folder, num_recurrences=-1)


def another_shape(folder: Path) -> None:
    change(folder, intermediate_size=32)


def more_layers(folder: Path) -> None:
    change(folder, num_core_layers=3)


def fewer_layers(folder: Path) -> None:
    change(folder, num_core_layers=1)


def missing_weight(folder: Path) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    del weights["classifier.bias"]
    save_file(weights, path, metadata={"format": "pt"})


def change(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}), encoding="utf-8")


def a_billion_labels(folder: Path) -> None:
    change(folder, num_labels=10**9, id2label=None, label2id=None)


def a_billion_recurrences(folder: Path) -> None:
    change(folder, num_recurrences=10**9)


def many_recurrences_of_their_own(folder: Path) -> None:
    change(folder, num_recurrences=4096, low_rank=16)


def many_norms(folder: Path) -> None:
    change(folder, num_recurrences=4096, recurrence_norms=True)


def many_cycles(folder: Path) -> None:
    change(folder, num_cycles=10**9)


def a_huge_vocabulary(folder: Path) -> None:
    change(folder, vocab_size=3_900_000)


def a_vocabulary_beyond_all(folder: Path) -> None:
    change(folder, vocab_size=12 * 10**6)


def nested_configuration(folder: Path) -> None:
    (folder / "config.json").write_text("[" * 300_000, encoding="utf-8")


def endless_configuration(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("/dev/zero")


def large_configuration(folder: Path) -> None:
    with (folder / "config.json").open("ab") as stream:
        stream.truncate(20 * 2**20)


def padding_beyond_all(folder: Path) -> None:
    change(folder, pad_token_id=2**32)


CASES: list[tuple[Callable[[Path], None], str]] = [
    (truncate, "is not a whole safetensors file"),
    (empty, "is not a whole safetensors file"),
    (only_pickle, "holds 'pytorch_model.bin', a pickle"),
    (pickle_in_disguise, "or a pickle under that name"),
    (no_weights, "is missing; the model folder is incomplete"),
    (no_configuration, "is not a model folder: no config.json"),
    (broken_configuration, "is not valid JSON"),
    (list_for_configuration, "holds no mapping"),
    (binary_configuration, "is not valid JSON"),
    (of_another_family, "is of model type 'bert'; a model of ours has type 'recurra'"),
    (unknown_key, "did you mean 'num_recurrences'"),
    (impossible_value, "'num_recurrences' is -1"),
    (another_shape, "has another shape of weight 'model.core.block.layers.0"),
    (more_layers, "lacks weight 'model.core.block.layers.2"),
    (fewer_layers, "has the unknown weight 'model.core.block.layers.1"),
    (missing_weight, "lacks weight 'classifier.bias'"),
    (a_billion_labels, "'num_labels' is 1,000,000,000; at most 100,000 is allowed"),
    (a_billion_recurrences, "'num_recurrences' is 1,000,000,000; at most 4,096 is allowed"),
    (many_recurrences_of_their_own, "asks for tables of"),
    (many_norms, "asks for tables of"),
    (many_cycles, "'num_cycles' is 1,000,000,000; at most 1,024 is allowed"),
    (a_huge_vocabulary, "asks for tables of"),
    (a_vocabulary_beyond_all, "'vocab_size' is 12,000,000; at most 4,000,000 is allowed"),
    (nested_configuration, "config.json"),
    (endless_configuration, "is no regular file"),
    (large_configuration, "at most 16,777,216 are read"),
    (padding_beyond_all, "'pad_token_id' is 4294967296"),
]


@pytest.mark.parametrize(("damage", "message"), CASES, ids=[case[0].__name__ for case in CASES])
def test_an_unusable_folder_is_one_clear_line(damage: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path)
    damage(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        load_classifier_model(tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_missing_folder_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"is not a model folder: no config\.json; give RUN/model of a finished run"
    ):
        load_classifier_model(tmp_path / "nowhere")


def test_a_whole_folder_loads_in_evaluation_mode(tmp_path: Path) -> None:
    model = tiny_model().eval()
    model.save_pretrained(tmp_path)
    loaded = load_classifier_model(tmp_path)
    assert not loaded.training
    ids = torch.randint(1, tiny_config().vocab_size, (2, 5))
    assert torch.equal(loaded(ids).logits, model(ids).logits)


def test_no_shipped_model_is_beyond_the_bounds() -> None:
    for _, shape in (*PRESETS.values(), *LANGUAGE_PRESETS.values()):
        for key, most in MOST.items():
            value = shape.get(key, 0)
            assert (len(value) if isinstance(value, list) else value) <= most // 4


def test_what_is_counted_is_never_more_than_a_model_has(tmp_path: Path) -> None:
    shapes: list[dict[str, Any]] = [
        {}, {"num_prelude_layers": 1}, {"embedding_size": 8}, {"num_labels": 7}, RELAXED,
        {"low_rank": 16, "low_rank_where": "feed-forward", "feed_forward": "conv", "recurrence_norms": True},
    ]  # fmt: skip
    for number, overrides in enumerate(shapes):
        model = tiny_model(**overrides)
        folder = tmp_path / str(number)
        model.save_pretrained(folder)
        held = weight_elements(folder / "model.safetensors")
        assert held == sum(weight.numel() for weight in load_file(folder / "model.safetensors").values())
        assert least_elements(json.loads((folder / "config.json").read_text())) <= held
