"""The model, written from the formulas alone: one row, one head, one position at a time.

Nothing of the library is used but the names of the weights and of the configuration's keys. A row is a list of tokens
without padding: what padding does to a batch is none of the formulas' business, so equality with a padded batch shows
that padding changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]


def affine(vector: Tensor, weights: Weights, prefix: str, rows: slice = slice(None)) -> Tensor:
    """W x + b, or W x without a bias, perhaps some rows of it alone."""
    product = weights[f"{prefix}.weight"][rows] @ vector
    return product + weights[f"{prefix}.bias"][rows] if f"{prefix}.bias" in weights else product


def gelu(vector: Tensor) -> Tensor:
    """x times the normal distribution function of x."""
    return vector * (1 + torch.erf(vector / 2**0.5)) / 2


def layer_norm(vector: Tensor, scale: Tensor, shift: Tensor, epsilon: float) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon), times a learned scale, plus a learned shift."""
    mean = sum(vector) / len(vector)
    variance = sum((value - mean) ** 2 for value in vector) / len(vector)
    return (vector - mean) / torch.sqrt(variance + epsilon) * scale + shift


def rms_norm(vector: Tensor, scale: Tensor, epsilon: float) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon), times a learned scale."""
    mean_square = sum(value * value for value in vector) / len(vector)
    return vector / torch.sqrt(mean_square + epsilon) * scale


def normalise(vector: Tensor, weights: Weights, prefix: str, config: Any) -> Tensor:
    """The configured norm."""
    if config.norm == "none":
        return vector
    if config.norm == "rms":
        return rms_norm(vector, weights[f"{prefix}.weight"], config.rms_norm_eps)
    return layer_norm(vector, weights[f"{prefix}.weight"], weights[f"{prefix}.bias"], config.rms_norm_eps)


def convolve(states: list[Tensor], taps: Tensor, dilation: int, *, causal: bool) -> list[Tensor]:
    """Depthwise: each channel is a weighted sum of itself at earlier (or earlier and later) positions."""
    results = []
    for position in range(len(states)):
        total = torch.zeros_like(states[0])
        for tap in range(len(taps)):
            back = len(taps) - 1 - tap if causal else len(taps) // 2 - tap
            source = position - back * dilation
            if 0 <= source < len(states):
                total = total + taps[tap] * states[source]
        results.append(total)
    return results


def cycle(states: list[Tensor], dilation: int, weights: Weights, prefix: str, config: Any) -> list[Tensor]:
    """h + MLP(Norm(Conv(h))), with what the variant has of it."""
    kind, mixed = config.feed_forward, states
    if kind != "linear":
        taps = weights[f"{prefix}.mixer.depthwise.weight"]
        mixed = [gelu(state) for state in convolve(states, taps, dilation, causal=config.causal_convolution)]
        if kind != "depthwise":
            mixed = [affine(state, weights, f"{prefix}.mixer.pointwise") for state in mixed]
    changes = normed(mixed, weights, f"{prefix}.norm", config)
    if kind != "conv":
        inner = [gelu(affine(state, weights, f"{prefix}.transform.up_proj")) for state in changes]
        changes = [affine(state, weights, f"{prefix}.transform.down_proj") for state in inner]
    return [state + change for state, change in zip(states, changes, strict=True)]


def refine(states: list[Tensor], num_cycles: int, weights: Weights, prefix: str, config: Any) -> list[Tensor]:
    """The cycles one after the other, with the dilations in turn."""
    for number in range(num_cycles):
        dilation = config.dilations[number % len(config.dilations)]
        states = cycle(states, dilation, weights, f"{prefix}.cycles.{number}", config)
    return states


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


def heads_of(state: Tensor, position: int, weights: Weights, prefix: str, config: Any) -> list[list[Tensor]]:
    """Query, key and value of one position, head by head; RoPE turns the first two."""
    width, heads, found = config.hidden_size, config.num_attention_heads, []
    for head in range(heads):
        starts = [third * width + head * width // heads for third in range(3)]
        parts = [affine(state, weights, f"{prefix}.qkv_proj", slice(start, start + width // heads)) for start in starts]
        if config.position == "rotary":
            parts[:2] = [rotate(part, position, config.rope_theta) for part in parts[:2]]
        found.append(parts)
    return found


def attend(own: list[list[Tensor]], seen: list[list[list[Tensor]]], weights: Weights, prefix: str) -> Tensor:
    """The output of one position, which sees these."""
    outputs = []
    for head, (query, _, _) in enumerate(own):
        shares = softmax([query @ other[head][1] / math.sqrt(len(query)) for other in seen])
        outputs.append(sum(share * other[head][2] for share, other in zip(shares, seen, strict=True)))
    return affine(torch.cat(outputs), weights, f"{prefix}.out_proj")


def attention(states: list[Tensor], weights: Weights, prefix: str, config: Any) -> list[Tensor]:
    """Multi-head self-attention over one row."""
    every = [heads_of(state, position, weights, prefix, config) for position, state in enumerate(states)]
    return [
        attend(own, every[: position + 1] if config.causal else every, weights, prefix)
        for position, own in enumerate(every)
    ]


def swiglu(vector: Tensor, weights: Weights, prefix: str) -> Tensor:
    """W3 (SiLU(W1 x) * W2 x)."""
    inner = len(weights[f"{prefix}.gate_up_proj.weight"]) // 2
    gate, up = (affine(vector, weights, f"{prefix}.gate_up_proj", part) for part in (slice(inner), slice(inner, None)))
    return affine(gate / (1 + torch.exp(-gate)) * up, weights, f"{prefix}.down_proj")


def feed_forward(states: list[Tensor], weights: Weights, prefix: str, config: Any) -> list[Tensor]:
    """SwiGLU position by position, or cycles over the row."""
    if config.feed_forward == "swiglu":
        return [swiglu(state, weights, prefix) for state in states]
    return refine(states, config.num_cycles, weights, prefix, config)


Branch = Callable[[list[Tensor], Weights, str, Any], list[Tensor]]


def layer(
    states: list[Tensor],
    weights: Weights,
    prefix: str,
    config: Any,
    mix: Branch = attention,
    feed: Branch = feed_forward,
) -> list[Tensor]:
    """Pre-norm: h' = h + MHA(Norm1(h)); out = h' + FFN(Norm2(h')). Post-norm: each norm after the sum instead."""
    for branch, name in ((mix, f"{prefix}.attention"), (feed, f"{prefix}.feed_forward")):
        before = normed(states, weights, f"{name}_norm", config) if config.norm_placement == "pre" else states
        changes = branch(before, weights, name, config)
        states = [state + change for state, change in zip(states, changes, strict=True)]
        if config.norm_placement == "post":
            states = normed(states, weights, f"{name}_norm", config)
    return states


def normed(states: list[Tensor], weights: Weights, prefix: str, config: Any) -> list[Tensor]:
    """The configured norm of each."""
    return [normalise(state, weights, prefix, config) for state in states]


def embed(tokens: Sequence[int], types: Sequence[int] | None, weights: Weights, config: Any) -> list[Tensor]:
    """Token (mapped up if the table is narrow), refined, plus position and token type, then the norm."""
    states = [weights["embeddings.token.weight"][token] for token in tokens]
    if config.embedding_size not in (None, config.hidden_size):
        states = [affine(state, weights, "embeddings.projection") for state in states]
    states = refine(states, config.embedding_cycles, weights, "embeddings.refinement", config)
    if config.position == "learned":
        states = [state + weights["embeddings.position.weight"][place] for place, state in enumerate(states)]
    if config.type_vocab_size:
        kinds = [0] * len(tokens) if types is None else types
        states = [
            state + weights["embeddings.token_type.weight"][kind] for kind, state in zip(kinds, states, strict=True)
        ]
    if config.embedding_norm:
        states = normed(states, weights, "embeddings.norm", config)
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
        inputs, own = states, of_recurrence(weights, recurrence)
        if config.input_injection == "concat":
            pairs = zip(states, first, strict=True)
            inputs = [affine(torch.cat(pair), weights, "core.adapter") for pair in pairs]
        elif config.input_injection == "add" and recurrence > 0:
            inputs = [now + start for now, start in zip(states, first, strict=True)]
        if config.recurrence_embedding:
            inputs = [state + weights["core.recurrence_embedding.weight"][recurrence] for state in inputs]
        for number in range(config.num_core_layers):
            inputs = layer(inputs, own, f"core.block.layers.{number}", config)
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
    tokens: Sequence[int], types: Sequence[int] | None, weights: Weights, config: Any, *, every: bool = False
) -> dict[int, list[Tensor]]:
    """States of one row without padding, after each exit's recurrence and after the last, or after every one.

    Args:
        tokens: Ids of the real tokens.
        types: Their types, or none for type 0.
        weights: Parameters by the names of the whole model.
        config: Any object with the configuration's keys.
    """
    base = {name.removeprefix("model."): weight for name, weight in weights.items()}
    states = embed(tokens, types, base, config)
    for number in range(config.num_prelude_layers):
        states = layer(states, base, f"prelude.layers.{number}", config)
    after = dict(enumerate(recur(states, base, config), start=1))
    last = after[recurrences_of(tokens, config)]
    for number in range(config.num_coda_layers):
        last = layer(last, base, f"coda.layers.{number}", config)
    found = after if every else {number: after[number] for number in config.exits} | {config.num_recurrences: last}
    if config.final_norm:
        found = {number: normed(states, base, "final_norm", config) for number, states in found.items()}
    return found


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
    return {
        number: affine(
            read_of(states, config.pooling), weights, head_name(number, config, "exit_classifiers", "classifier")
        )
        for number, states in hidden_states(tokens, types, weights, config).items()
    }


def next_token_logits(tokens: Sequence[int], weights: Weights, config: Any) -> dict[int, Tensor]:
    """Logits ``(tokens, vocabulary)`` of one row at each exit and at the end, with the language model's names."""
    return {
        number: torch.stack([read_head(state, number, weights, config) for state in states])
        for number, states in hidden_states(tokens, None, weights, config).items()
    }


def read_head(state: Tensor, number: int, weights: Weights, config: Any) -> Tensor:
    """Logits ``(vocabulary,)`` of a normed state by the head after a recurrence."""
    if config.heads == "tied":
        down = weights.get("heads.projection.weight")
        return weights["model.embeddings.token.weight"] @ (state if down is None else down @ state)
    return affine(state, weights, head_name(number, config, "heads.exits", "heads.final"))


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
