"""Generation with a cache says what generation without one says, alone and in padded batches.

Tokens that leave early do so as in decoding from its definition. The cache holds what transformers' own would.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from recurra import RecurraForCausalLM, RecurraModel
from recurra.core.errors import ConfigurationError
from recurra.models.cache import CACHE, GrowingLayer, RecurraCache
from recurra.models.exits.rules import ConfidenceRule, ExitRule, confidence
from references.exiting_decoder import decode
from references.exits import stops
from relaxed import RELAXED
from tiny import STACKED, cached_bytes, language_config, language_model, stirred_language_model

VARIANTS: dict[str, dict[str, Any]] = {
    "crt": {},
    "tied heads, kernel 4": {"heads": "tied", "kernel_size": 4},
    "conv": {"feed_forward": "conv"},
    "linear": {"feed_forward": "linear"},
    "depthwise": {"feed_forward": "depthwise"},
    "kernel 1": {"kernel_size": 1},
    "rotary, pre-norm, separate heads": {
        "position": "rotary", "norm_placement": "pre", "final_norm": True, "heads": "separate",
    },
    "two layers, injection, scale": {"num_core_layers": 2, "input_injection": "add", "residual_scale": 0.5},
    "relaxed": {**RELAXED, "position": "rotary"},
    "SwiGLU": {"feed_forward": "swiglu", "num_cycles": 1, "embedding_cycles": 0},
    # These have no exits that could be defined token by token.
    "prelude, coda": {"exits": [], "num_core_layers": 2, "num_prelude_layers": 1, "num_coda_layers": 1},
    "stacked SwiGLU": {**STACKED, "max_position_embeddings": 64},
}  # fmt: skip
EXITING = [name for name, shape in VARIANTS.items() if "exits" not in shape]
# Rotary models turn queries and keys in FP32 whatever the states' type.
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
GREEDY: dict[str, Any] = {"do_sample": False, "pad_token_id": 0}


def model_of(variant: str) -> RecurraForCausalLM:
    shape = {"num_recurrences": 3, "exits": [1, 2], "max_position_embeddings": 64, **VARIANTS[variant]}
    model = stirred_language_model(**shape, hidden_size=16, spread=0.5).double()
    with torch.no_grad():
        # A shift of all states in one direction would make every model repeat one word.
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.zero_()
    return model


def left_padded(lengths: list[int], seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random ids, also under the mask, and a mask of rows that end together."""
    width = max(lengths)
    ids = torch.randint(0, 11, (len(lengths), width), generator=torch.Generator().manual_seed(seed))
    return ids, (torch.arange(width) >= width - torch.tensor(lengths)[:, None]).long()


