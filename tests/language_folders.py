"""Folders with tiny language models and a tokenizer, as a run has them; shared by tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from recurra import RecurraForCausalLM, preset
from recurra.data.language.tokenization import as_language_tokenizer, train_byte_bpe
from recurra.models.quiet import quieten_libraries
from reviews import review_rows
from tiny import stir

# 256 bytes, end-of-text, and a few merges.
VOCABULARY = 300
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "embedding_size": 16, "intermediate_size": 48, "num_cycles": 2,
    "max_position_embeddings": 48, "num_recurrences": 3, "exits": [1, 2], "eos_token_id": 0,
}  # fmt: skip


def write_tokenizer(folder: Path, size: int = VOCABULARY) -> None:
    """Trains a small tokenizer and saves it."""
    tokenizer = train_byte_bpe([text for text, _ in review_rows(40)], size)
    as_language_tokenizer(tokenizer).save_pretrained(folder)


def write_language_model(folder: Path, seed: int = 0, **overrides: Any) -> RecurraForCausalLM:
    """Saves a small language model of ours with its tokenizer; its words are not sure, so that exits differ."""
    torch.manual_seed(seed)
    model = RecurraForCausalLM(preset("crt-tiny", **{**SHAPE, **overrides})).eval()
    stir(model, spread=0.15)
    quieten_libraries()
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return model


def write_gpt2(folder: Path) -> None:
    """Saves a small GPT-2 of transformers with a tokenizer."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=48, bos_token_id=0, eos_token_id=0
    )
    quieten_libraries()
    GPT2LMHeadModel(config).save_pretrained(folder)
    write_tokenizer(folder)
