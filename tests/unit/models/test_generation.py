"""Generation with a cache says what generation without one says, alone and in padded batches."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from recurra import RecurraForCausalLM, RecurraModel
from recurra.core.errors import ConfigurationError
from recurra.models.cache import RecurraCache, growth_bytes_per_token
from relaxed import RELAXED
from tiny import cached_bytes, language_config, language_model, stir

CRT: dict[str, Any] = {"num_recurrences": 3, "exits": [1, 2], "max_position_embeddings": 64}
STACKED: dict[str, Any] = {
    "feed_forward": "swiglu", "num_cycles": 1, "embedding_cycles": 0, "norm": "rms", "norm_placement": "pre",
    "position": "rotary", "num_recurrences": 1, "num_core_layers": 2, "exits": [], "recurrence_embedding": False,
    "max_position_embeddings": 64,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "crt": CRT,
    "tied heads": {**CRT, "heads": "tied"},
    "conv": {**CRT, "feed_forward": "conv"},
    "linear": {**CRT, "feed_forward": "linear"},
    "depthwise, kernel 4": {**CRT, "feed_forward": "depthwise", "kernel_size": 4},
    "kernel 1": {**CRT, "kernel_size": 1},
    "rotary, pre-norm": {**CRT, "position": "rotary", "norm_placement": "pre", "final_norm": True},
    "two layers, prelude": {**CRT, "num_core_layers": 2, "num_prelude_layers": 1},
    "coda, injection, scale": {
        **CRT, "exits": [], "num_coda_layers": 1, "input_injection": "add", "residual_scale": 0.5,
    },
    "relaxed": {**CRT, **RELAXED},
    "stacked SwiGLU": STACKED,
}  # fmt: skip
# Rotary models turn queries and keys in FP32 whatever the states' type.
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


def model_of(variant: str) -> RecurraForCausalLM:
    model = language_model(**VARIANTS[variant], hidden_size=16).double().eval()
    stir(model, spread=0.5)
    with torch.no_grad():
        # A shift of all states in one direction would make every model repeat one word.
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.zero_()
    return model


def left_padded(lengths: list[int], width: int, vocab_size: int = 11) -> tuple[Tensor, Tensor]:
    """Random ids, also under the mask, and a mask of rows that end together."""
    ids = torch.randint(0, vocab_size, (len(lengths), width), generator=torch.Generator().manual_seed(0))
    return ids, (torch.arange(width) >= width - torch.tensor(lengths)[:, None]).long()


@torch.no_grad()
def in_pieces(model: Any, ids: Tensor, mask: Tensor | None, pieces: list[int], cache: Any = None) -> Tensor:
    """Logits of pieces of the rows, each going on behind the last."""
    found, done = [], 0
    for size in pieces:
        done += size
        seen = None if mask is None else mask[:, :done]
        output = model(ids[:, done - size : done], seen, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        found.append(output.logits)
    assert cache.get_seq_length() == done
    return torch.cat(found, dim=1)


@pytest.mark.parametrize("padding", ["none", "a mask without gaps", "left"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_going_on_behind_a_cache_equals_starting_anew(variant: str, padding: str) -> None:
    model = model_of(variant)
    ids, mask = left_padded([24, 9, 2] if padding == "left" else [24, 24, 24], 24)
    given = None if padding == "none" else mask
    whole = model(ids, given).logits.detach()
    for pieces in ([24], [1] * 24, [7, 1, 1, 5, 10]):
        got = in_pieces(model, ids, given, pieces)
        torch.testing.assert_close(got[mask.bool()], whole[mask.bool()], **TOLERANCE)


@pytest.mark.parametrize("how", ["greedy", "beam", "sample"])
@pytest.mark.parametrize("variant", ["crt", "rotary, pre-norm", "stacked SwiGLU"])
def test_generate_says_the_same_with_a_cache_and_without(variant: str, how: str) -> None:
    model = model_of(variant)
    ids, mask = left_padded([6, 2, 5], 6)
    asked: dict[str, Any] = {
        "greedy": {"do_sample": False},
        "beam": {"do_sample": False, "num_beams": 3, "num_return_sequences": 2},
        "sample": {"do_sample": True, "temperature": 1.3},
    }[how]
    said = []
    for use_cache in (True, False):
        torch.manual_seed(1)
        said.append(
            model.generate(ids, attention_mask=mask, max_new_tokens=20, use_cache=use_cache, pad_token_id=0, **asked)
        )
    assert said[0].shape == (6 if how == "beam" else 3, 26)
    assert torch.equal(*said)
    assert len(said[0][:, 6:].unique()) > 1


def test_each_token_costs_one_position_and_an_exit_costs_its_loops_only() -> None:
    model = model_of("crt")
    positions: list[int] = []
    model.model.core.block.register_forward_pre_hook(lambda _, inputs: positions.append(inputs[0].shape[1]))
    ids = torch.tensor([[4, 5, 6]])
    asked: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    model.generate(ids, **asked)
    assert positions == [3] * 3 + [1] * 9
    positions.clear()
    early = model.generate(ids, exit_after=1, **asked)
    assert positions == [3, 1, 1, 1]
    with torch.no_grad():
        for length in range(3, 7):
            assert model(early[:, :length], exit_after=1).logits[0, -1].argmax() == early[0, length]


def test_the_cache_grows_by_what_is_stated_for_each_token() -> None:
    model = model_of("two layers, prelude").float()
    ids = torch.randint(0, 11, (1, 12))
    cache = RecurraCache(model.config)
    sizes = []
    for place in range(12):
        with torch.no_grad():
            model(ids[:, place : place + 1], past_key_values=cache)
        sizes.append(cached_bytes(cache))
    steps = {second - first for first, second in itertools.pairwise(sizes)}
    assert steps == {growth_bytes_per_token(model.config)} == {2 * (1 + 2 * 3) * 16 * 4}
    # One history for each cycle of each application, and none is longer than its dilation needs.
    assert [history.shape[1] for history in cache.histories] == [2, *([2, 4] * 7)]
    prompt = RecurraCache(model.config)
    in_pieces(model, ids, None, [12], prompt)
    assert cached_bytes(prompt) == cached_bytes(cache)
    assert all(history.untyped_storage().nbytes() == history.nbytes for history in prompt.histories)


def test_rows_of_a_cache_can_be_chosen_repeated_and_forgotten() -> None:
    model = model_of("crt")
    ids = torch.randint(0, 11, (3, 10), generator=torch.Generator().manual_seed(0))
    whole = model(ids).logits.detach()

    def after(change: Any) -> Tensor:
        cache = RecurraCache(model.config)
        in_pieces(model, ids[:, :9], None, [9], cache)
        rows = change(cache)
        with torch.no_grad():
            return model(ids[rows, 9:], past_key_values=cache).logits[:, 0] - whole[rows, 9]

    def reordered(cache: RecurraCache) -> list[int]:
        cache.reorder_cache(torch.tensor([2, 0, 0]))
        return [2, 0, 0]

    def selected(cache: RecurraCache) -> list[int]:
        cache.batch_select_indices(torch.tensor([1, 2]))
        return [1, 2]

    def repeated(cache: RecurraCache) -> list[int]:
        cache.batch_repeat_interleave(2)
        return [0, 0, 1, 1, 2, 2]

    for change in (reordered, selected, repeated):
        assert after(change).abs().max() < 1e-5
    cache = RecurraCache(model.config)
    in_pieces(model, ids, None, [10], cache)
    cache.reset()
    assert cache.get_seq_length() == cached_bytes(cache) == 0
    torch.testing.assert_close(in_pieces(model, ids, None, [10], cache), whole, **TOLERANCE)
    with pytest.raises(ConfigurationError, match="cannot take 2 tokens out of the cache"):
        cache.crop(-2)


def test_a_model_without_convolutions_takes_the_stock_cache() -> None:
    model = model_of("stacked SwiGLU")
    ids, mask = left_padded([12, 4], 12)
    got = in_pieces(model, ids, mask, [5, 1, 6], DynamicCache())
    torch.testing.assert_close(got[mask.bool()], model(ids, mask).logits[mask.bool()].detach(), **TOLERANCE)


@pytest.mark.parametrize(
    ("tokens", "asked", "said"),
    [
        (0, {}, "a prompt has 0 tokens; allowed: 1 to 31"),
        (32, {}, "a prompt has 32 tokens; allowed: 1 to 31"),
        (30, {"max_new_tokens": 5}, "an input has 33 tokens; this model takes at most 32"),
        (4, {"exit_after": 5}, "there is no head after recurrence 5; allowed for this model: 1, 2"),
        (4, {"cache_implementation": "static"}, "'cache_implementation' is 'static'; allowed: none"),
        (4, {"past_key_values": DynamicCache()}, "convolutions need a RecurraCache"),
    ],
)
def test_bad_requests_are_one_clear_line(tokens: int, asked: dict[str, Any], said: str) -> None:
    model = language_model()
    with pytest.raises(ConfigurationError, match=said) as caught:
        ids = torch.ones(1, tokens, dtype=torch.long)
        model.generate(ids, **{"max_new_tokens": 2, "do_sample": False, "pad_token_id": 0, **asked})
    assert "\n" not in str(caught.value)


def test_encoders_and_packed_rows_have_no_cache() -> None:
    config = language_config(causal=False)
    ids = torch.ones(1, 3, dtype=torch.long)
    with pytest.raises(ConfigurationError, match="an encoder has none"):
        RecurraModel(config)(ids, past_key_values=RecurraCache(config))
    with pytest.raises(ConfigurationError, match="packed rows have none"):
        language_model()(ids, row_lengths=torch.tensor([3]), use_cache=True)
