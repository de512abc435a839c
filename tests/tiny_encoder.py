"""A BERT of a few thousand parameters with a tokenizer, as a folder of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel

from recurra.data.vocabulary import as_transformers, train_wordpiece, wordpiece

TEXTS = ["a good film", "a bad film", "the plot is dull", "the plot is bright", "no idea what this is", "fine, good"]


def write_tiny_encoder(
    folder: Path, texts: Sequence[str] = TEXTS, *, labels: Sequence[str] = (), layers: int = 4, **sizes: Any
) -> Path:
    """Writes one as it is before any training; with labels it has a classifier on top."""
    tokenizer = as_transformers(wordpiece(train_wordpiece(list(texts), 200)))
    shape: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 16,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 64,
        **sizes,
    }
    torch.manual_seed(0)
    if labels:
        names = dict(enumerate(labels))
        model: Any = BertForSequenceClassification(
            BertConfig(**shape, id2label=names, label2id={name: index for index, name in names.items()})
        )
    else:
        model = BertModel(BertConfig(**shape), add_pooling_layer=False)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
