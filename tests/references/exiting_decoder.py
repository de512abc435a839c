"""Decoding with exits from its definition: one row, one token at a time, memories as plain lists.

A token that leaves after recurrence s puts into the memories of every later recurrence what it put into those of s, but
for the core's first attention: there it puts the key and the value of the state with which it left, as that recurrence
would read it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from references.recurrent_transformer import (
    attend,
    cycle,
    embed,
    feed_forward,
    heads_of,
    layer,
    normalise,
    of_recurrence,
    read_head,
)

Weights = Mapping[str, Tensor]
Memory = dict[Any, list[Any]]


def one_layer(state: Tensor, memory: Memory, at: int, weights: Weights, number: int, config: Any) -> Tensor:
    """A core layer at recurrence ``at``, for the newest position."""

    def mix(states: list[Tensor], weights: Weights, prefix: str, config: Any) -> list[Tensor]:
        kept = memory[at, number, "attention"]
        kept.append(heads_of(states[0], len(kept), weights, prefix, config))
        return [attend(kept[-1], kept, weights, prefix)]

    def feed(states: list[Tensor], weights: Weights, prefix: str, config: Any) -> list[Tensor]:
        if config.feed_forward == "swiglu":
            return feed_forward(states, weights, prefix, config)
        for place in range(config.num_cycles):
            kept = memory[at, number, place]
            kept.append(states[0])
            dilation = config.dilations[place % len(config.dilations)]
            states = cycle(kept, dilation, weights, f"{prefix}.cycles.{place}", config)[-1:]
        return states

    return layer([state], weights, f"core.block.layers.{number}", config, mix, feed)[0]


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
    stacks = [of_recurrence(base, number) for number in range(config.num_recurrences)]
    memory: Memory = defaultdict(list)
    logits, depths = [], []
    for place, first in enumerate(embedded):
        state, gone = first, 0
        for at in range(1, config.num_recurrences + 1):
            inputs, own = state, stacks[at - 1]
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
                kept = memory[at, 0, "attention"]
                kept.append(heads_of(inputs, len(kept), own, f"{prefix}.attention", config))
                continue
            for number in range(config.num_core_layers):
                inputs = one_layer(inputs, memory, at, own, number, config)
            state = inputs + config.residual_scale * state
            final = at == config.num_recurrences
            if final or at in config.exits:
                features = normalise(state, base, "final_norm", config) if config.final_norm else state
                said = read_head(features, at, weights, config)
                reads = prompt > 1 and place < prompt
                if final or (not reads and leaves(said, at)):
                    gone = at
                    logits.append(said)
                    depths.append(at)
    return logits, depths
