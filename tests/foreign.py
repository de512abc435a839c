"""Tiny language models that are not ours, freshly initialised."""

from __future__ import annotations

from typing import Any

import torch
from transformers import BertConfig, BertLMHeadModel, GPT2Config, GPT2LMHeadModel


def tiny_gpt2(**values: Any) -> GPT2LMHeadModel:
    """A GPT-2 of a few thousand parameters with large weights, so that everything has an effect."""
    torch.manual_seed(0)
    shape = {"vocab_size": 40, "n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 0}
    config = GPT2Config(**{**shape, "eos_token_id": 0, "initializer_range": 0.4, **values})
    config._attn_implementation = "eager"
    return GPT2LMHeadModel(config)


def tiny_bert(*, is_decoder: bool) -> BertLMHeadModel:
    """A BERT with a language-model head; it is causal only as a decoder, and nothing stops who takes it for one."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=64, initializer_range=0.4, is_decoder=is_decoder,
    )  # fmt: skip
    return BertLMHeadModel(config)
