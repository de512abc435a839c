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

from references.refinement import normalise, refine

Weights = Mapping[str, Tensor]


def affine(vector: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """W x + b, or W x."""
    return weight @ vector if bias is None else weight @ vector + bias


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
    weight, bias = weights[f"{prefix}.qkv_proj.weight"], weights.get(f"{prefix}.qkv_proj.bias")
    thirds = [slice(part * width, (part + 1) * width) for part in range(3)]
    query, key, value = (
        [affine(state, weight[third], None if bias is None else bias[third]) for state in states] for third in thirds
    )

    def turn(vector: Tensor, position: int) -> Tensor:
        return rotate(vector, position, config.rope_theta) if config.position == "rotary" else vector

    outputs = []
    for position in range(len(states)):
        heads = []
        visible = range(position + 1) if config.causal else range(len(states))
        for head in range(config.num_attention_heads):
            part = slice(head * head_width, (head + 1) * head_width)
            turned = turn(query[position][part], position)
            scores = [turned @ turn(key[other][part], other) / math.sqrt(head_width) for other in visible]
            shares = softmax(scores)
            heads.append(sum(share * value[other][part] for share, other in zip(shares, visible, strict=True)))
        outputs.append(
            affine(torch.cat(heads), weights[f"{prefix}.out_proj.weight"], weights.get(f"{prefix}.out_proj.bias"))
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


def feed_forward(states: list[Tensor], weights: Weights, prefix: str, config: Any) -> list[Tensor]:
    """SwiGLU position by position, or cycles over the row."""
    if config.feed_forward == "swiglu":
        return [swiglu(state, weights, prefix) for state in states]
    return refine(states, config.num_cycles, weights, prefix, config)


def layer(states: list[Tensor], weights: Weights, prefix: str, config: Any) -> list[Tensor]:
    """Pre-norm: h' = h + MHA(Norm1(h)); out = h' + FFN(Norm2(h')). Post-norm: each norm after the sum instead."""

    def norm(vectors: list[Tensor], which: str) -> list[Tensor]:
        return [normalise(vector, weights, f"{prefix}.{which}_norm", config) for vector in vectors]

    def add(first: list[Tensor], second: list[Tensor]) -> list[Tensor]:
        return [one + other for one, other in zip(first, second, strict=True)]

    if config.norm_placement == "pre":
        states = add(states, attention(norm(states, "attention"), weights, f"{prefix}.attention", config))
        return add(states, feed_forward(norm(states, "feed_forward"), weights, f"{prefix}.feed_forward", config))
    states = norm(add(states, attention(states, weights, f"{prefix}.attention", config)), "attention")
    return norm(add(states, feed_forward(states, weights, f"{prefix}.feed_forward", config)), "feed_forward")


def embed(tokens: Sequence[int], types: Sequence[int] | None, weights: Weights, config: Any) -> list[Tensor]:
    """Token (mapped up if the table is narrow), refined, plus position and token type, then the norm."""
    states = [weights["embeddings.token.weight"][token] for token in tokens]
    if config.embedding_size not in (None, config.hidden_size):
        weight, bias = weights["embeddings.projection.weight"], weights["embeddings.projection.bias"]
        states = [affine(state, weight, bias) for state in states]
    states = refine(states, config.embedding_cycles, weights, "embeddings.refinement", config)
    if config.position == "learned":
        states = [state + weights["embeddings.position.weight"][place] for place, state in enumerate(states)]
    if config.type_vocab_size:
        kinds = [0] * len(tokens) if types is None else types
        states = [
            state + weights["embeddings.token_type.weight"][kind] for kind, state in zip(kinds, states, strict=True)
        ]
    if config.embedding_norm:
        states = [normalise(state, weights, "embeddings.norm", config) for state in states]
    return states


def of_recurrence(weights: Weights, recurrence: int) -> dict[str, Tensor]:
    """The core's weights as one recurrence has them: its own norms and biases, and W + B A in place of W."""
    found, prefix = dict(weights), f"core.recurrences.{recurrence}."
    for name, values in weights.items():
        shared = name.replace(prefix, "core.block.")
        if not name.startswith(prefix) or name.endswith(".down"):
            continue
        if name.endswith(".up"):
            matrix = f"{shared.removesuffix('.up')}.weight"
            found[matrix] = weights[matrix] + values @ weights[f"{name.removesuffix('up')}down"]
        else:
            found[shared] = values
    return found


def recur(states: list[Tensor], weights: Weights, config: Any) -> list[list[Tensor]]:
    """h(r+1) = F(h(r)) + alpha h(r) for every r; what F reads may carry the recurrence's vector and the first input."""
    first, after = states, []
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
            inputs = layer(inputs, of_recurrence(weights, recurrence), f"core.block.layers.{number}", config)
        states = [new + alpha * old for new, old in zip(inputs, states, strict=True)]
        after.append(states)
    return after


def recurrences_of(tokens: Sequence[int], config: Any) -> int:
    """All of them, or one for so many tokens beyond those that ask for none."""
    if config.tokens_without_recurrence is None:
        return config.num_recurrences
    counted = (len(tokens) - config.tokens_without_recurrence) // config.tokens_per_recurrence
    return min(max(counted, 1), config.num_recurrences)


def hidden_states(
    tokens: Sequence[int], types: Sequence[int] | None, weights: Weights, config: Any
) -> dict[int, Tensor]:
    """States ``(tokens, hidden)`` of one row without padding, after each exit's recurrence and after the last.

    Args:
        tokens: Ids of the real tokens.
        types: Their types, or none for type 0.
        weights: Parameters by the base model's names.
        config: Any object with the configuration's keys.
    """
    states = embed(tokens, types, weights, config)
    for number in range(config.num_prelude_layers):
        states = layer(states, weights, f"prelude.layers.{number}", config)
    after = dict(enumerate(recur(states, weights, config), start=1))
    last = after[recurrences_of(tokens, config)]
    for number in range(config.num_coda_layers):
        last = layer(last, weights, f"coda.layers.{number}", config)
    found = {exit_after: after[exit_after] for exit_after in config.exits} | {config.num_recurrences: last}
    if config.final_norm:
        found = {
            number: [normalise(state, weights, "final_norm", config) for state in states]
            for number, states in found.items()
        }
    return {number: torch.stack(states) for number, states in found.items()}


def head_name(number: int, config: Any, exits: str, final: str) -> str:
    """Name of the head that speaks after a recurrence."""
    if number == config.num_recurrences:
        return final
    return f"{exits}.{config.exits.index(number) if config.heads == 'separate' else 0}"


def read_of(states: Sequence[Tensor], pooling: str) -> Tensor:
    """What a classifier reads of a row's states, channel by channel where it is the largest."""
    if pooling == "max":
        channels = zip(*(state.unbind() for state in states), strict=True)
        return torch.stack([max(values, key=Tensor.item) for values in channels])
    return states[0 if pooling == "first" else -1]


def classify_exits(
    tokens: Sequence[int], types: Sequence[int] | None, weights: Weights, config: Any
) -> dict[int, Tensor]:
    """Logits ``(labels,)`` of one row at each exit and at the end, with the classifier's names of the parameters."""
    base = {name.removeprefix("model."): weight for name, weight in weights.items()}
    logits = {}
    for number, states in hidden_states(tokens, types, base, config).items():
        name = head_name(number, config, "exit_classifiers", "classifier")
        pooled = read_of(list(states), config.pooling)
        logits[number] = affine(pooled, weights[f"{name}.weight"], weights[f"{name}.bias"])
    return logits


def next_token_logits(tokens: Sequence[int], weights: Weights, config: Any) -> dict[int, Tensor]:
    """Logits ``(tokens, vocabulary)`` of one row at each exit and at the end, with the language model's names."""
    base = {name.removeprefix("model."): weight for name, weight in weights.items()}
    logits = {}
    for number, states in hidden_states(tokens, None, base, config).items():
        if config.heads == "tied":
            down = weights.get("heads.projection.weight")
            features = states if down is None else [down @ state for state in states]
            table = base["embeddings.token.weight"]
        else:
            features = states
            table = weights[f"{head_name(number, config, 'heads.exits', 'heads.final')}.weight"]
        logits[number] = torch.stack([table @ feature for feature in features])
    return logits


def language_loss(rows: Sequence[Sequence[int]], weights: Weights, config: Any) -> Tensor:
    """(1 - w) final + w mean of the exits, each the mean of -log p(next token) over all rows' tokens but the first."""
    sums: dict[int, Any] = {}
    count = sum(len(row) - 1 for row in rows)
    for row in rows:
        for number, logits in next_token_logits(row, weights, config).items():
            losses = [cross_entropy(logits[place], row[place + 1]) for place in range(len(row) - 1)]
            sums[number] = sums.get(number, 0) + sum(losses)
    return weigh({number: total / count for number, total in sums.items()}, config)


def weigh(losses: dict[int, Tensor], config: Any) -> Tensor:
    """(1 - w) final + w mean of the exits; without exits the final one."""
    final = losses.pop(config.num_recurrences)
    if not losses:
        return final
    weight = config.exit_loss_weight
    return (1 - weight) * final + weight * sum(losses.values()) / len(losses)


def cross_entropy(logits: Tensor, label: int) -> Tensor:
    """-log softmax(logits)[label]."""
    return -torch.log(softmax(list(logits))[label])
