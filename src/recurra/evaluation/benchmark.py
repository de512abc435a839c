"""Times models side by side: a run or a preset, and what it is held against, for instance BERT of equal shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import BertConfig

from recurra.core.record import LatencyRecord
from recurra.data.batching import sorted_batches
from recurra.evaluation.latency import measure_side_by_side, synchroniser
from recurra.models.configuration import RecurraConfig
from recurra.models.inference import PRECISIONS, default_device

Inputs = dict[str, torch.Tensor]


def bert_of_equal_shape(config: RecurraConfig) -> BertConfig:
    """The configuration of a BERT with the same width, heads and inner width, and a layer for each layer application."""
    return BertConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        max_position_embeddings=config.max_position_embeddings,
        hidden_dropout_prob=config.hidden_dropout,
        attention_probs_dropout_prob=config.hidden_dropout,
        num_labels=config.num_labels,
        pad_token_id=config.pad_token_id or 0,
    )


def inputs_of_lengths(lengths: Sequence[int], batch_size: int, *, vocab_size: int, seed: int = 0) -> list[Inputs]:
    """Makes batches of random tokens, rows of like length together, padded to the longest of each batch.

    Args:
        lengths: Tokens of each row.
        batch_size: Rows a batch.
        vocab_size: Ids are drawn below it.
        seed: Of the ids.

    Returns:
        For each batch ``input_ids`` and ``attention_mask``, int64, ``(batch, tokens)``.
    """
    dice = np.random.default_rng(seed)
    counts = np.asarray(lengths, dtype=np.int64)
    batches = []
    for rows in sorted_batches(counts, batch_size):
        keep = np.arange(counts[rows].max()) < counts[rows][:, None]
        ids = np.where(keep, dice.integers(0, vocab_size, keep.shape), 0)
        batches.append({"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(keep.astype(np.int64))})
    return batches


def time_models(
    models: Mapping[str, torch.nn.Module], lengths: Sequence[int], *, batch_size: int, precision: str, vocab_size: int
) -> dict[str, LatencyRecord]:
    """Times forward passes of several classifiers over the same rows, batch by batch in turns.

    Args:
        models: By name; each takes ``input_ids`` and ``attention_mask``. Converted in place to ``precision``.
        lengths: Tokens of each row.
        batch_size: Rows a batch.
        precision: ``fp32``, ``bf16`` or ``fp16``, for all.
        vocab_size: Ids are drawn below it; the smallest table of the models.
    """
    device = default_device()
    batches = [
        {name: tensor.to(device) for name, tensor in batch.items()}
        for batch in inputs_of_lengths(lengths, batch_size, vocab_size=vocab_size)
    ]
    calls = {
        name: _forward(model.to(device=device, dtype=PRECISIONS[precision]).eval()) for name, model in models.items()
    }
    return measure_side_by_side(
        calls,
        batches,
        synchronise=synchroniser(str(device)),
        threads=torch.get_num_threads(),
        precision=precision,
        device=str(device),
    )


def _forward(model: torch.nn.Module) -> Any:
    @torch.inference_mode()
    def call(batch: Inputs) -> None:
        model(**batch)

    return call
