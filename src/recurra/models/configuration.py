"""The one configuration of the model family."""

from __future__ import annotations

import difflib
import math
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from recurra.core.errors import ConfigurationError

INPUT_INJECTIONS = ("none", "add", "concat")
POOLINGS = ("first", "last")

# What transformers itself may pass when it builds or reloads a configuration.
_FOREIGN_KEYS = frozenset(
    {
        "num_labels", "torch_dtype", "name_or_path", "_name_or_path", "_commit_hash", "output_attentions",
        "attn_implementation", "_attn_implementation", "experts_implementation", "_attn_implementation_internal",
        "_experts_implementation_internal", "model_type", "num_hidden_layers", "is_decoder", "use_cache",
    }
)  # fmt: skip


class RecurraConfig(PreTrainedConfig):
    """A Transformer whose core layers are applied several times.

    The network is: embeddings, ``num_prelude_layers`` layers, the core of ``num_core_layers`` layers applied
    ``num_recurrences`` times, ``num_coda_layers`` layers, an optional final norm. A stacked Transformer is the same
    with one recurrence, so that comparing the two changes the shape and nothing else. One recurrence ``r`` computes

        h(r+1) = F(h(r) [+ recurrence embedding r] [+ injected input]) + residual_scale * h(r)

    (Guo et al., "Recurrent vs. Standard Transformers", section 4.1.2; the bracketed terms are ours and off by default).

    Args:
        vocab_size: Rows of the token table.
        hidden_size: Width d of the hidden states.
        embedding_size: Width of the token table; narrower than ``hidden_size`` means a factorised embedding with one
            linear map up to it (Lan et al. 2020, ALBERT, section 3.1). ``None`` means ``hidden_size``.
        num_attention_heads: Heads; must divide ``hidden_size`` into heads of even width (rotary pairs).
        intermediate_size: Inner width of the SwiGLU feed-forward network.
        num_prelude_layers: Layers before the core, applied once.
        num_core_layers: Layers of the core.
        num_recurrences: How often the core is applied.
        num_coda_layers: Layers after the core, applied once.
        residual_scale: alpha of the recurrence, or its initial value if learned. 0 for stacked models.
        learned_residual_scale: Whether alpha is a parameter.
        recurrence_embedding: Whether a learned vector for each recurrence is added to the core's input.
        input_injection: How the core sees its first input again at every recurrence: ``none``, ``add``, or ``concat``
            (a linear map of both, as in Geiping et al. 2025).
        final_norm: Whether an RMSNorm stands after the last layer.
        causal: Whether a position sees only itself and earlier ones.
        pooling: The position that a classifier reads: ``first`` (position 0, so rows are padded on the right, as our
            tokenizers do) or ``last`` (of the real tokens, with padding on either side).
        type_vocab_size: Token types; 0 leaves the table out.
        max_position_embeddings: Longest input in tokens.
        rope_theta: Base of the rotary frequencies.
        rms_norm_eps: Epsilon of RMSNorm; 1e-6 does not underflow in bf16, and half precision computes it in FP32.
        hidden_dropout: Dropout after attention, feed-forward and embeddings.
        attention_dropout: Dropout of attention weights; above 0 leaves the fused attention kernels on a CPU.
        initializer_range: Standard deviation of initial weights.
        pad_token_id: Id of the padding token.

    Raises:
        ConfigurationError: For an unknown key, a wrong type or a value out of range.
    """

    model_type: ClassVar[str] = "recurra"

    vocab_size: int = 30522
    hidden_size: int = 256
    embedding_size: int | None = None
    num_attention_heads: int = 4
    intermediate_size: int = 1024
    num_prelude_layers: int = 0
    num_core_layers: int = 3
    num_recurrences: int = 2
    num_coda_layers: int = 0
    residual_scale: float = 0.5
    learned_residual_scale: bool = False
    recurrence_embedding: bool = False
    input_injection: str = "none"
    final_norm: bool = False
    causal: bool = False
    pooling: str = "first"
    type_vocab_size: int = 2
    max_position_embeddings: int = 512
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.0
    initializer_range: float = 0.02
    pad_token_id: int | None = 0

    def __post_init__(self, **kwargs: Any) -> None:
        """Checks keys, types and ranges, then lets transformers finish."""
        self._check_keys(kwargs)
        self._check_values()
        kwargs.pop("num_hidden_layers", None)
        super().__post_init__(**kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Builds the configuration of a file; values given in the call take the file's place and are checked too."""
        own = {key: kwargs.pop(key) for key in cls.own_keys() if key in kwargs}
        wants_unused = kwargs.pop("return_unused_kwargs", False)
        config, unused = super().from_dict({**config_dict, **own}, return_unused_kwargs=True, **kwargs)
        if wants_unused:
            # For a model's own arguments, of which transformers refuses the unknown.
            return config, unused
        cls._check_keys(unused)
        return config

    @classmethod
    def own_keys(cls) -> list[str]:
        """The keys that describe the network, in declaration order."""
        return [name for name in cls.__annotations__ if name != "model_type"]

    @property
    def num_hidden_layers(self) -> int:
        """Layer applications from input to output: what the stock caches count."""
        return self.num_prelude_layers + self.num_core_layers * self.num_recurrences + self.num_coda_layers

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def token_embedding_size(self) -> int:
        """Width of the token table."""
        return self.embedding_size or self.hidden_size

    @classmethod
    def _check_keys(cls, extra: dict[str, Any]) -> None:
        for key in extra:
            if key in _FOREIGN_KEYS:
                continue
            close = difflib.get_close_matches(key, cls.own_keys(), n=1, cutoff=0.6)
            hint = f" (did you mean '{close[0]}'?)" if close else ""
            raise ConfigurationError(
                f"unknown model configuration key '{key}'{hint}; allowed: {', '.join(cls.own_keys())}"
            )

    def _check_values(self) -> None:
        for key in (
            "vocab_size", "hidden_size", "num_attention_heads", "intermediate_size", "num_core_layers",
            "num_recurrences", "max_position_embeddings",
        ):  # fmt: skip
            self._require_whole(key, 1)
        for key in ("num_prelude_layers", "num_coda_layers", "type_vocab_size"):
            self._require_whole(key, 0)
        if self.embedding_size is not None:
            self._require_whole("embedding_size", 1)
        if self.pad_token_id is not None:
            self._require_whole("pad_token_id", 0)
            inside = self.pad_token_id < self.vocab_size
            self._require(inside, "pad_token_id", f"null or a row of the table, below vocab_size {self.vocab_size}")
        for key in ("hidden_dropout", "attention_dropout"):
            self._require_number(key, lambda value: 0 <= value < 1, "a number from 0 to below 1")
        for key in ("rms_norm_eps", "rope_theta", "initializer_range"):
            self._require_number(key, lambda value: value > 0, "a number above 0")
        self._require_number("residual_scale", math.isfinite, "a finite number")
        for key in ("learned_residual_scale", "recurrence_embedding", "final_norm", "causal"):
            self._require(isinstance(getattr(self, key), bool), key, "true or false")
        self._require(self.input_injection in INPUT_INJECTIONS, "input_injection", f"one of {INPUT_INJECTIONS}")
        self._require(self.pooling in POOLINGS, "pooling", f"one of {POOLINGS}")
        heads = self.num_attention_heads
        self._require(
            self.hidden_size % heads == 0 and (self.hidden_size // heads) % 2 == 0,
            "num_attention_heads",
            f"a divisor of hidden_size {self.hidden_size} that gives heads of even width",
        )

    def _require_whole(self, key: str, least: int) -> None:
        value = getattr(self, key)
        right = isinstance(value, int) and not isinstance(value, bool) and value >= least
        self._require(right, key, f"a whole number from {least}")

    def _require_number(self, key: str, holds: Any, allowed: str) -> None:
        value = getattr(self, key)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        self._require(number and math.isfinite(value) and holds(value), key, allowed)

    def _require(self, holds: bool, key: str, allowed: str) -> None:
        if not holds:
            raise ConfigurationError(f"model configuration: '{key}' is {getattr(self, key)!r}; allowed: {allowed}")
