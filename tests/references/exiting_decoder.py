"""Decoding with exits from its definition: one row, one token at a time, memories as plain lists.

A token that leaves after recurrence s puts into the memories of every later recurrence what it put into those of s, but
for the core's first attention: there it puts the key and the value of the state with which it left, as that recurrence
would read it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from references.recurrent_transformer import affine, embed, head_name, of_recurrence, rotate, softmax, swiglu
from references.refinement import affine as biased
from references.refinement import gelu, normalise

Weights = Mapping[str, Tensor]
Memory = dict[Any, list[Any]]


def attend(state: Tensor, memory: list[Any], weights: Weights, prefix: str, config: Any) -> Tensor:
    """The newest position's attention, whose key and value are put into the memory."""
    width, heads = config.hidden_size, config.num_attention_heads
    weight, bias = weights[f"{prefix}.qkv_proj.weight"], weights.get(f"{prefix}.qkv_proj.bias")
    thirds = [slice(part * width, (part + 1) * width) for part in range(3)]
    query, key, value = (affine(state, weight[third], None if bias is None else bias[third]) for third in thirds)
    parts = [slice(head * width // heads, (head + 1) * width // heads) for head in range(heads)]

    def turn(vector: Tensor, position: int) -> Tensor:
        return rotate(vector, position, config.rope_theta) if config.position == "rotary" else vector

    place = len(memory)
    memory.append(([turn(key[part], place) for part in parts], [value[part] for part in parts]))
    outputs = []
    for head, part in enumerate(parts):
        turned = turn(query[part], place)
        shares = softmax([turned @ keys[head] / math.sqrt(width // heads) for keys, _ in memory])
        outputs.append(sum(share * values[head] for share, (_, values) in zip(shares, memory, strict=True)))
    return affine(torch.cat(outputs), weights[f"{prefix}.out_proj.weight"], weights.get(f"{prefix}.out_proj.bias"))


def cycle(state: Tensor, memory: list[Tensor], dilation: int, weights: Weights, prefix: str, config: Any) -> Tensor:
    """The newest position's h + MLP(Norm(Conv(h)))."""
    mixed = state
    if config.feed_forward != "linear":
        memory.append(state)
        taps = weights[f"{prefix}.mixer.depthwise.weight"]
        places = [len(memory) - 1 - (len(taps) - 1 - tap) * dilation for tap in range(len(taps))]
        mixed = gelu(sum(taps[tap] * memory[place] for tap, place in enumerate(places) if place >= 0))
        if config.feed_forward != "depthwise":
            mixed = biased(mixed, weights, f"{prefix}.mixer.pointwise")
    change = normalise(mixed, weights, f"{prefix}.norm", config)
    if config.feed_forward != "conv":
        change = biased(
            gelu(biased(change, weights, f"{prefix}.transform.up_proj")), weights, f"{prefix}.transform.down_proj"
        )
    return state + change


def one_layer(state: Tensor, memory: Memory, at: int, weights: Weights, number: int, config: Any) -> Tensor:
    """A core layer at recurrence ``at``."""
    prefix = f"core.block.layers.{number}"

    def norm(vector: Tensor, which: str) -> Tensor:
        return normalise(vector, weights, f"{prefix}.{which}_norm", config)

    def mix(vector: Tensor) -> Tensor:
        return attend(vector, memory[at, number, "attention"], weights, f"{prefix}.attention", config)

    def feed(vector: Tensor) -> Tensor:
        if config.feed_forward == "swiglu":
            return swiglu(vector, weights, f"{prefix}.feed_forward")
        for place in range(config.num_cycles):
            dilation = config.dilations[place % len(config.dilations)]
            name = f"{prefix}.feed_forward.cycles.{place}"
            vector = cycle(vector, memory[at, number, place], dilation, weights, name, config)
        return vector

    if config.norm_placement == "pre":
        state = state + mix(norm(state, "attention"))
        return state + feed(norm(state, "feed_forward"))
    state = norm(state + mix(state), "attention")
    return norm(state + feed(state), "feed_forward")


def decode(
    tokens: Sequence[int], weights: Weights, config: Any, leaves: Callable[[Tensor, int], bool], *, prompt: int = 1
) -> tuple[list[Tensor], list[int]]:
    """Reads a row token by token.

    Args:
        tokens: The row.
        weights: The language model's parameters by name.
        config: Any object with the configuration's keys; without prelude and coda.
        leaves: Whether a token leaves with these logits ``(vocabulary,)`` after this recurrence.
        prompt: Leading tokens that take every recurrence if there are two or more.

    Returns:
        Logits ``(vocabulary,)`` and recurrences of each token.
    """
    base = {name.removeprefix("model."): weight for name, weight in weights.items()}
    # Embeddings of causal models do not depend on later tokens.
    embedded = embed(tokens, None, base, config)
    memory: Memory = defaultdict(list)
    logits, depths = [], []
    for place, first in enumerate(embedded):
        state, gone = first, 0
        for at in range(1, config.num_recurrences + 1):
            inputs, own = state, of_recurrence(base, at - 1)
            if config.input_injection == "add" and at > 1:
                inputs = inputs + first
            if config.recurrence_embedding:
                inputs = inputs + base["core.recurrence_embedding.weight"][at - 1]
            if gone:
                for key in [key for key, kept in memory.items() if key[0] == at - 1 and kept]:
                    if key[1:] != (0, "attention"):
                        memory[at, *key[1:]].append(memory[key][-1])
                prefix = "core.block.layers.0"
                if config.norm_placement == "pre":
                    inputs = normalise(inputs, own, f"{prefix}.attention_norm", config)
                attend(inputs, memory[at, 0, "attention"], own, f"{prefix}.attention", config)
                continue
            for number in range(config.num_core_layers):
                inputs = one_layer(inputs, memory, at, own, number, config)
            state = inputs + config.residual_scale * state
            final = at == config.num_recurrences
            if final or at in config.exits:
                said = _speak(state, at, weights, base, config)
                reads = prompt > 1 and place < prompt
                if final or (not reads and leaves(said, at)):
                    gone = at
                    logits.append(said)
                    depths.append(at)
    return logits, depths


def _speak(state: Tensor, at: int, weights: Weights, base: Weights, config: Any) -> Tensor:
    features = normalise(state, base, "final_norm", config) if config.final_norm else state
    if config.heads == "tied":
        down = weights.get("heads.projection.weight")
        return base["embeddings.token.weight"] @ (features if down is None else down @ features)
    return weights[f"{head_name(at, config, 'heads.exits', 'heads.final')}.weight"] @ features
