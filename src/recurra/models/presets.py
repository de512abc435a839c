"""Presets by name, and what a configuration counts: parameters, operations, sizes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

import torch

from recurra.core.errors import ConfigurationError, unknown
from recurra.models.configuration import RecurraConfig
from recurra.models.names import GELU, LANGUAGE_PRESETS, PRESETS


def preset(name: str, *, num_labels: int = 2, **overrides: Any) -> RecurraConfig:
    """Returns the configuration of a preset."""
    entry = PRESETS.get(name) or LANGUAGE_PRESETS.get(name)
    if entry is None:
        raise ConfigurationError(unknown("model preset", name, [*PRESETS, *LANGUAGE_PRESETS]))
    return RecurraConfig(**{**entry[1], "num_labels": num_labels, **overrides})


MIB = 2**20


class HeadKind(StrEnum):
    """The kind of head on top of the model."""

    CLASSIFICATION = "classification"
    LANGUAGE_MODELLING = "language modelling"


@dataclass(frozen=True)
class Parameters:
    """Parameters by part. ``core`` is counted once, however often it is applied."""

    embeddings: int
    prelude: int
    core: int
    coda: int
    final_norm: int
    head: int

    @property
    def total(self) -> int:
        """All parameters."""
        return self.embeddings + self.non_embedding

    @property
    def non_embedding(self) -> int:
        """All but the embeddings (tables, factorisation, refinement, embedding norm)."""
        return self.prelude + self.core + self.coda + self.final_norm + self.head

    def size_mib(self, bytes_each: int = 4) -> float:
        """Size of the bare weights in MiB."""
        return self.total * bytes_each / MIB


def count_parameters(config: Any, task: HeadKind = HeadKind.CLASSIFICATION) -> Parameters:
    """Counts the parameters of a configuration's model by part; the model is built without memory."""
    if not isinstance(config, RecurraConfig):
        return config.count_parameters()
    # This import takes twice as long as all others here, and planning a study counts only operations.
    from recurra.models.language_modeling import RecurraForCausalLM
    from recurra.models.modeling import RecurraForSequenceClassification

    kind = RecurraForCausalLM if task == HeadKind.LANGUAGE_MODELLING else RecurraForSequenceClassification
    with torch.device("meta"):
        model = kind(config)
    counts = dict.fromkeys((field.name for field in fields(Parameters)), 0)
    for name, weight in model.named_parameters():
        part = name.split(".")[1] if name.startswith("model.") else "head"
        counts[part] += weight.numel()
    return Parameters(**counts)


def _feed_forward_maps(config: RecurraConfig) -> list[tuple[int, int]]:
    """Inputs and outputs of the linear maps of a layer's feed-forward part; SwiGLU's gate and its map up are one."""
    width, inner = config.hidden_size, config.intermediate_size
    if not config.has_cycles:
        return [(width, inner if config.feed_forward == GELU else 2 * inner), (inner, width)]
    pointwise = [(width, width)] if config.feed_forward in ("conv+linear", "conv") else []
    perceptron = [(width, inner), (inner, width)] if config.feed_forward != "conv" else []
    return config.num_cycles * (pointwise + perceptron)


def _feed_forward_flops(config: RecurraConfig) -> int:
    """Operations of a layer's feed-forward part at one position."""
    depthwise = config.num_cycles * config.kernel_size * config.hidden_size if config.has_convolution else 0
    return 2 * (depthwise + sum(inputs * outputs for inputs, outputs in _feed_forward_maps(config)))


def _layer_flops(config: RecurraConfig, tokens: int, positions: int) -> float:
    """Operations of a layer over a sequence of which it computes the first ``positions``."""
    width = config.hidden_size
    # A convolution reads neighbours, so all positions are computed and some dropped afterwards.
    queries = tokens if config.has_convolution else positions
    pairs = queries * (queries + 1) / 2 if config.causal else queries * tokens
    products = 2 * (2 * tokens + 2 * queries) * width * width
    return products + queries * _feed_forward_flops(config) + 4 * width * pairs


