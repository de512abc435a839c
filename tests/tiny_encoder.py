"""A BERT of a few thousand parameters with a tokenizer, as a folder of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModel, BertConfig, BertForSequenceClassification, BertModel

from recurra.data.tokenization import as_transformers, train_wordpiece, wordpiece

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


# Encoders of other families: what their configurations need besides sizes.
FOREIGN: dict[str, dict[str, Any]] = {
    "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24},
    "modernbert": {"global_attn_every_n_layers": 2, "local_attention": 8, "pad_token_id": 0, "cls_token_id": 2,
                   "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3},
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False},
    "deberta-v2": {"relative_attention": True, "position_buckets": 8, "pos_att_type": ["c2p", "p2c"],
                   "share_att_key": True, "norm_rel_ebd": "layer_norm"},
    "mpnet": {"pad_token_id": 0},
    "electra": {"embedding_size": 8},
    "albert": {"embedding_size": 8},
}  # fmt: skip


def write_foreign_encoder(folder: Path, kind: str, texts: Sequence[str] = TEXTS) -> Path:
    """Writes an encoder of another family with its tokenizer, as transformers does."""
    tokenizer = as_transformers(wordpiece(train_wordpiece(list(texts), 200)))
    sizes = {} if kind == "distilbert" else {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    }  # fmt: skip
    shape = {"vocab_size": len(tokenizer), "max_position_embeddings": 66, **sizes, **FOREIGN[kind]}
    torch.manual_seed(0)
    AutoModel.from_config(CONFIG_MAPPING[kind](**shape)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
