"""Decoding with drafts and with weights by columns: the text and the numbers of plain decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from recurra.core.errors import ConfigurationError
from recurra.deployment.generation import GenerationSettings, Generator, LanguageModel, decoding
from recurra.models.cache import RecurraCache
from recurra.models.layers import Cycle, without_modules
from tiny import language_model

WORDS = 11
DRAFTING: dict[str, dict[str, Any]] = {
    "convolutions": {"num_recurrences": 3, "exits": [1, 2]},
    "rotary, two layers": {
        "position": "rotary", "norm_placement": "pre", "feed_forward": "swiglu", "num_cycles": 1, "num_core_layers": 2,
        "num_recurrences": 3, "exits": [1, 2], "embedding_cycles": 0,
    },
}  # fmt: skip
ROWS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10]]


class Tokens:
    """What a generator asks of a tokenizer; no text ends unless ``end`` is a token that a model says."""

    def __init__(self, end: int) -> None:
        self.eos_token_id = end

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
    for seed, end, most in ((0, 0, 24), (1, 5, 24), (2, 7, 24), (3, 9, 24), (3, 9, 2), (3, 9, 1)):
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


@pytest.mark.parametrize("how", [{"temperature": 0.5}, {"num_beams": 2}, {"top_k": 3}])
def test_drafts_are_for_the_most_probable_tokens_alone(how: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="drafts always take the most probable token"):
        GenerationSettings(draft=1, **how)


def test_there_must_be_an_exit_that_drafts() -> None:
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
    # Fresh biases are zero, and norms scale by one.
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3)
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
    # It can still learn.
    model.train()(ids, labels=ids).loss.backward()


def test_other_types_are_left_alone() -> None:
    model = language_model(0).eval().to(torch.bfloat16)
    with decoding(model):
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
