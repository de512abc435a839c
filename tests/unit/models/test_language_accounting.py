"""Declared counts of language models are exact: as specified, as built, and as torch counts operations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from recurra import RecurraForCausalLM, RecurraForSequenceClassification, preset
from recurra.models.names import LANGUAGE_PRESET_NAMES
from recurra.models.presets import (
    HeadKind,
    count_parameters,
    flops_per_token,
    forward_flops,
    itemise_parameters,
    language_flops,
)
from relaxed import relaxed_shapes
from tiny import language_config

LANGUAGE = HeadKind.LANGUAGE_MODELLING
SPECIFIED = {"crt-deep": 92_053_760, "crt-deep-separate-heads": 143_516_928, "crt-deep-tied": 40_721_664}
PARTS = {
    "token table": 50_257 * 256,
    "embedding projection": 256 * 512 + 512,
    "embedding refinement": 3 * 2_364_928,
    "positions": 1024 * 512,
    "core attention": 4 * 512 * 512,
    "core feed-forward": 8 * 2_364_928,
    "core layer norms": 4 * 512,
    "recurrence embedding": 8 * 512,
}
CYCLES = st.sampled_from(["conv+linear", "conv", "linear", "depthwise"])
CONFIGS = relaxed_shapes(
    {
        "hidden_size": st.sampled_from([8, 16]),
        "intermediate_size": st.integers(1, 20),
        "embedding_size": st.sampled_from([None, 8, 5]),
        "num_prelude_layers": st.integers(0, 1),
        "num_core_layers": st.integers(1, 2),
        "num_recurrences": st.just(3),
        "exits": st.sampled_from([[], [2], [1, 2]]),
        "heads": st.sampled_from(["shared", "separate", "tied"]),
        "feed_forward": CYCLES,
        "num_cycles": st.integers(1, 3),
        "kernel_size": st.integers(1, 4),
        "embedding_cycles": st.integers(0, 2),
        "norm": st.sampled_from(["rms", "layer", "batch", "none"]),
        "norm_placement": st.sampled_from(["pre", "post"]),
        "position": st.sampled_from(["rotary", "learned"]),
        "attention_bias": st.booleans(),
        "embedding_norm": st.booleans(),
        "recurrence_embedding": st.booleans(),
        "input_injection": st.sampled_from(["none", "concat"]),
        "final_norm": st.booleans(),
        "type_vocab_size": st.integers(0, 2),
    }
)


def built_size(model: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def built(config: Any) -> RecurraForCausalLM:
    with torch.device("meta"):
        return RecurraForCausalLM(config)


@pytest.mark.parametrize("name", SPECIFIED)
def test_crt_deep_has_the_specified_number_of_parameters_in_the_specified_parts(name: str) -> None:
    config = preset(name)
    assert count_parameters(config, LANGUAGE).total == built_size(built(config)) == SPECIFIED[name]
    items = itemise_parameters(config, LANGUAGE)
    heads = {"head projection": 512 * 256} if config.heads == "tied" else {"final head": 512 * 50_257}
    if config.heads != "tied":
        heads["exit heads"] = (3 if config.heads == "separate" else 1) * 512 * 50_257
    assert items == {**PARTS, **heads}


@pytest.mark.parametrize("name", LANGUAGE_PRESET_NAMES)
def test_every_preset_is_counted_as_it_is_built(name: str) -> None:
    config = preset(name)
    assert count_parameters(config, LANGUAGE).total == built_size(built(config))
    assert not config.leaks


@given(CONFIGS)
@settings(max_examples=40)
def test_parameters_by_part_equal_the_built_model(values: dict[str, Any]) -> None:
    config = language_config(**values)
    model = built(config)
    counts = count_parameters(config, LANGUAGE)
    assert counts.embeddings == built_size(model.model.embeddings)
    assert counts.prelude == built_size(model.model.prelude)
    assert counts.core == built_size(model.model.core)
    assert counts.final_norm == built_size(model.model.final_norm)
    assert counts.head == built_size(model.heads)
    assert counts.total == built_size(model) == sum(itemise_parameters(config, LANGUAGE).values())


def unseen(config: Any, tokens: int, recurrences: int) -> float:
    """What torch's counter leaves out (shifted multiply-adds) less what it counts too much (hidden pairs)."""
    layers = config.num_prelude_layers + config.num_core_layers * recurrences
    cycles = layers * config.num_cycles + config.embedding_cycles
    taps = config.kernel_size if config.has_convolution else 0
    hidden = tokens * (tokens - 1) / 2 if config.causal else 0
    return 2 * cycles * taps * config.hidden_size * tokens - layers * 4 * config.hidden_size * hidden


