"""Decoding with drafts, with weights by columns, and with weights at the edge of what their types hold."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from extreme import EDITS, LARGEST, Edit, edited
from recurra.core.errors import ConfigurationError, RunError
from recurra.deployment.generation import GenerationSettings, Generator, LanguageModel, decoding
from recurra.evaluation.perplexity import score_texts
from recurra.models.cache import RecurraCache
from recurra.models.exits.rules import ConfidenceRule, FixedExit
from recurra.models.layers import Cycle, without_modules
from tiny import language_model, stir

CONTEXT, WORDS = 32, 11
DRAFTING: dict[str, dict[str, Any]] = {
    "convolutions": {"num_recurrences": 3, "exits": [1, 2]},
    "rotary, two layers": {
        "position": "rotary", "norm_placement": "pre", "feed_forward": "swiglu", "num_cycles": 1, "num_core_layers": 2,
        "num_recurrences": 3, "exits": [1, 2], "embedding_cycles": 0,
    },
}  # fmt: skip
ROWS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10]]


@dataclass
class Tokens:
    """What a generator asks of a tokenizer; no text ends unless the last one is a token that a model says."""

    eos_token_id: int

    def __len__(self) -> int:
        return WORDS


def varied(shape: str, seed: int = 0) -> Any:
    # Weights large enough that texts differ, and one head for all, so that some drafts hold.
    shape_of = {**DRAFTING[shape], "heads": "tied", "initializer_range": 0.6, "max_position_embeddings": 64}
    model = language_model(seed, **shape_of).eval()
    model.generation_config.eos_token_id = None
    return model


def on(model: Any, end: int = 0, **how: Any) -> Generator:
    tokenizer: Any = Tokens(end)
    return Generator(LanguageModel("model", model, tokenizer), GenerationSettings(**how))


@pytest.mark.parametrize("shape", DRAFTING)
@pytest.mark.parametrize("draft", [1, 2])
def test_the_text_is_that_of_plain_decoding_whatever_ends_it(shape: str, draft: int) -> None:
    drafted = accepted = 0
    for seed, end, most in ((1, 5, 12), (2, 7, 12), (3, 9, 12), (3, 9, 2), (3, 9, 1)):
        model = varied(shape, seed)
        plain = [on(model, end, max_new_tokens=most).extend([row])[0] for row in ROWS]
        generator = on(model, end, max_new_tokens=most, draft=draft)
        assert generator.extend(ROWS) == plain
        drafted, accepted = drafted + generator.figures.drafted, accepted + generator.figures.accepted
    # Some drafts hold and some do not, so both ways were gone.
    assert 0 < accepted < drafted


@pytest.mark.parametrize("shape", DRAFTING)
@pytest.mark.parametrize("held", [1, 2, 4])
@torch.inference_mode()
def test_a_cache_that_took_tokens_back_goes_on_as_if_they_had_never_been(shape: str, held: int) -> None:
    model, prompt, tokens = varied(shape), [1, 2, 3, 4], [5, 6, 7, 8]
    cache = RecurraCache(model.config)
    model(torch.tensor([prompt]), past_key_values=cache)
    cache.allow_taking_back()
    mark = cache.mark()
    for token in (9, 10):
        model(torch.tensor([[token]]), past_key_values=cache, exit_after=1)
    cache.restore(mark)
    model(torch.tensor([tokens]), past_key_values=cache)
    cache.keep(held, mark)
    assert cache.get_seq_length() == len(prompt) + held
    found = model(torch.tensor([[9]]), past_key_values=cache).logits[0, -1]
    torch.testing.assert_close(found, model(torch.tensor([[*prompt, *tokens[:held], 9]])).logits[0, -1])


def test_drafts_are_for_the_most_probable_tokens_alone_and_need_an_exit() -> None:
    for how in ({"temperature": 0.5}, {"num_beams": 2}, {"top_k": 3}):
        with pytest.raises(ConfigurationError, match="drafts always take the most probable token"):
            GenerationSettings(draft=1, **how)
    with pytest.raises(ConfigurationError, match="no head after recurrence 5"):
        on(varied("convolutions"), draft=5)


SHAPES: dict[str, tuple[dict[str, Any], bool]] = {
    "published": ({}, True),
    "another norm": ({"norm": "rms"}, False),
    "no convolution": ({"feed_forward": "linear"}, False),
    "no perceptron": ({"feed_forward": "conv"}, False),
    "no map between": ({"feed_forward": "depthwise"}, False),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_logits_are_those_of_the_modules(shape: str) -> None:
    keys, shortened = SHAPES[shape]
    model = language_model(0, **keys).eval()
    stir(model)
    cycles = [module for module in model.modules() if isinstance(module, Cycle)]
    assert all((without_modules(cycle) is not None) == shortened for cycle in cycles)
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    ids = torch.randint(0, model.config.vocab_size, (3, 9))

    @torch.inference_mode()
    def token_by_token() -> torch.Tensor:
        cache = RecurraCache(model.config)
        return torch.cat([model(ids[:, at : at + 1], past_key_values=cache).logits for at in range(9)], dim=1)

    expected = token_by_token()
    with torch.inference_mode(), decoding(model):
        assert not torch.backends.mkldnn.enabled
        torch.testing.assert_close(token_by_token(), expected, rtol=1e-5, atol=1e-6)
    assert torch.backends.mkldnn.enabled and not any(cycle.quick for cycle in cycles)
    assert all(torch.equal(weights[name], weight) for name, weight in model.state_dict().items())
    # It can still learn; and another type is left alone.
    model.train()(ids, labels=ids).loss.backward()
    with decoding(model.eval().to(torch.bfloat16)):
        assert torch.backends.mkldnn.enabled


TIED = {
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=60, n_embd=16, n_layer=1, n_head=2, eos_token_id=1)),
    "llama": lambda: LlamaForCausalLM(
        LlamaConfig(
            vocab_size=60, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
            tie_word_embeddings=True,
        )
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", TIED)
def test_a_model_whose_head_is_its_token_table_can_be_saved_afterwards(kind: str, tmp_path: Path) -> None:
    model = TIED[kind]().eval()
    ids = torch.randint(0, 60, (2, 5))
    with torch.inference_mode():
        expected = model(ids).logits
        with decoding(model):
            torch.testing.assert_close(model(ids).logits, expected)
    model.save_pretrained(tmp_path)
    with torch.inference_mode():
        torch.testing.assert_close(type(model).from_pretrained(tmp_path)(ids).logits, expected)


# Numbers at the edge of what their types hold: a figure is a number, or an error says so.
EXTREME = {
    "conv, learned positions": language_model(max_position_embeddings=CONTEXT),
    "rotary, pre-norm, separate heads": language_model(
        max_position_embeddings=CONTEXT, position="rotary", norm_placement="pre", final_norm=True, heads="separate"
    ),
}
for _model in EXTREME.values():
    stir(_model.eval())
WEIGHTS = {name: copy.deepcopy(model.state_dict()) for name, model in EXTREME.items()}
HOW: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"temperature": 1e-3, "top_p": 0.9},
    "beams": {"num_beams": 3},
    "early": {"rule": ConfidenceRule.constant(0.3)},
    "after 1": {"rule": FixedExit(1)},
    "drafted": {"draft": 1},
}


def with_weights(name: str, edits: list[Edit]) -> Any:
    """The model with tensors, or their first values, of another size."""
    EXTREME[name].load_state_dict(edited(WEIGHTS[name], edits))
    return EXTREME[name]


def or_error(compute: Callable[[], Any], words: str) -> Any:
    """What was computed; none if an error of ours said that it is no number."""
    try:
        return compute()
    except RunError as error:
        assert words in str(error)
        return None


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", EXTREME)
@settings(max_examples=15)
@given(edits=EDITS)
@example(edits=[(0, LARGEST, True)])
def test_with_any_weights_a_token_costs_a_number_alone_and_among_others(
    name: str, precision: str, edits: list[Edit]
) -> None:
    model = with_weights(name, edits)
    how: dict[str, Any] = {"context": CONTEXT, "batch_positions": 2 * CONTEXT, "precision": precision, "exits": True}

    def scored(rows: list[list[int]]) -> Any:
        texts = [np.array(row) for row in rows]
        return or_error(lambda: score_texts(model, texts, first_read=0, **how), "are not numbers")

    together, apart = scored(ROWS), [scored([row]) for row in ROWS]
    assert (together is None) == any(one is None for one in apart)
    for head, nats in (together or {}).items():
        assert (nats >= 0).all()
        alone = np.concatenate([one[head] for one in apart])
        finite = np.isfinite(nats)
        assert np.array_equal(finite, np.isfinite(alone))
        bound = {"fp32": 1e-5, "bf16": 2e-2}[precision] * max(1.0, nats[finite].max(initial=0))
        assert np.abs(nats[finite] - alone[finite]).max(initial=0) <= bound


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", EXTREME)
@settings(max_examples=8)
@given(edits=EDITS)
@example(edits=[(0, LARGEST, True)])
@example(edits=[(10781, LARGEST, False)])
@example(edits=[(place, math.nan, True) for place in range(100)])
def test_with_any_weights_a_text_goes_on_in_tokens_or_an_error_says_so(name: str, how: str, edits: list[Edit]) -> None:
    generator = on(with_weights(name, edits), max_new_tokens=4, **HOW[how])
    found = or_error(lambda: generator.extend(ROWS), "scores that are not numbers")
    if found is not None:
        assert all(0 <= token < WORDS for row in found for token in row)
        # No text is made of what is no number.
        assert not any(math.isnan(size) for _, size, _ in edits)


@pytest.mark.parametrize("name", EXTREME)
def test_a_text_of_100_000_tokens_is_scored_in_windows(name: str) -> None:
    model = with_weights(name, [])
    long = np.random.default_rng(0).integers(1, WORDS, 100_000)
    short = long[: 3 * CONTEXT]
    nats = score_texts(model, [long, short], first_read=0, context=CONTEXT)["final"]
    assert len(nats) == len(long) + len(short) and np.isfinite(nats).all()
    np.testing.assert_allclose(nats[: len(short)], nats[len(long) :], rtol=1e-5)
