"""Samples of running text in the Trainer of transformers and in ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from recurra.data.language.preparation import LanguageCollator, LineSamples
from recurra.data.language.tokenization import EncodedText

VOCABULARY, CONTEXT = 11, 12


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    shape = {"vocab_size": VOCABULARY, "n_positions": CONTEXT, "n_embd": 16, "n_layer": 1, "n_head": 2}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**shape, **dropout, bos_token_id=0, eos_token_id=0))


def counting(texts: int = 48) -> EncodedText:
    """Texts that count upwards from any number: the next token follows from the last, no token is rarer than others."""
    dice = np.random.default_rng(0)
    pieces = [(np.arange(dice.integers(2, 14)) + dice.integers(0, 10)) % 10 + 1 for _ in range(texts)]
    offsets = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])]).astype(np.int64)
    return EncodedText(np.concatenate(pieces).astype(np.int32), offsets, 0, words=1, num_bytes=1)


def arguments(folder: Path, **values: Any) -> TrainingArguments:
    quiet = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no", "use_cpu": True}
    return TrainingArguments(output_dir=str(folder), **quiet, **values)


def test_accumulated_batches_give_the_gradient_of_one_large_one(tmp_path: Path) -> None:
    # Lines differ in length, so that a mean of the batches' means would be another number.
    samples = LineSamples(counting(8), CONTEXT)
    weights = []
    for size, steps in ((8, 1), (2, 4)):
        model = gpt2()
        settings = arguments(
            tmp_path,
            max_steps=1,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=steps,
            learning_rate=1.0,
            lr_scheduler_type="constant",
            optim="sgd",
            max_grad_norm=0.0,
        )
        collator = LanguageCollator(0, CONTEXT)
        Trainer(model=model, args=settings, train_dataset=samples, data_collator=collator).train()
        weights.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    model = gpt2()
    batch = LanguageCollator(0, CONTEXT)(list(samples))
    model(**batch).loss.backward()
    expected = torch.cat([(parameter - parameter.grad).detach().flatten() for parameter in model.parameters()])
    start = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert (expected - start).norm() > 0.1
    for found in weights:
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)
