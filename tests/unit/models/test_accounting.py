"""Declared counts are exact: parameters as specified, operations as torch counts them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from recurra import RecurraForCausalLM, RecurraForSequenceClassification, preset
from recurra.core.configuration import content_hash
from recurra.core.errors import ConfigurationError
from recurra.models.names import LANGUAGE_PRESETS, PRESETS
from recurra.models.presets import HeadKind, Parameters, count_parameters, forward_flops, language_flops
from relaxed import relaxed_shapes
from tiny import language_config, tiny_config, tiny_model

LANGUAGE = HeadKind.LANGUAGE_MODELLING
SPECIFIED = {
    ("baseline", 2): 25_912_706,
    ("baseline", 3): 25_913_091,
    ("recurrent", 2): 10_972_162,
    ("recurrent", 3): 10_972_419,
    ("recurrent-wide", 2): 18_817_538,
    ("recurrent-small", 2): 4_336_898,
    ("recurrent-conv-small", 2): 4_503_554,
}
PUBLISHED_MIB = {"baseline": 98.85, "recurrent": 41.86, "recurrent-wide": 71.78}
DEEP = {"crt-deep": 92_053_760, "crt-deep-separate-heads": 143_516_928, "crt-deep-tied": 40_721_664}

WIDTHS: dict[str, st.SearchStrategy[Any]] = {
    "hidden_size": st.sampled_from([8, 16]),
    "intermediate_size": st.integers(1, 20),
    "embedding_size": st.sampled_from([None, 8, 5]),
    "recurrence_embedding": st.booleans(),
    "final_norm": st.booleans(),
}
CONFIGS = relaxed_shapes(
    {
        **WIDTHS,
        "num_prelude_layers": st.integers(0, 2),
        "num_core_layers": st.integers(1, 3),
        "num_recurrences": st.integers(1, 3),
        "num_coda_layers": st.integers(0, 2),
        "learned_residual_scale": st.booleans(),
        "input_injection": st.sampled_from(["none", "add", "concat"]),
        "pooling": st.sampled_from(["first", "last", "max"]),
        "type_vocab_size": st.integers(0, 3),
        "num_labels": st.integers(2, 4),
    }
)
LANGUAGE_CONFIGS = relaxed_shapes(
    {
        **WIDTHS,
        "num_prelude_layers": st.integers(0, 1),
        "num_core_layers": st.integers(1, 2),
        "num_recurrences": st.just(3),
        "exits": st.sampled_from([[], [2], [1, 2]]),
        "heads": st.sampled_from(["shared", "separate", "tied"]),
        "feed_forward": st.sampled_from(["conv+linear", "conv", "linear", "depthwise"]),
        "num_cycles": st.integers(1, 3),
        "kernel_size": st.integers(1, 4),
        "embedding_cycles": st.integers(0, 2),
        "norm": st.sampled_from(["rms", "layer", "batch", "none"]),
        "norm_placement": st.sampled_from(["pre", "post"]),
        "position": st.sampled_from(["rotary", "learned"]),
        "attention_bias": st.booleans(),
        "embedding_norm": st.booleans(),
        "input_injection": st.sampled_from(["none", "concat"]),
        "type_vocab_size": st.integers(0, 2),
    }
)


def test_presets_have_the_specified_number_of_parameters_in_the_specified_parts() -> None:
    found = {(name, labels): count_parameters(preset(name, num_labels=labels)).total for name, labels in SPECIFIED}
    assert found == SPECIFIED
    sizes = {name: round(count_parameters(preset(name)).size_mib(), 2) for name in PUBLISHED_MIB}
    assert sizes == PUBLISHED_MIB
    # Table, map up, refinement, positions; attention, cycles, norms, recurrence embedding.
    embeddings = 50_257 * 256 + (256 + 1) * 512 + 3 * 2_364_928 + 1024 * 512
    core = 4 * 512 * 512 + 8 * 2_364_928 + 4 * 512 + 8 * 512
    for name, total in DEEP.items():
        config = preset(name)
        counts = count_parameters(config, LANGUAGE)
        head = {"tied": 0, "shared": 2, "separate": 4}[config.heads] * 512 * 50_257 or 512 * 256
        assert counts.total == total
        assert counts == Parameters(embeddings=embeddings, prelude=0, core=core, coda=0, final_norm=0, head=head)


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
    with pytest.raises(ConfigurationError, match=r"model preset 'recurent' \(did you mean 'recurrent'\?\); allowed:"):
        preset("recurent")


def test_the_controls_change_one_thing_each() -> None:
    recurrent, narrow, shallow = (preset(name) for name in ("recurrent", "stacked-narrow", "stacked-shallow"))
    assert forward_flops(narrow, 64) == forward_flops(recurrent, 64)
    assert count_parameters(narrow).core == 2 * count_parameters(recurrent).core
    assert count_parameters(shallow).total == count_parameters(recurrent).total
    assert forward_flops(shallow, 64) < 0.55 * forward_flops(recurrent, 64)
    small, parameters, flops = (preset(name) for name in ("crt-small", "stacked-lm-parameters", "stacked-lm-flops"))
    for control in (parameters, flops):
        assert (control.num_recurrences, control.feed_forward, control.position) == (1, "swiglu", "rotary")
        assert (control.vocab_size, control.embedding_size) == (small.vocab_size, small.embedding_size)
    wanted = count_parameters(small, LANGUAGE).total
    assert count_parameters(parameters, LANGUAGE).total == pytest.approx(wanted, rel=1e-3)
    assert language_flops(flops, 256) == pytest.approx(language_flops(small, 256), rel=1e-3)


def counted(model: torch.nn.Module, tokens: int, **asked: Any) -> int:
    ids = torch.ones(1, tokens, dtype=torch.long)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.eval()(ids, **asked)
    return int(counter.get_total_flops())


@given(CONFIGS, st.integers(2, 9))
@settings(max_examples=20)
def test_flops_equal_the_executed_products(values: dict[str, Any], tokens: int) -> None:
    """Scores and their weighted sum count 2 x 2 x pairs x width in each application of a layer."""
    config = tiny_config(**values)
    assert forward_flops(config, tokens) == counted(RecurraForSequenceClassification(config), tokens)


@pytest.mark.parametrize("pooling", ["first", "last", "max"])
def test_causal_scores_are_counted_where_they_are_needed(pooling: str) -> None:
    """Torch's counter ignores that half of the pairs is hidden: we count the visible ones, as fused kernels compute."""
    tokens, model = 8, tiny_model(causal=True, pooling=pooling)
    config = model.config
    whole = config.num_hidden_layers - (pooling == "first")
    hidden = whole * tokens * (tokens - 1) / 2 + (tokens - 1 if pooling == "first" else 0)
    assert forward_flops(config, tokens) == counted(model, tokens) - 4 * config.hidden_size * hidden


