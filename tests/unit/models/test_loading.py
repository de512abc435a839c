"""Configurations and model folders refuse what they do not know in one clear line, by name, value and cure.

Logits of many rows are in the order of the rows.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForSequenceClassification

from recurra import RecurraConfig, RecurraForSequenceClassification
from recurra.core.errors import CheckpointError, ConfigurationError
from recurra.models.folder import MOST, least_elements, weight_elements
from recurra.models.inference import check_precision, predict_logits
from recurra.models.loading import load_classifier_model
from recurra.models.names import LANGUAGE_PRESETS, PRESETS
from relaxed import RELAXED
from tiny import language_config, tiny_config, tiny_model


@pytest.mark.parametrize(
    ("keys", "allowed"),
    [
        ({"num_recurrences": 2.0}, "a whole number from 1"),
        ({"hidden_dropout": 1.0}, "a number from 0 to below 1"),
        ({"rope_theta": float("nan")}, "a number above 0"),
        ({"residual_scale": float("inf")}, "a finite number"),
        ({"causal": "yes"}, "true or false"),
        ({"pooling": "median"}, "one of"),
        ({"num_attention_heads": 3}, "a divisor of hidden_size 16"),
        ({"num_attention_heads": 16}, "a divisor of hidden_size 16 that gives heads of even width"),
        ({"pad_token_id": 40}, "null or a row of the table, below vocab_size 40"),
        ({"num_cycles": 2}, "1 with feed_forward 'swiglu', which has no cycles"),
        ({"dilations": []}, "a list, not empty, of whole numbers from 1"),
        ({"exits": [2]}, "rising numbers below num_recurrences 2"),
        ({"exit_loss_weight": 1.5}, "a number from 0 to 1"),
        # Keys that exclude each other.
        ({"exits": [1], "num_coda_layers": 1}, "none with coda layers"),
        ({"kernel_size": 4, "feed_forward": "conv", "causal_convolution": False}, "an odd number without causal_conv"),
        ({"tokens_per_recurrence": 2}, "1 without tokens_without"),
        ({"tokens_without_recurrence": 3, "exits": [1]}, "null with exits or coda"),
        ({"tokens_without_recurrence": 3, "num_coda_layers": 1}, "null with exits or coda"),
        ({"learned_halt": True}, "false without tokens_without"),
        ({"learned_halt": True, "num_recurrences": 1, "tokens_without_recurrence": 2}, "false with num_recurrences 1"),
        ({"recurrence_norms": True, "norm": "batch"}, "false with norm 'batch'"),
        ({"recurrence_norms": True, "num_recurrences": 1}, "false with num_recurrences 1"),
        ({"low_rank": 17}, "0 to hidden_size, which is 16"),
        ({"low_rank": 2, "num_recurrences": 1}, "0 with num_recurrences 1, where nothing is"),
        ({"relaxation_start": "replaced"}, "shared; other starts"),
    ],
    ids=str,
)
def test_an_impossible_value_names_key_value_and_what_is_allowed(keys: dict[str, Any], allowed: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        tiny_config(**keys)
    key, value = next(iter(keys.items()))
    assert str(caught.value).startswith(f"model configuration: '{key}' is {value!r}; allowed: {allowed}")
    assert "\n" not in str(caught.value)


def test_a_classifier_has_no_table_to_tie_its_heads_to() -> None:
    with pytest.raises(ConfigurationError, match="'heads' is 'tied'; allowed for a classifier: shared, separate"):
        RecurraForSequenceClassification(language_config(heads="tied"))


def test_an_unknown_key_of_a_call_is_refused_where_transformers_would_pass_over_it(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path, num_labels=5, num_recurrences=4).num_labels == 5
    with pytest.raises(ConfigurationError, match="did you mean 'num_recurrences'"):
        AutoConfig.from_pretrained(tmp_path, num_recurences=4)
    with pytest.raises(TypeError, match="num_recurences"):
        AutoModelForSequenceClassification.from_pretrained(tmp_path, num_recurences=4)


def test_what_transformers_itself_passes_is_accepted(tmp_path: Path) -> None:
    config = tiny_config(num_labels=3, id2label={0: "a", 1: "b", 2: "c"}, label2id={"a": 0, "b": 1, "c": 2})
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path, attn_implementation="sdpa")
    assert isinstance(loaded, RecurraConfig)
    assert loaded.id2label == {0: "a", 1: "b", 2: "c"}
    for key in RecurraConfig.own_keys():
        assert getattr(loaded, key) == getattr(config, key)
    # Their count of layers follows from ours.
    assert tiny_config(num_hidden_layers=99).num_hidden_layers == 2 * 2


@pytest.mark.parametrize(
    ("values", "leaks"),
    [
        ({"feed_forward": "depthwise", "causal": True}, True),
        ({"feed_forward": "conv+linear", "causal": True, "causal_convolution": True}, False),
        ({"feed_forward": "linear", "causal": True}, False),
        ({"feed_forward": "conv", "causal": True, "kernel_size": 1}, False),
        ({"feed_forward": "conv"}, False),
        ({"causal": True}, False),
    ],
    ids=str,
)
def test_a_decoder_whose_convolutions_see_ahead_leaks(values: dict[str, Any], leaks: bool) -> None:
    assert tiny_config(**{"causal_convolution": False, **values}).leaks == leaks


def truncate(folder: Path) -> None:
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def only_pickle(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    torch.save({"weight": torch.ones(1)}, folder / "pytorch_model.bin")


def missing_weight(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    del weights["classifier.bias"]
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def endless_configuration(folder: Path) -> None:
    (folder / CONFIG).unlink()
    (folder / CONFIG).symlink_to("/dev/zero")


# A file that is removed or written, or keys of the configuration, or something that is done to the folder.
WEIGHTS, CONFIG = "model.safetensors", "config.json"
CASES: dict[str, tuple[Any, str]] = {
    "truncated": (truncate, "is an incomplete or damaged safetensors file"),
    "only a pickle": (only_pickle, "holds 'pytorch_model.bin', a pickle"),
    "a pickle in disguise": ((WEIGHTS, pickle.dumps({"weight": [1.0] * 100})), "or a pickle under that name"),
    "no weights": ((WEIGHTS, None), "is missing; the model folder is incomplete"),
    "no configuration": ((CONFIG, None), "is not a model folder: no config.json"),
    "broken configuration": ((CONFIG, b'{"model_type": "recurra",'), "is not valid JSON"),
    "a list": ((CONFIG, b"[1]"), "holds no mapping"),
    "nested configuration": ((CONFIG, b"[" * 300_000), "config.json"),
    "endless configuration": (endless_configuration, "is no regular file"),
    "another family": ({"model_type": "bert"}, "is of model type 'bert'; a model of ours has type 'recurra'"),
    "unknown key": ({"num_recurences": 2}, "did you mean 'num_recurrences'"),
    "impossible value": ({"num_recurrences": -1}, "'num_recurrences' is -1"),
    "another shape": ({"intermediate_size": 32}, "has another shape of weight 'model.core.block.layers.0"),
    "more layers": ({"num_core_layers": 3}, "lacks weight 'model.core.block.layers.2"),
    "fewer layers": ({"num_core_layers": 1}, "has the unknown weight 'model.core.block.layers.1"),
    "missing weight": (missing_weight, "lacks weight 'classifier.bias'"),
    "many labels": (
        {"num_labels": 10**9, "id2label": None, "label2id": None},
        "'num_labels' is 1,000,000,000; at most 100,000 is allowed",
    ),
    "many updates": ({"num_recurrences": 4096, "low_rank": 16}, "asks for tables of"),
    "many norms": ({"num_recurrences": 4096, "recurrence_norms": True}, "asks for tables of"),
    "many cycles": ({"num_cycles": 10**9}, "'num_cycles' is 1,000,000,000; at most 1,024 is allowed"),
    "small cycles": ({"num_cycles": 1024, "feed_forward": "conv"}, "asks for tables of"),
    "a huge vocabulary": ({"vocab_size": 3_900_000}, "asks for tables of"),
    "padding beyond all": ({"pad_token_id": 2**32}, "'pad_token_id' is 4294967296"),
}


@pytest.mark.parametrize(("damage", "message"), CASES.values(), ids=CASES)
def test_an_unusable_folder_is_one_clear_line(damage: Any, message: str, tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path)
    if isinstance(damage, dict):
        values = json.loads((tmp_path / CONFIG).read_text(encoding="utf-8"))
        (tmp_path / CONFIG).write_text(json.dumps({**values, **damage}), encoding="utf-8")
    elif isinstance(damage, tuple):
        (tmp_path / damage[0]).unlink()
        if damage[1] is not None:
            (tmp_path / damage[0]).write_bytes(damage[1])
    else:
        damage(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        load_classifier_model(tmp_path)
    said = str(caught.value)
    assert message in said and str(tmp_path) in said and "\n" not in said


def test_no_shipped_model_is_beyond_the_bounds() -> None:
    for _, shape in (*PRESETS.values(), *LANGUAGE_PRESETS.values()):
        for key, most in MOST.items():
            value = shape.get(key, 0)
            assert (len(value) if isinstance(value, list) else value) <= most // 4


def test_what_is_counted_is_never_more_than_a_model_has(tmp_path: Path) -> None:
    shapes: list[dict[str, Any]] = [
        {}, {"num_prelude_layers": 1}, {"embedding_size": 8, "vocab_size": 5000}, {"num_labels": 7}, RELAXED,
        {"low_rank": 16, "low_rank_where": "feed-forward", "feed_forward": "conv", "recurrence_norms": True},
        {"feed_forward": "linear", "intermediate_size": 1, "num_cycles": 3, "embedding_cycles": 2, "norm": "none"},
    ]  # fmt: skip
    for number, overrides in enumerate(shapes):
        model = tiny_model(**overrides)
        folder = tmp_path / str(number)
        model.save_pretrained(folder)
        held = weight_elements(folder / "model.safetensors")
        assert held == sum(weight.numel() for weight in load_file(folder / "model.safetensors").values())
        assert least_elements(json.loads((folder / "config.json").read_text())) <= held


def test_rows_come_back_in_their_own_order_whatever_the_batches() -> None:
    model = tiny_model().train()
    ids = torch.randint(1, 40, (5, 6))
    batches = [(np.array(rows), {"input_ids": ids[rows]}) for rows in ([3, 0], [4], [1, 2])]
    logits = predict_logits(model, batches, 5)
    assert model.training
    with torch.no_grad():
        wanted = model.eval()(ids).logits.numpy()
    np.testing.assert_allclose(logits, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("supported", [True, False])
def test_where_bf16_is_missing_fp16_is_named(supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigurationError, match="precision 'fp16' needs an accelerator"):
        check_precision("fp16")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: supported or including_emulation)
    assert [check_precision(name) for name in ("fp32", "fp16")] == ["fp32", "fp16"]
    if supported:
        assert check_precision("bf16") == "bf16"
    else:
        with pytest.raises(ConfigurationError, match="bf16' is not supported by this accelerator; use fp16, whose"):
            check_precision("bf16")
