"""Declared counts are exact: parameters as specified and as built, operations as torch counts them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from recurra import RecurraForSequenceClassification, preset
from recurra.core.configuration import content_hash
from recurra.core.errors import ConfigurationError
from recurra.models.names import LANGUAGE_PRESETS, PRESET_NAMES, PRESETS
from recurra.models.presets import count_parameters, flops_per_token, forward_flops, itemise_parameters
from relaxed import relaxed_shapes
from tiny import tiny_config, tiny_model

SPECIFIED = {
    ("baseline", 2): 25_912_706,
    ("baseline", 3): 25_913_091,
    ("recurrent", 2): 10_972_162,
    ("recurrent", 3): 10_972_419,
    ("recurrent-wide", 2): 18_817_538,
    ("recurrent-small", 2): 4_336_898,
    ("recurrent-conv-small", 2): 4_503_554,
}
SIZES_MIB = {"baseline": 98.85, "recurrent": 41.86, "recurrent-wide": 71.78}

CONFIGS = relaxed_shapes(
    {
        "hidden_size": st.sampled_from([8, 16]),
        "intermediate_size": st.integers(1, 20),
        "embedding_size": st.sampled_from([None, 8, 5]),
        "num_prelude_layers": st.integers(0, 2),
        "num_core_layers": st.integers(1, 3),
        "num_recurrences": st.integers(1, 3),
        "num_coda_layers": st.integers(0, 2),
        "learned_residual_scale": st.booleans(),
        "recurrence_embedding": st.booleans(),
        "input_injection": st.sampled_from(["none", "add", "concat"]),
        "final_norm": st.booleans(),
        "pooling": st.sampled_from(["first", "last", "max"]),
        "type_vocab_size": st.integers(0, 3),
        "num_labels": st.integers(2, 4),
    }
)


def built_size(model: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize(("name", "labels"), SPECIFIED)
def test_presets_have_the_specified_number_of_parameters(name: str, labels: int) -> None:
    config = preset(name, num_labels=labels)
    with torch.device("meta"):
        model = RecurraForSequenceClassification(config)
    assert built_size(model) == SPECIFIED[name, labels]
    assert count_parameters(config).total == SPECIFIED[name, labels]


@pytest.mark.parametrize("name", SIZES_MIB)
def test_presets_have_the_published_size(name: str) -> None:
    assert round(count_parameters(preset(name)).size_mib(), 2) == SIZES_MIB[name]


def test_no_preset_changes_unseen() -> None:
    """Runs of different days are compared by the preset's name, so it stands for the same model for good."""
    assert {name: content_hash(values) for name, (_, values) in {**PRESETS, **LANGUAGE_PRESETS}.items()} == {
        "baseline": "ad0a44aa54f1f247",
        "recurrent": "9b2c75a395a9e657",
        "recurrent-wide": "0a81f075b9932fb5",
        "stacked-narrow": "a83999b2f846d4fb",
        "stacked-shallow": "70820d0a28aeb39d",
        "recurrent-small": "7640985d7644326d",
        "recurrent-conv-small": "f5f9596166f12664",
        "baseline-tiny": "d9760efd23bf0632",
        "recurrent-tiny": "f14baa16258c88ad",
        "crt-deep": "4cfc1358e07c1668",
        "crt-deep-separate-heads": "e09b09b4154e0f08",
        "crt-deep-tied": "1d962d9fd01a4595",
        "crt-small": "ca3a60dd635f1bb2",
        "crt-tiny": "d3f66a956cc08ed3",
        "stacked-lm-parameters": "02725c34c755cf5d",
        "stacked-lm-flops": "483646104f5448fb",
    }


def test_most_of_the_recurrent_preset_is_its_token_table() -> None:
    counts = count_parameters(preset("recurrent"))
    assert 30_522 * 256 / counts.total == pytest.approx(0.71, abs=0.005)
    assert counts.total == counts.embeddings + counts.non_embedding


def test_the_controls_change_one_thing_each() -> None:
    recurrent, narrow, shallow = (preset(name) for name in ("recurrent", "stacked-narrow", "stacked-shallow"))
    assert forward_flops(narrow, 64) == forward_flops(recurrent, 64)
    assert count_parameters(narrow).core == 2 * count_parameters(recurrent).core
    assert count_parameters(shallow).total == count_parameters(recurrent).total
    assert forward_flops(shallow, 64) < 0.55 * forward_flops(recurrent, 64)


@pytest.mark.parametrize("name", PRESET_NAMES)
def test_every_preset_is_counted_as_it_is_built(name: str) -> None:
    config = preset(name, vocab_size=100)
    with torch.device("meta"):
        model = RecurraForSequenceClassification(config)
    assert count_parameters(config).total == built_size(model)


def test_an_unknown_preset_names_the_nearest_and_all() -> None:
    with pytest.raises(
        ConfigurationError, match=r"unknown model preset 'recurent' \(did you mean 'recurrent'\?\); allowed:"
    ):
        preset("recurent")


@given(CONFIGS)
@settings(max_examples=40)
def test_parameters_by_part_equal_the_built_model(values: dict[str, Any]) -> None:
    config = tiny_config(**values)
    with torch.device("meta"):
        model = RecurraForSequenceClassification(config)
    counts = count_parameters(config)
    assert counts.embeddings == built_size(model.model.embeddings)
    assert counts.prelude == built_size(model.model.prelude)
    assert counts.core == built_size(model.model.core)
    assert counts.coda == built_size(model.model.coda)
    assert counts.final_norm == built_size(model.model.final_norm)
    assert counts.head == built_size(model.classifier)
    assert counts.total == built_size(model)
    items = itemise_parameters(config)
    assert sum(items.values()) == counts.total and all(items.values())
    for part in ("prelude", "coda", "final norm"):
        assert items.get(part, 0) == getattr(counts, part.replace(" ", "_"))


def counted_flops(model: torch.nn.Module, tokens: int) -> int:
    """Products that torch sees. The plain kernel is forced: the counter does not know the fused CPU kernel."""
    ids = torch.ones(1, tokens, dtype=torch.long)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(ids)
    return int(counter.get_total_flops())


@given(CONFIGS, st.integers(2, 9))
@settings(max_examples=30)
def test_flops_equal_the_executed_products(values: dict[str, Any], tokens: int) -> None:
    """Scores and their weighted sum count 2 x 2 x pairs x width in each application of a layer."""
    config = tiny_config(**values)
    model = RecurraForSequenceClassification(config).eval()
    assert forward_flops(config, tokens) == counted_flops(model, tokens)


@pytest.mark.parametrize("pooling", ["first", "last", "max"])
def test_causal_scores_are_counted_where_they_are_needed(pooling: str) -> None:
    """Torch's counter ignores that half of the pairs is hidden: we count the visible ones, as fused kernels compute."""
    tokens, config = 8, tiny_config(causal=True, pooling=pooling)
    model = tiny_model(causal=True, pooling=pooling).eval()
    whole = config.num_hidden_layers - (pooling == "first")
    hidden = whole * tokens * (tokens - 1) / 2 + (tokens - 1 if pooling == "first" else 0)
    assert forward_flops(config, tokens) == counted_flops(model, tokens) - 4 * config.hidden_size * hidden


def test_flops_a_token_are_those_of_the_sequence_shared_out() -> None:
    config = preset("recurrent")
    assert flops_per_token(config, 32) == forward_flops(config, 32) / 32
    assert forward_flops(config, 32, head_positions=32) > forward_flops(config, 32)