def counted(model: torch.nn.Module, tokens: int, **asked: Any) -> int:
    ids = torch.ones(1, tokens, dtype=torch.long)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(ids, **asked)
    return int(counter.get_total_flops())


@given(CONFIGS, st.integers(2, 6))
@settings(max_examples=25)
def test_flops_equal_the_executed_operations(values: dict[str, Any], tokens: int) -> None:
    config = language_config(**values)
    model = RecurraForCausalLM(config).eval()
    everything = language_flops(config, tokens, with_exits=True)
    assert everything == counted(model, tokens, output_exits=True) + unseen(config, tokens, 3)
    for number in (*config.exits, 3):
        found = counted(model, tokens, exit_after=number) + unseen(config, tokens, number)
        assert language_flops(config, tokens, exit_after=number) == found


@given(CONFIGS, st.integers(2, 6))
@settings(max_examples=15)
def test_flops_of_an_encoder_with_exits_equal_the_executed_operations(values: dict[str, Any], tokens: int) -> None:
    heads = "shared" if values["heads"] == "tied" else values["heads"]
    config = language_config(**{**values, "heads": heads, "causal": False})
    model = RecurraForSequenceClassification(config).eval()
    assert forward_flops(config, tokens) == counted(model, tokens) + unseen(config, tokens, 3)


def test_the_controls_are_as_large_or_as_costly_as_crt_small() -> None:
    small, parameters, flops = (preset(name) for name in ("crt-small", "stacked-lm-parameters", "stacked-lm-flops"))
    for control in (parameters, flops):
        assert (control.num_recurrences, control.feed_forward, control.position) == (1, "swiglu", "rotary")
        assert (control.vocab_size, control.embedding_size) == (small.vocab_size, small.embedding_size)
    wanted = count_parameters(small, LANGUAGE).total
    assert count_parameters(parameters, LANGUAGE).total == pytest.approx(wanted, rel=1e-3)
    assert language_flops(flops, 256) == pytest.approx(language_flops(small, 256), rel=1e-3)


@pytest.mark.parametrize(
    ("name", "saved", "percent"),
    [
        ("crt-deep", 5_639_424, 5.8),
        ("crt-deep-tied", 5_508_352, 11.9),
        ("crt-small", -202_496, -4.2),
        ("crt-tiny", 210_048, 12.0),
    ],
)
def test_a_refined_embedding_saves_what_the_documents_say(name: str, saved: int, percent: float) -> None:
    plain = preset(name, embedding_size=None, embedding_cycles=0)
    sizes = [count_parameters(config, LANGUAGE).total for config in (plain, preset(name))]
    assert sizes == [built_size(built(config)) for config in (plain, preset(name))]
    assert sizes[0] - sizes[1] == saved and round(100 * saved / sizes[0], 1) == percent
    page = (Path(__file__).parents[3] / "docs/explanation/models.md").read_text(encoding="utf-8")
    assert f"{abs(saved):,}" in page


def test_flops_a_token_are_those_of_the_sequence_shared_out() -> None:
    config = preset("crt-tiny")
    assert flops_per_token(config, 32, LANGUAGE) == language_flops(config, 32) / 32
    assert language_flops(config, 32, exit_after=1) < 0.5 * language_flops(config, 32)
