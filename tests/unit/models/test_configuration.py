"""The model configuration refuses what it does not know, by name, value and cure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForSequenceClassification

from recurra import RecurraConfig, RecurraForSequenceClassification
from recurra.core.errors import ConfigurationError
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
