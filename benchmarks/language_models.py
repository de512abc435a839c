"""The language models that compete: ours by preset, and transformers' GPT-2 with as many FLOPs a token."""

from __future__ import annotations

from typing import Any

from transformers import GPT2Config, GPT2LMHeadModel

from recurra.models.configuration import RecurraConfig
from recurra.models.language_modeling import RecurraForCausalLM
from recurra.models.presets import language_flops, preset

HEAD_WIDTH = 64


def ours(name: str, **overrides: Any) -> RecurraForCausalLM:
    """A preset with fresh weights."""
    return RecurraForCausalLM(preset(name, **overrides))


def gpt2_flops(width: int, layers: int, vocabulary: int, tokens: int) -> float:
    """Operations a token of a forward pass, counted as `recurra.models.presets` counts ours."""
    layer = 2 * 12 * width * width + 4 * width * (tokens + 1) / 2
    return layers * layer + 2 * width * vocabulary


def gpt2_of_equal_flops(config: RecurraConfig, tokens: int, *, training: bool) -> GPT2Config:
    """Configures a GPT-2 with our vocabulary and context whose FLOPs a token are nearest to ours.

    Its width is as many times 64 as it has layers, as in GPT-2 small, give or take what the FLOPs ask for. What has no
    counterpart keeps GPT-2's own defaults, among them attention dropout of 0.1.

    Args:
        config: Ours.
        tokens: Length over which FLOPs a token are counted.
        training: Whether the heads of our exits count, as in the loss.
    """
    goal = language_flops(config, tokens, with_exits=training) / tokens

    def off(width: int, layers: int) -> float:
        return abs(gpt2_flops(width, layers, config.vocab_size, tokens) / goal - 1)

    side = min(range(1, 25), key=lambda count: off(HEAD_WIDTH * count, count))
    width = HEAD_WIDTH * side
    layers = min(range(1, 49), key=lambda count: off(width, count))
    return GPT2Config(
        vocab_size=config.vocab_size,
        n_positions=config.max_position_embeddings,
        n_embd=width,
        n_layer=layers,
        n_head=side,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=True,
    )


def gpt2(name: str, tokens: int, *, training: bool, attention_dropout: float | None = None, **overrides: Any) -> Any:
    """A GPT-2 with a preset's FLOPs a token and fresh weights."""
    config = gpt2_of_equal_flops(preset(name, **overrides), tokens, training=training)
    if attention_dropout is not None:
        config.attn_pdrop = attention_dropout
    return GPT2LMHeadModel(config)