@torch.no_grad()
def in_pieces(model: Any, ids: Tensor, mask: Tensor | None, pieces: list[int], cache: Any = None) -> Tensor:
    """Logits of pieces of the rows, each going on behind the last."""
    found, done = [], 0
    for size in pieces:
        done += size
        seen = None if mask is None else mask[:, :done]
        output = model(ids[:, done - size : done], seen, past_key_values=cache, use_cache=True)
        cache = output[CACHE]
        found.append(output.logits)
    assert cache.get_seq_length() == done
    return torch.cat(found, dim=1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_going_on_behind_a_cache_equals_starting_anew(variant: str) -> None:
    model = model_of(variant)
    for lengths, masked in (([16] * 3, False), ([16] * 3, True), ([16, 9, 2], True)):
        ids, mask = left_padded(lengths)
        given = mask if masked else None
        whole = model(ids, given).logits.detach()
        for pieces in ([16], [1] * 16, [7, 1, 1, 5, 2]):
            got = in_pieces(model, ids, given, pieces)
            torch.testing.assert_close(got[mask.bool()], whole[mask.bool()], **TOLERANCE)
    if not model.config.has_convolution:
        # Such a model takes the stock cache too.
        got = in_pieces(model, ids, mask, [7, 1, 8], DynamicCache())
        torch.testing.assert_close(got[mask.bool()], whole[mask.bool()], **TOLERANCE)


@pytest.mark.parametrize(
    "asked", [{}, {"num_beams": 3, "num_return_sequences": 2}, {"do_sample": True, "temperature": 1.3}], ids=str
)
@pytest.mark.parametrize("variant", ["crt", "rotary, pre-norm, separate heads", "stacked SwiGLU"])
def test_generate_says_the_same_with_a_cache_and_without(variant: str, asked: dict[str, Any]) -> None:
    model = model_of(variant)
    ids, mask = left_padded([6, 2, 5])
    said = []
    for use_cache in (True, False):
        torch.manual_seed(1)
        given = {**GREEDY, "max_new_tokens": 12, "use_cache": use_cache, **asked}
        said.append(model.generate(ids, attention_mask=mask, **given))
    assert said[0].shape == (6 if "num_beams" in asked else 3, 18)
    assert torch.equal(*said)
    assert len(said[0][:, 6:].unique()) > 1


def test_each_token_costs_one_position_and_an_exit_costs_its_loops_only() -> None:
    model = model_of("crt")
    positions: list[int] = []
    model.model.core.block.register_forward_pre_hook(lambda _, inputs: positions.append(inputs[0].shape[1]))
    ids = torch.tensor([[4, 5, 6]])
    model.generate(ids, max_new_tokens=4, **GREEDY)
    assert positions == [3] * 3 + [1] * 9
    positions.clear()
    early = model.generate(ids, exit_after=1, max_new_tokens=4, **GREEDY)
    assert positions == [3, 1, 1, 1]
    with torch.no_grad():
        for length in range(3, 7):
            assert model(early[:, :length], exit_after=1).logits[0, -1].argmax() == early[0, length]


def test_the_cache_grows_by_what_is_stated_for_each_token() -> None:
    model = model_of("prelude, coda").float()
    ids = torch.randint(0, 11, (1, 12))
    cache = RecurraCache(model.config)
    sizes = []
    for place in range(12):
        with torch.no_grad():
            model(ids[:, place : place + 1], past_key_values=cache)
        sizes.append(cached_bytes(cache))
    assert {second - first for first, second in itertools.pairwise(sizes)} == {2 * (1 + 2 * 3 + 1) * 16 * 4}
    # One history for each cycle of each application, and none is longer than its dilation needs.
    assert [history.shape[1] for history in cache.histories] == [2, *([2, 4] * 8)]
    prompt = RecurraCache(model.config)
    in_pieces(model, ids, None, [12], prompt)
    assert cached_bytes(prompt) == cached_bytes(cache)
    assert all(history.untyped_storage().nbytes() == history.nbytes for history in prompt.histories)


def test_rows_of_a_cache_can_be_chosen_repeated_and_forgotten() -> None:
    model = model_of("crt")
    ids = torch.randint(0, 11, (3, 10), generator=torch.Generator().manual_seed(0))
    whole = model(ids).logits.detach()
    for method, argument, rows in (
        ("reorder_cache", torch.tensor([2, 0, 0]), [2, 0, 0]),
        ("batch_select_indices", torch.tensor([1, 2]), [1, 2]),
        ("batch_repeat_interleave", 2, [0, 0, 1, 1, 2, 2]),
    ):
        cache = RecurraCache(model.config)
        in_pieces(model, ids[:, :9], None, [9], cache)
        getattr(cache, method)(argument)
        with torch.no_grad():
            after = model(ids[rows, 9:], past_key_values=cache).logits[:, 0]
        torch.testing.assert_close(after, whole[rows, 9], **TOLERANCE)
    cache.reset()
    assert cache.get_seq_length() == cached_bytes(cache) == 0
    torch.testing.assert_close(in_pieces(model, ids, None, [10], cache), whole, **TOLERANCE)
    with pytest.raises(ConfigurationError, match="cannot take 2 tokens out of the cache"):
        cache.crop(-2)


@pytest.mark.parametrize(
    ("tokens", "asked", "said"),
    [
        (32, {}, "a prompt has 32 tokens; allowed: 1 to 31"),
        (30, {"max_new_tokens": 5}, "an input has 33 tokens; this model takes at most 32"),
        (4, {"exit_after": 5}, "there is no head after recurrence 5; allowed for this model: 1, 2"),
        (4, {"cache_implementation": "static"}, "'cache_implementation' is 'static'; allowed: none"),
        (4, {CACHE: DynamicCache()}, "convolutions need a RecurraCache"),
    ],
)
def test_bad_requests_are_one_clear_line(tokens: int, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        language_model().generate(torch.ones(1, tokens, dtype=torch.long), **{**GREEDY, "max_new_tokens": 2, **asked})
    assert "\n" not in str(caught.value)


def test_a_cache_that_cannot_be_is_refused() -> None:
    encoder, model, swiglu = RecurraModel(language_config(causal=False)), language_model(), exiting_model("SwiGLU")
    ids = torch.ones(1, 3, dtype=torch.long)
    for call, said in (
        (lambda: encoder(ids, past_key_values=RecurraCache(encoder.config)), "an encoder has none"),
        (lambda: model(ids, row_lengths=torch.tensor([3]), use_cache=True), "packed rows have none"),
        (
            lambda: swiglu(ids[:, :1], past_key_values=DynamicCache(), exit_rule=ConfidenceRule()),
            "an exit rule came with a DynamicCache; give a RecurraCache",
        ),
    ):
        with pytest.raises(ConfigurationError, match=said):
            call()
    # It has two names in transformers.
    by_name = [model(ids, **{name: RecurraCache(model.config)}) for name in ("past_key_values", "cache")]
    assert torch.equal(by_name[0].logits, by_name[1].logits)
    assert [output[CACHE].get_seq_length() for output in by_name] == [3, 3]
    with pytest.raises(TypeError, match="unknown keyword 'cache'"):
        model(ids, past_key_values=RecurraCache(model.config), cache=RecurraCache(model.config))


LENGTHS = [9, 4, 7]


def exiting_model(variant: str) -> RecurraForCausalLM:
    shape = {"num_recurrences": 4, "exits": [1, 3], "max_position_embeddings": 64, **VARIANTS[variant]}
    return stirred_language_model(**shape, spread=0.4).double()


@torch.no_grad()
def middle_rule(model: RecurraForCausalLM, ids: Tensor) -> ConfidenceRule:
    """A threshold that some tokens reach at the first exit, some later, and some never."""
    sure = confidence(model(ids, output_exits=True).exit_logits[0])
    return ConfidenceRule.constant(float(sure.quantile(0.6)) * (1 - 1e-9))


@torch.no_grad()
def defined(model: RecurraForCausalLM, row: Tensor, rule: ExitRule, prompt: int) -> tuple[list[Tensor], list[int]]:
    weights = dict(model.named_parameters())
    plain = rule.plain()
    return decode(row.tolist(), weights, model.config, lambda said, at: stops(plain, said, at), prompt=prompt)


@pytest.mark.parametrize("variant", EXITING)
def test_each_row_of_a_batch_is_decoded_as_defined(variant: str) -> None:
    model = exiting_model(variant)
    ids, mask = left_padded(LENGTHS, seed=1)
    rule, cache = middle_rule(model, ids), RecurraCache(model.config)
    rows, logits, depths = list[int](), list[Tensor](), list[Tensor]()
    model.model.core.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    # Two tokens of the shortest row are left to be decoded one by one.
    for start, end in ((0, 7), (7, 8), (8, 9)):
        with torch.no_grad():
            output = model(ids[:, start:end], mask[:, :end], past_key_values=cache, exit_rule=rule, logits_to_keep=1)
        logits.append(output.logits[:, 0])
        depths.append(torch.full((3,), 4) if output.exited_after is None else output.exited_after)
    for row, length in enumerate(LENGTHS):
        wanted, deep = defined(model, ids[row, 9 - length :], rule, length - 2)
        torch.testing.assert_close(torch.stack(logits, 1)[row], torch.stack(wanted[-3:]), rtol=1e-4, atol=1e-5)
        assert torch.stack(depths, 1)[row].tolist() == [4, *deep[-2:]]
    assert rows == [3] * 4 + [
        int((step >= number).sum()) for step in depths[1:] for number in range(1, int(step.max()) + 1)
    ]


def test_greedy_generation_follows_the_definition_and_counts_what_was_taken() -> None:
    model = exiting_model("crt")
    rule = middle_rule(model, torch.randint(0, 11, (4, 12), generator=torch.Generator().manual_seed(0)))
    cache = RecurraCache(model.config)
    asked: dict[str, Any] = {**GREEDY, "max_new_tokens": 12, "exit_rule": rule}
    said = model.generate(torch.tensor([[3, 1, 4, 1]]), **asked, **{CACHE: cache})
    logits, depths = defined(model, said[0, :-1], rule, 4)
    assert said[0, 4:].tolist() == [int(each.argmax()) for each in logits[3:]]
    assert sorted(cache.exit_counts.elements()) == sorted(depths[4:])
    assert len(set(depths[4:])) > 1
    # Without a cache the last position decides for the row.
    ids, mask = left_padded(LENGTHS, seed=1)
    rows = model.generate(ids, attention_mask=mask, use_cache=False, **asked)
    seen = torch.cat((mask, torch.ones(3, 12, dtype=torch.long)), 1)
    with torch.no_grad():
        for place in (9, 13):
            output = model(rows[:, :place], seen[:, :place], exit_rule=rule, logits_to_keep=1)
            assert torch.equal(output.logits[:, -1].argmax(-1), rows[:, place])


STEPS = ["add", "inference", "reorder", "repeat", "select", "crop", "copy", "reset"]


def fresh_states(layer: Any, tokens: int) -> tuple[Tensor, Tensor]:
    batch = len(layer.keys) if layer.get_seq_length() else 2
    return torch.randn(batch, 3, tokens, 4), torch.randn(batch, 3, tokens, 5)


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(1, 40)), max_size=8))
def test_it_holds_what_the_stock_layer_holds(steps: list[tuple[str, int]]) -> None:
    torch.manual_seed(0)
    ours, stock = GrowingLayer(), DynamicLayer()
    for step, number in [("add", 3), *steps]:
        if step in ("add", "inference"):
            new = fresh_states(stock, number)
            with torch.inference_mode(step == "inference"):
                got, wanted = ours.update(*new), stock.update(*new)
            assert all(torch.equal(mine, theirs) for mine, theirs in zip(got, wanted, strict=True))
        elif step == "copy":
            ours = copy.deepcopy(ours)
        elif step == "reset":
            ours.reset()
            stock.reset()
        elif stock.get_seq_length() > number % 6:
            for layer in (ours, stock):
                change(layer, step, number % 6)
        assert ours.get_seq_length() == stock.get_seq_length()
        if stock.get_seq_length():
            assert torch.equal(ours.keys, stock.keys) and torch.equal(ours.values, stock.values)


def change(layer: Any, step: str, number: int) -> None:
    if step == "reorder":
        layer.reorder_cache(torch.arange(len(layer.keys)).flip(0))
    elif step == "repeat":
        layer.batch_repeat_interleave(2)
    elif step == "select":
        layer.batch_select_indices(torch.tensor([len(layer.keys) - 1, 0]))
    else:
        layer.crop(-number)


def test_a_token_is_written_behind_the_others_without_moving_them() -> None:
    layer = GrowingLayer()
    layer.update(*fresh_states(layer, 3))
    place = layer.keys.data_ptr()
    for _ in range(29):
        layer.update(*fresh_states(layer, 1))
        assert layer.keys.data_ptr() == place
    layer.update(*fresh_states(layer, 1))
    assert layer.keys.data_ptr() != place and layer.get_seq_length() == 33


def test_what_a_graph_remembers_is_not_written_into() -> None:
    layer = GrowingLayer()
    first, second = fresh_states(layer, 2)
    keys, _ = layer.update(first.requires_grad_(), second)
    product = (keys * keys).sum()
    layer.update(torch.ones(2, 3, 1, 4), torch.ones(2, 3, 1, 5))
    product.backward()
    assert torch.equal(first.grad, 2 * first)
