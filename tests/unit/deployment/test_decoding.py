"""Decoding with weights by columns and without the calls of modules: the same numbers, and a model as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from recurra.deployment.generation import decoding
from recurra.models.cache import RecurraCache
from recurra.models.layers import Cycle, without_modules
from tiny import language_model

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
