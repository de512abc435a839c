"""The presets as plain values: names, descriptions, shapes. Imports nothing, so that a command line can list them."""

from __future__ import annotations

from typing import Any

_WIDE = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
_NARROW = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
_TINY_WIDE = {"hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 384}
_TINY_NARROW = {"hidden_size": 96, "num_attention_heads": 4, "intermediate_size": 288}


def _stacked(layers: int) -> dict[str, Any]:
    return {"num_core_layers": layers, "num_recurrences": 1, "residual_scale": 0.0}


def _recurrent(layers: int, recurrences: int) -> dict[str, Any]:
    return {"num_core_layers": layers, "num_recurrences": recurrences, "residual_scale": 0.5}


PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "baseline": ("the papers' stacked Transformer: 6 layers, width 384", {**_WIDE, **_stacked(6)}),
    "recurrent": ("the papers' recurrent one: 3 layers applied twice, width 256", {**_NARROW, **_recurrent(3, 2)}),
    "recurrent-wide": ("3 layers applied twice at the baseline's width 384", {**_WIDE, **_recurrent(3, 2)}),
    "stacked-narrow": ("control: recurrent's width and compute, nothing shared", {**_NARROW, **_stacked(6)}),
    "stacked-shallow": ("control: recurrent's parameters, half its compute", {**_NARROW, **_stacked(3)}),
    "baseline-tiny": ("stacked, 4 layers, width 128: for the demo and small files", {**_TINY_WIDE, **_stacked(4)}),
    "recurrent-tiny": ("2 layers applied twice, width 96: for the demo", {**_TINY_NARROW, **_recurrent(2, 2)}),
}

PRESET_NAMES = tuple(PRESETS)

# Keys of `recurra.models.configuration.RecurraConfig`, for a check that must not load transformers; a test compares.
MODEL_KEYS = (
    "vocab_size", "hidden_size", "embedding_size", "num_attention_heads", "intermediate_size", "num_prelude_layers",
    "num_core_layers", "num_recurrences", "num_coda_layers", "residual_scale", "learned_residual_scale",
    "recurrence_embedding", "input_injection", "final_norm", "causal", "pooling", "type_vocab_size",
    "max_position_embeddings", "rope_theta", "rms_norm_eps", "hidden_dropout", "attention_dropout",
    "initializer_range", "pad_token_id",
)  # fmt: skip