def unseen(config: Any, tokens: int) -> float:
    """What torch's counter leaves out (shifted multiply-adds) less what it counts too much (hidden pairs)."""
    layers = config.num_prelude_layers + config.num_core_layers * 3
    cycles = layers * config.num_cycles + config.embedding_cycles
    taps = config.kernel_size if config.has_convolution else 0
    hidden = tokens * (tokens - 1) / 2 if config.causal else 0
    return 2 * cycles * taps * config.hidden_size * tokens - layers * 4 * config.hidden_size * hidden


@given(LANGUAGE_CONFIGS, st.integers(2, 6))
@settings(max_examples=12)
def test_flops_of_cycles_and_exits_equal_the_executed_operations(values: dict[str, Any], tokens: int) -> None:
    """Of a language model, and of an encoder of the same shape."""
    config = language_config(**values)
    model = RecurraForCausalLM(config)
    everything = language_flops(config, tokens, with_exits=True)
    assert everything == counted(model, tokens, output_exits=True) + unseen(config, tokens)
    assert language_flops(config, tokens) == counted(model, tokens) + unseen(config, tokens)
    heads = "shared" if values["heads"] == "tied" else values["heads"]
    config = language_config(**{**values, "heads": heads, "causal": False})
    encoder = RecurraForSequenceClassification(config)
    assert forward_flops(config, tokens) == counted(encoder, tokens) + unseen(config, tokens)
