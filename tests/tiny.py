"""Tiny models and rows, shared by tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recurra import RecurraConfig, RecurraForCausalLM, RecurraForSequenceClassification, preset
from recurra.data.encoding import EncodedSplit
from recurra.data.tokenization import as_transformers, train_wordpiece, wordpiece

SHAPE: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "num_core_layers": 2,
    "num_recurrences": 2, "max_position_embeddings": 64,
}  # fmt: skip


# Two rows, padded and end to end.
IDS = torch.tensor([[1, 4, 2, 7, 5], [3, 3, 9, 0, 0]])
MASK = (IDS > 0).long()
PACKED = {"input_ids": torch.tensor([[1, 4, 2, 7, 5, 3, 3, 9]]), "row_lengths": torch.tensor([5, 3])}


def tiny_config(**overrides: Any) -> RecurraConfig:
    """A configuration of a few thousand parameters."""
    return RecurraConfig(**{**SHAPE, **overrides})


def tiny_model(seed: int = 0, **overrides: Any) -> RecurraForSequenceClassification:
    """A classifier of a few thousand parameters, freshly initialised."""
    torch.manual_seed(seed)
    return RecurraForSequenceClassification(tiny_config(**overrides))


def stir(model: torch.nn.Module, seed: int = 0, spread: float = 0.3) -> None:
    """Gives every parameter a random value: fresh biases are 0 and norms 1, which would hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * spread
            parameter.copy_(values + (1.0 if "norm" in name else 0.0))


def stirred(*, spread: float = 0.3, **shape: Any) -> RecurraForSequenceClassification:
    """A classifier every parameter of which has a random value."""
    model = tiny_model(**shape).eval()
    stir(model, spread=spread)
    return model


def write_classifier(
    folder: Path, texts: Sequence[str], *, graph_length: int = 0, **shape: Any
) -> RecurraForSequenceClassification:
    """Writes a stirred model with a tokenizer of the texts; its graph too, if a length is given at which it cuts."""
    tokenizer = as_transformers(wordpiece(train_wordpiece(texts, 200)))
    model = stirred(vocab_size=len(tokenizer), max_position_embeddings=32, **shape)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    if graph_length:
        from recurra.deployment.export.build import save_tokenizer
        from recurra.deployment.onnx.model import write_onnx

        (folder / "onnx").mkdir()
        save_tokenizer(tokenizer, graph_length, folder / "onnx")
        write_onnx(model, "fp32", graph_length, folder / "onnx", {})
    return model


def tiny_split(rows: int = 48, seed: int = 0, vocab_size: int = 40, longest: int = 12) -> EncodedSplit:
    """Rows that can be learned: the label says whether the first word's id is in the upper half."""
    dice = np.random.default_rng(seed)
    lengths = dice.integers(3, longest + 1, rows)
    pieces = [dice.integers(3, vocab_size, length) for length in lengths]
    labels = np.array([int(piece[1] >= vocab_size // 2) for piece in pieces], dtype=np.int64)
    for piece in pieces:
        piece[0], piece[-1] = 1, 2
    return EncodedSplit(
        input_ids=np.concatenate(pieces).astype(np.int32),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        labels=labels,
    )


LANGUAGE_SHAPE: dict[str, Any] = {
    "vocab_size": 11, "hidden_size": 8, "embedding_size": 4, "num_attention_heads": 2, "intermediate_size": 6,
    "num_recurrences": 2, "num_cycles": 2, "dilations": [1, 2], "embedding_cycles": 1, "exits": [1],
    "max_position_embeddings": 32, "hidden_dropout": 0.0, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip


# What makes a plain stack of it.
STACKED: dict[str, Any] = {
    "feed_forward": "swiglu", "num_cycles": 1, "embedding_cycles": 0, "norm": "rms", "norm_placement": "pre",
    "position": "rotary", "num_recurrences": 1, "num_core_layers": 2, "exits": [], "recurrence_embedding": False,
}  # fmt: skip


def language_config(**overrides: Any) -> RecurraConfig:
    """A CRT-Deep of a thousand parameters."""
    return preset("crt-deep", **{**LANGUAGE_SHAPE, **overrides})


def language_model(seed: int = 0, **overrides: Any) -> RecurraForCausalLM:
    """A language model of a thousand parameters, freshly initialised."""
    torch.manual_seed(seed)
    return RecurraForCausalLM(language_config(**overrides))


def stirred_language_model(*, spread: float = 0.3, **shape: Any) -> RecurraForCausalLM:
    """A language model every parameter of which has a random value."""
    model = language_model(**shape).eval()
    stir(model, spread=spread)
    return model


def assert_same_gradients(
    model: torch.nn.Module, wanted: Mapping[str, torch.Tensor] | torch.nn.Module, **near: float
) -> None:
    """The gradient of every parameter is that of the tensor of its name; none is zero."""
    theirs = dict(wanted.named_parameters()) if isinstance(wanted, torch.nn.Module) else wanted
    for name, parameter in model.named_parameters():
        pair = [torch.zeros_like(parameter) if one.grad is None else one.grad for one in (parameter, theirs[name])]
        torch.testing.assert_close(*pair, **near, msg=lambda text, n=name: f"gradient of {n}: {text}")


def rows_of(lengths: list[int], vocab_size: int, seed: int = 3) -> list[list[int]]:
    """Rows of chance tokens, none of which is 0."""
    dice = torch.Generator().manual_seed(seed)
    return [torch.randint(1, vocab_size, (length,), generator=dice).tolist() for length in lengths]


def laid_out(rows: list[list[int]], layout: str = "right", fill: int = 2) -> dict[str, torch.Tensor]:
    """Rows ``packed`` end to end, or padded on one side with a token that also occurs in them."""
    if layout == "packed":
        lengths = torch.tensor([len(row) for row in rows])
        return {"input_ids": torch.tensor([[token for row in rows for token in row]]), "row_lengths": lengths}
    width = max(map(len, rows))
    both = [(row, [1] * len(row), width - len(row)) for row in rows]
    ids = [[fill] * gap + row if layout == "left" else row + [fill] * gap for row, _, gap in both]
    mask = [[0] * gap + ones if layout == "left" else ones + [0] * gap for _, ones, gap in both]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def cached_bytes(cache: Any) -> int:
    """Bytes of all states that a cache keeps, without what its buffers hold free for the next tokens."""
    kept = [part for layer in cache.layers if layer.is_initialized for part in (layer.keys, layer.values)]
    return sum(part.nbytes for part in (*kept, *cache.histories))


def tiny_protocol(**values: Any) -> Any:
    """A protocol without early stopping; tiny rows are 3 steps an epoch."""
    from recurra.training.protocols import ProtocolConfig

    settings = {"learning_rate": 5e-3, "batch_size": 16, "max_epochs": 3, "early_stopping_patience": 0}
    return ProtocolConfig(**{"name": "test", **settings, **values})


def train_quietly(
    folder: Path,
    model: Any,
    protocol: Any,
    train: EncodedSplit | None = None,
    selection: EncodedSplit | None = None,
    *,
    seed: int = 0,
    precision: str = "fp32",
    **options: Any,
) -> Any:
    """Trains a model in a folder, on tiny rows if no others are given; returns its record."""
    from recurra.core.progress import Reporter
    from recurra.training.fit import train_transformer

    return train_transformer(
        model, train or tiny_split(rows=48, seed=1), selection or tiny_split(rows=32, seed=2), protocol,
        folder=folder, seed=seed, precision=precision, reporter=Reporter(quiet=True), **options,
    )  # fmt: skip
