"""The presets as plain values: names, descriptions, shapes. Imports nothing, so that a command lists them fast."""

from __future__ import annotations

from typing import Any

# Feed-forward networks without cycles, and all networks in which tokens do not mix.
SWIGLU, GELU = "swiglu", "gelu"
WITHOUT_CONVOLUTION = (SWIGLU, GELU, "linear")
# Model type of a classifier over an encoder of another family.
FOREIGN_MODEL_TYPE = "recurra-foreign"

_WIDE = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
_NARROW = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
_TINY_WIDE = {"hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 384}
_TINY_NARROW = {"hidden_size": 96, "num_attention_heads": 4, "intermediate_size": 288}


def _stacked(layers: int) -> dict[str, Any]:
    return {"num_core_layers": layers, "num_recurrences": 1, "residual_scale": 0.0}


def _recurrent(layers: int, recurrences: int) -> dict[str, Any]:
    return {"num_core_layers": layers, "num_recurrences": recurrences, "residual_scale": 0.5}


# Values chosen on SST-2's held-out sentences for the `tuned` protocol (docs/log.md).
_SMALL = {
    "hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 384, "final_norm": True, "hidden_dropout": 0.2
}  # fmt: skip

# Convolutions, max pooling instead of [CLS], and norms that keep small states small: each was better there.
_CONVOLUTIONAL = {
    "feed_forward": "conv+linear", "num_cycles": 2, "dilations": [1, 2], "causal_convolution": False, "pooling": "max",
    "rms_norm_eps": 0.1,
}  # fmt: skip

PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "baseline": ("the papers' stacked Transformer: 6 layers, width 384", {**_WIDE, **_stacked(6)}),
    "recurrent": ("the papers' recurrent one: 3 layers applied twice, width 256", {**_NARROW, **_recurrent(3, 2)}),
    "recurrent-wide": ("3 layers applied twice at the baseline's width 384", {**_WIDE, **_recurrent(3, 2)}),
    "stacked-narrow": ("control: recurrent's width and compute, nothing shared", {**_NARROW, **_stacked(6)}),
    "stacked-shallow": ("control: recurrent's parameters, half its compute", {**_NARROW, **_stacked(3)}),
    "recurrent-small": ("2 layers applied twice, width 128: for corpora like SST-2", {**_SMALL, **_recurrent(2, 2)}),
    "recurrent-conv-small": (
        "recurrent-small with convolutional cycles, read by its largest values",
        {**_SMALL, **_CONVOLUTIONAL, **_recurrent(2, 2)},
    ),
    "baseline-tiny": ("stacked, 4 layers, width 128: for small files", {**_TINY_WIDE, **_stacked(4)}),
    "recurrent-tiny": ("2 layers applied twice, width 96: for small files", {**_TINY_NARROW, **_recurrent(2, 2)}),
}

# The shared block of "CRT-Deep", section 3: post-norm, cycles of refinement, learned positions, no biases in attention.
_CRT = {
    "num_core_layers": 1, "residual_scale": 0.0, "recurrence_embedding": True, "feed_forward": "conv+linear",
    "norm": "layer", "norm_placement": "post", "rms_norm_eps": 1e-5, "position": "learned", "attention_bias": False,
    "embedding_norm": False, "embedding_dropout": 0.0, "type_vocab_size": 0, "causal": True, "pad_token_id": None,
}  # fmt: skip
_CRT_DEEP = {
    **_CRT, "vocab_size": 50257, "hidden_size": 512, "embedding_size": 256, "num_attention_heads": 8,
    "intermediate_size": 2048, "num_cycles": 8, "embedding_cycles": 3, "num_recurrences": 8, "exits": [2, 4, 6],
    "max_position_embeddings": 1024, "bos_token_id": 50256, "eos_token_id": 50256,
}  # fmt: skip
_CRT_SMALL = {
    **_CRT, "vocab_size": 8192, "hidden_size": 256, "embedding_size": 128, "num_attention_heads": 4,
    "intermediate_size": 1024, "num_cycles": 4, "embedding_cycles": 2, "num_recurrences": 6, "exits": [2, 4],
    "max_position_embeddings": 512, "heads": "tied",
}  # fmt: skip
_CRT_TINY = {
    **_CRT, "vocab_size": 8192, "hidden_size": 128, "embedding_size": 64, "num_attention_heads": 4,
    "intermediate_size": 512, "num_cycles": 4, "embedding_cycles": 2, "num_recurrences": 4, "exits": [1, 2, 3],
    "max_position_embeddings": 256, "heads": "tied",
}  # fmt: skip
# An unshared pre-norm decoder with SwiGLU and rotary positions, with the table, heads and context of crt-small.
_STACKED_LM = {
    "vocab_size": 8192, "embedding_size": 128, "num_recurrences": 1, "residual_scale": 0.0, "final_norm": True,
    "attention_bias": False, "embedding_norm": False, "embedding_dropout": 0.0, "type_vocab_size": 0, "causal": True,
    "pad_token_id": None, "max_position_embeddings": 512, "heads": "tied",
}  # fmt: skip
_EQUAL_PARAMETERS = {
    "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 685, "num_core_layers": 5
}  # fmt: skip
_EQUAL_FLOPS = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1070, "num_core_layers": 9}

LANGUAGE_PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "crt-deep": ("the paper's: 8 loops of 8 cycles, width 512, one head for all exits", _CRT_DEEP),
    "crt-deep-separate-heads": ("crt-deep with a head for each exit", {**_CRT_DEEP, "heads": "separate"}),
    "crt-deep-tied": ("crt-deep with every head tied to the token table", {**_CRT_DEEP, "heads": "tied"}),
    "crt-small": ("6 loops of 4 cycles, width 256, tied heads, for a vocabulary of its own", _CRT_SMALL),
    "crt-tiny": ("4 loops of 4 cycles, width 128, tied heads: for two processor cores", _CRT_TINY),
    "stacked-lm-parameters": ("control: 5 layers, crt-small's parameters", {**_STACKED_LM, **_EQUAL_PARAMETERS}),
    "stacked-lm-flops": ("control: 9 layers, crt-small's FLOPs a token", {**_STACKED_LM, **_EQUAL_FLOPS}),
}

# Keys of `recurra.models.configuration.RecurraConfig`, for a check that must not load transformers; a test compares.
MODEL_KEYS = (
    "vocab_size", "hidden_size", "embedding_size", "num_attention_heads", "intermediate_size", "feed_forward",
    "num_cycles", "kernel_size", "dilations", "causal_convolution", "num_prelude_layers", "num_core_layers",
    "num_recurrences", "tokens_without_recurrence", "tokens_per_recurrence", "learned_halt", "halt_loss_weight",
    "num_coda_layers", "residual_scale", "learned_residual_scale", "recurrence_embedding",
    "recurrence_norms", "low_rank", "low_rank_where", "relaxation_start", "input_injection", "final_norm", "norm",
    "norm_placement", "position", "attention_bias", "embedding_cycles", "embedding_norm", "embedding_dropout", "exits",
    "heads", "exit_loss_weight", "causal", "pooling", "type_vocab_size", "max_position_embeddings", "rope_theta",
    "rms_norm_eps", "hidden_dropout", "attention_dropout", "initializer_range", "pad_token_id", "bos_token_id",
    "eos_token_id",
)  # fmt: skip
