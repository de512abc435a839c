"""A BERT of a few thousand parameters with a tokenizer, as a folder of transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    shape = {
        "hidden_size": 16, "num_hidden_layers": layers, "num_attention_heads": 2, "intermediate_size": 24,
        "max_position_embeddings": 64, **sizes,
    }  # fmt: skip
    names = dict(enumerate(labels))
    own = {"id2label": names, "label2id": {name: number for number, name in names.items()}} if labels else {}

    def make(size: int) -> Any:
        config = BertConfig(**{"vocab_size": size, **shape, **own})
        return BertForSequenceClassification(config) if labels else BertModel(config, add_pooling_layer=False)

    return _write(folder, texts, make)


def _write(folder: Path, texts: Sequence[str], make: Callable[[int], Any]) -> Path:
    """Writes a model that is made for the size of its vocabulary."""
    tokenizer = as_transformers(wordpiece(train_wordpiece(list(texts), 200)))
    torch.manual_seed(0)
    make(len(tokenizer)).save_pretrained(folder)
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
    sizes = {} if kind == "distilbert" else {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    }  # fmt: skip
    shape = {"max_position_embeddings": 66, **sizes, **FOREIGN[kind]}
    return _write(folder, texts, lambda size: AutoModel.from_config(CONFIG_MAPPING[kind](vocab_size=size, **shape)))