def _update_flops(config: RecurraConfig, tokens: int, positions: int) -> int:
    """Operations of a layer's low-rank updates over a sequence of which it computes the first ``positions``."""
    width, queries = config.hidden_size, tokens if config.has_convolution else positions
    attention = feed_forward = 0
    if config.low_rank_where != "feed-forward":
        # Queries of some positions, keys and values of all, then the map out; or one map in, if of all positions.
        attention = (4 * queries + 3 * tokens if queries < tokens else 6 * tokens) * width
    if config.low_rank_where != "attention":
        feed_forward = queries * sum(inputs + outputs for inputs, outputs in _feed_forward_maps(config))
    return 2 * config.low_rank * (attention + feed_forward)


def _body_flops(config: RecurraConfig, tokens: int, positions: int) -> float:
    """Operations of everything below the heads."""
    width, table, recurrences = config.hidden_size, config.token_embedding_size, config.num_recurrences
    total = (config.num_hidden_layers - 1) * _layer_flops(config, tokens, tokens)
    total += _layer_flops(config, tokens, positions)
    if config.low_rank:
        whole, last = _update_flops(config, tokens, tokens), _update_flops(config, tokens, positions)
        total += config.num_core_layers * recurrences * whole - (0 if config.num_coda_layers else whole - last)
    total += tokens * config.embedding_cycles * _feed_forward_flops(config) // config.num_cycles
    if table != width:
        total += 2 * tokens * table * width
    if config.input_injection == "concat":
        total += recurrences * 2 * tokens * 2 * width * width
    return total


def forward_flops(config: Any, tokens: int) -> float:
    """Floating-point operations of a classifier's forward pass over one sequence, counting what its last layer runs."""
    if not isinstance(config, RecurraConfig):
        return config.forward_flops(tokens)
    positions = 1 if config.pooling == "first" else tokens
    heads = 2 * config.hidden_size * config.num_labels * (1 + len(config.exits))
    return float(_body_flops(config, tokens, positions) + heads)


def language_flops(config: RecurraConfig, tokens: int, *, with_exits: bool = False) -> float:
    """Floating-point operations of a language model's forward pass over one sequence, with every position's logits."""
    width, table = config.hidden_size, config.token_embedding_size
    tied = config.heads == "tied"
    head = 2 * (table if tied else width) * config.vocab_size + (2 * width * table if tied and table != width else 0)
    heads = 1 + (len(config.exits) if with_exits else 0)
    return float(_body_flops(config, tokens, tokens) + heads * tokens * head)


def flops_per_token(config: Any, tokens: int, task: HeadKind = HeadKind.CLASSIFICATION) -> float:
    """Operations a token of a forward pass over a sequence of ``tokens`` tokens, as executed."""
    whole = forward_flops if task == HeadKind.CLASSIFICATION else language_flops
    return whole(config, tokens) / tokens


def describe_presets() -> list[dict[str, Any]]:
    """Describes all presets, with two labels, as plain JSON values; operations are for sequences of 128 tokens."""
    result = []
    entries = [(HeadKind.CLASSIFICATION, item) for item in PRESETS.items()]
    entries += [(HeadKind.LANGUAGE_MODELLING, item) for item in LANGUAGE_PRESETS.items()]
    for task, (name, (description, shape)) in entries:
        config = preset(name, num_labels=2)
        counts = count_parameters(config, task)
        result.append(
            {
                "name": name,
                "task": str(task),
                "description": description,
                "parameters": {
                    "total": counts.total,
                    "embeddings": counts.embeddings,
                    "non_embedding": counts.non_embedding,
                    "parts": asdict(counts),
                },
                "flops_per_token": flops_per_token(config, 128, task),
                "size_mib": {"fp32": counts.size_mib(), "half": counts.size_mib(2)},
                "vocab_size": config.vocab_size,
                "num_labels": 2,
                "tokens": 128,
                "configuration": shape,
            }
        )
    return result
