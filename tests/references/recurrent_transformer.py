"""The model, written from the formulas alone: one row, one head, one position at a time.

Nothing of the library is used but the names of the weights and of the configuration's keys. A row is a list of tokens
without padding: what padding does to a batch is none of the formulas' business, so equality with a padded batch shows
that padding changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]


def rms_norm(vector: Tensor, scale: Tensor, epsilon: float) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon), times a learned scale."""
    mean_square = sum(value * value for value in vector) / len(vector)
    return vector / torch.sqrt(mean_square + epsilon) * scale


def affine(vector: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """W x + b."""
    return weight @ vector + bias


def rotate(vector: Tensor, position: int, theta: float) -> Tensor:
    """RoPE: pair (2i, 2i+1) turns by position * theta^(-2i / d)."""
    turned = []
    for pair in range(len(vector) // 2):
        angle = position * theta ** (-2 * pair / len(vector))
        first, second = vector[2 * pair], vector[2 * pair + 1]
        turned.append(first * math.cos(angle) - second * math.sin(angle))
        turned.append(first * math.sin(angle) + second * math.cos(angle))
    return torch.stack(turned)


def softmax(scores: Sequence[Tensor]) -> list[Tensor]:
    """exp(s_i) / sum_j exp(s_j)."""
    exponentials = [torch.exp(score - max(scores)) for score in scores]
    return [value / sum(exponentials) for value in exponentials]


def attention(states: list[Tensor], weights: Weights, prefix: str, config: Any) -> list[Tensor]:
    """Multi-head self-attention over one row."""
    width = config.hidden_size
    head_width = width // config.num_attention_heads
    weight, bias = weights[f"{prefix}.qkv_proj.weight"], weights[f"{prefix}.qkv_proj.bias"]
    thirds = [slice(part * width, (part + 1) * width) for part in range(3)]
    query, key, value = ([affine(state, weight[third], bias[third]) for state in states] for third in thirds)
    outputs = []
    for position in range(len(states)):
        heads = []
        visible = range(position + 1) if config.causal else range(len(states))
        for head in range(config.num_attention_heads):
            part = slice(head * head_width, (head + 1) * head_width)
            turned = rotate(query[position][part], position, config.rope_theta)
            scores = [
                turned @ rotate(key[other][part], other, config.rope_theta) / math.sqrt(head_width) for other in visible
            ]
            shares = softmax(scores)
            heads.append(sum(share * value[other][part] for share, other in zip(shares, visible, strict=True)))
        outputs.append(
            affine(torch.cat(heads), weights[f"{prefix}.out_proj.weight"], weights[f"{prefix}.out_proj.bias"])
        )
    return outputs


def swiglu(vector: Tensor, weights: Weights, prefix: str) -> Tensor:
    """W3 (SiLU(W1 x) * W2 x)."""
    both, bias = weights[f"{prefix}.gate_up_proj.weight"], weights[f"{prefix}.gate_up_proj.bias"]
    inner = len(both) // 2
    gate = affine(vector, both[:inner], bias[:inner])
    up = affine(vector, both[inner:], bias[inner:])
    silu = gate / (1 + torch.exp(-gate))
    return affine(silu * up, weights[f"{prefix}.down_proj.weight"], weights[f"{prefix}.down_proj.bias"])


def layer(states: list[Tensor], weights: Weights, prefix: str, config: Any) -> list[Tensor]:
    """h' = h + MHA(Norm1(h)); out = h' + FFN(Norm2(h'))."""
    epsilon = config.rms_norm_eps
    normed = [rms_norm(state, weights[f"{prefix}.attention_norm.weight"], epsilon) for state in states]
    attended = attention(normed, weights, f"{prefix}.attention", config)
    middle = [state + change for state, change in zip(states, attended, strict=True)]
    scale = weights[f"{prefix}.feed_forward_norm.weight"]
    return [state + swiglu(rms_norm(state, scale, epsilon), weights, f"{prefix}.feed_forward") for state in middle]


def embed(tokens: Sequence[int], types: Sequence[int] | None, weights: Weights, config: Any) -> list[Tensor]:
    """Token (mapped up if the table is narrow) plus token type, then the norm."""
    states = []
    for position, token in enumerate(tokens):
        state = weights["embeddings.token.weight"][token]
        if config.embedding_size not in (None, config.hidden_size):
            state = affine(state, weights["embeddings.projection.weight"], weights["embeddings.projection.bias"])
        if config.type_vocab_size:
            state = state + weights["embeddings.token_type.weight"][0 if types is None else types[position]]
        states.append(rms_norm(state, weights["embeddings.norm.weight"], config.rms_norm_eps))
    return states


def recur(states: list[Tensor], weights: Weights, config: Any) -> list[Tensor]:
    """h(r+1) = F(h(r)) + alpha h(r); what F reads may carry the recurrence's vector and the first input."""
    first = states
    alpha = weights["core.residual_scale"][0] if config.learned_residual_scale else config.residual_scale
    for recurrence in range(config.num_recurrences):
        inputs = states
        if config.input_injection == "concat":
            weight, bias = weights["core.adapter.weight"], weights["core.adapter.bias"]
            inputs = [affine(torch.cat([now, start]), weight, bias) for now, start in zip(states, first, strict=True)]
        elif config.input_injection == "add" and recurrence > 0:
            inputs = [now + start for now, start in zip(states, first, strict=True)]
        if config.recurrence_embedding:
            inputs = [state + weights["core.recurrence_embedding.weight"][recurrence] for state in inputs]
        for number in range(config.num_core_layers):
            inputs = layer(inputs, weights, f"core.block.layers.{number}", config)
        states = [new + alpha * old for new, old in zip(inputs, states, strict=True)]
    return states


def hidden_states(tokens: Sequence[int], types: Sequence[int] | None, weights: Weights, config: Any) -> Tensor:
    """States ``(tokens, hidden)`` of one row without padding.

    Args:
        tokens: Ids of the real tokens.
        types: Their types, or none for type 0.
        weights: Parameters by the base model's names.
        config: Any object with the configuration's keys.
    """
    states = embed(tokens, types, weights, config)
    for number in range(config.num_prelude_layers):
        states = layer(states, weights, f"prelude.layers.{number}", config)
    states = recur(states, weights, config)
    for number in range(config.num_coda_layers):
        states = layer(states, weights, f"coda.layers.{number}", config)
    if config.final_norm:
        states = [rms_norm(state, weights["final_norm.weight"], config.rms_norm_eps) for state in states]
    return torch.stack(states)


def classify(tokens: Sequence[int], types: Sequence[int] | None, weights: Weights, config: Any) -> Tensor:
    """Logits ``(labels,)`` of one row, with the classifier's names of the parameters."""
    base = {name.removeprefix("model."): weight for name, weight in weights.items()}
    states = hidden_states(tokens, types, base, config)
    pooled = states[0] if config.pooling == "first" else states[len(tokens) - 1]
    return affine(pooled, weights["classifier.weight"], weights["classifier.bias"])


def cross_entropy(logits: Tensor, label: int) -> Tensor:
    """-log softmax(logits)[label]."""
    return -torch.log(softmax(list(logits))[label])
