"""The one configuration of the model family."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from recurra.core.errors import ConfigurationError, unknown
from recurra.models.names import GELU, SWIGLU, WITHOUT_CONVOLUTION

CYCLES = ("conv+linear", "conv", "linear", "depthwise")
_CHOICES = {
    "input_injection": ("none", "add", "concat"),
    "pooling": ("first", "last", "max", "mean"),
    "feed_forward": (SWIGLU, GELU, *CYCLES),
    "norm": ("rms", "layer", "batch", "none"),
    "norm_placement": ("pre", "post"),
    "position": ("rotary", "learned", "none"),
    "heads": ("shared", "separate", "tied"),
    "low_rank_where": ("all", "attention", "feed-forward"),
}

# Keys that transformers itself may pass when it builds or reloads a configuration.
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
    With ``residual_scale`` 0, the recurrence embedding, and cycles instead of SwiGLU it is the shared block of
    "CRT-Deep", section 3.1, whose loops are our recurrences and whose loop encoding is our recurrence embedding.

    Args:
        embedding_size: Width of the token table; narrower than ``hidden_size``, a linear map leads up to it (Lan et al.
            2020, ALBERT, section 3.1). ``None`` means ``hidden_size``.
        num_attention_heads: Heads; must divide ``hidden_size`` into heads of even width (rotary pairs).
        feed_forward: ``swiglu``, ``gelu`` (as in BERT), or what a cycle of refinement (TRM; CRT-Deep, equation 2) has:
            ``conv+linear``, ``conv`` (no MLP), ``linear`` (no convolution), ``depthwise`` (no pointwise map).
        num_cycles: Cycles of the feed-forward network, each with weights of its own; 1 where there are none.
        dilations: Distances between those positions, cycle by cycle in turn.
        causal_convolution: Whether convolutions read earlier positions only; off, a ``causal`` model `leaks`.
        tokens_without_recurrence: If given, a classifier applies the core to each row once for every token beyond so
            many, up to ``num_recurrences`` times (Fan et al. 2024, "Looped Transformers for Length Generalization").
        tokens_per_recurrence: Of those tokens, how many a recurrence takes; rounded down, at least one recurrence.
        learned_halt: Whether that number is known in training alone: a head after each recurrence learns from it
            whether the row stops there, and decides in evaluation (as Graves 2016, "Adaptive Computation Time", but
            taught).
        halt_loss_weight: Weight of that head's mean logistic loss beside the classifier's.
        residual_scale: alpha of the recurrence, or its initial value if learned. 0 for stacked models.
        recurrence_embedding: Whether a learned vector for each recurrence is added to the core's input.
        recurrence_norms: Whether each recurrence has norms and biases of its own in the core's layers.
        low_rank: Rank of the update ``B A`` that each recurrence has for each of the core's matrices (Bae et al. 2024,
            "Relaxed Recursive Transformers"); queries, keys and values are one matrix here.
        input_injection: How the core sees its first input again: ``none``, ``add``, ``concat`` (Geiping et al. 2025).
        norm: Kind of all norms: ``rms``, ``layer``, ``none``, or ``batch``, with which a decoder trains on the future.
        norm_placement: ``pre`` (inside the residual branch) or ``post`` (after the sum).
        position: ``rotary``, ``learned`` or ``none`` (an encoder then reads a set, a decoder knows what is earlier).
        embedding_cycles: Cycles that refine the token embedding before positions are added (CRT-Deep, equation 1).
        embedding_dropout: Dropout of the embedding; ``None`` means ``hidden_dropout``.
        heads: ``shared`` (the final one, and one for all exits), ``separate``, or ``tied`` to the token table.
        exit_loss_weight: Weight of the exits' mean loss; the final loss has the rest (CRT-Deep, equation 5).
        causal: Whether a position sees only itself and earlier ones.
        pooling: What a classifier reads: ``first`` (position 0, so rows are padded on the right), or of real tokens
            ``last``, ``max`` (Collobert and Weston 2008), or ``mean`` (Reimers and Gurevych 2019, Sentence-BERT).
        type_vocab_size: Token types; 0 leaves the table out.
        rms_norm_eps: Epsilon of all norms; a large one, such as 0.1, leaves the states of rarely trained words small.
        attention_dropout: Dropout of attention weights; above 0 leaves the fused attention kernels on a CPU.
        pad_token_id: Id of the padding token, whose row of the table stays zero.
        eos_token_id: Id of the token that ends a text: generation stops there.
    """

    model_type: ClassVar[str] = "recurra"
    # Not predictions: the Trainer leaves them out when it collects what a model says.
    keys_to_ignore_at_inference: ClassVar[list[str]] = [
        "past_key_values", "cache", "exit_logits", "exit_losses", "exited_after", "halt_loss"
    ]  # fmt: skip

    vocab_size: int = 30522
    hidden_size: int = 256
    embedding_size: int | None = None
    num_attention_heads: int = 4
    intermediate_size: int = 1024
    feed_forward: str = SWIGLU
    num_cycles: int = 1
    kernel_size: int = 3
    dilations: list[int] | tuple[int, ...] = (1, 2, 4, 8)
    causal_convolution: bool = True
    num_prelude_layers: int = 0
    num_core_layers: int = 3
    num_recurrences: int = 2
    tokens_without_recurrence: int | None = None
    tokens_per_recurrence: int = 1
    learned_halt: bool = False
    halt_loss_weight: float = 0.3
    num_coda_layers: int = 0
    residual_scale: float = 0.5
    learned_residual_scale: bool = False
    recurrence_embedding: bool = False
    recurrence_norms: bool = False
    low_rank: int = 0
    low_rank_where: str = "all"
    relaxation_start: str = "shared"
    input_injection: str = "none"
    final_norm: bool = False
    norm: str = "rms"
    norm_placement: str = "pre"
    position: str = "rotary"
    attention_bias: bool = True
    embedding_cycles: int = 0
    embedding_norm: bool = True
    embedding_dropout: float | None = None
    exits: list[int] | tuple[int, ...] = ()
    heads: str = "shared"
    exit_loss_weight: float = 0.3
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
    bos_token_id: int | None = None
    eos_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        """Checks keys, types and ranges, then lets transformers finish."""
        self._check_keys(kwargs)
        self._check_values()
        kwargs.pop("num_hidden_layers", None)
        super().__post_init__(**kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Builds the configuration of a file; values in the call replace those of the file and are checked too."""
        own_values = {key: kwargs.pop(key) for key in cls.own_keys() if key in kwargs}
        wants_unused = kwargs.pop("return_unused_kwargs", False)
        config, unused = super().from_dict({**config_dict, **own_values}, return_unused_kwargs=True, **kwargs)
        if wants_unused:
            # They may be arguments of the model; transformers refuses unknown ones.
            return config, unused
        cls._check_keys(unused)
        return config

    @classmethod
    def own_keys(cls) -> list[str]:
        """The keys that describe the network, in declaration order."""
        return [name for name, kind in cls.__annotations__.items() if not str(kind).startswith("ClassVar")]

    @property
    def num_hidden_layers(self) -> int:
        """Number of layer applications from input to output, which caches of transformers count."""
        return self.num_prelude_layers + self.num_core_layers * self.num_recurrences + self.num_coda_layers

    @property
    def has_convolution(self) -> bool:
        """Whether a position's state depends on its neighbours' through a convolution."""
        return self.feed_forward not in WITHOUT_CONVOLUTION

    @property
    def has_cycles(self) -> bool:
        """Whether the feed-forward network is made of cycles, which have dropout inside."""
        return self.feed_forward in CYCLES

    @property
    def leaks(self) -> bool:
        """Whether predictions can read the next token: attention is causal, and convolutions are not."""
        return self.causal and self.has_convolution and not self.causal_convolution and self.kernel_size > 1

    @property
    def is_relaxed(self) -> bool:
        """Whether recurrences have weights of their own in the core's layers."""
        return self.recurrence_norms or self.low_rank > 0

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
            if key not in _FOREIGN_KEYS:
                raise ConfigurationError(unknown("model configuration key", key, cls.own_keys()))

    def _check_values(self) -> None:
        for key in (
            "vocab_size", "hidden_size", "num_attention_heads", "intermediate_size", "num_core_layers",
            "num_recurrences", "max_position_embeddings", "num_cycles", "kernel_size", "tokens_per_recurrence",
        ):  # fmt: skip
            self._require_whole(key, 1)
        for key in ("num_prelude_layers", "num_coda_layers", "type_vocab_size", "embedding_cycles", "low_rank"):
            self._require_whole(key, 0)
        ids = ("pad_token_id", "bos_token_id", "eos_token_id")
        for key in ("embedding_size", "tokens_without_recurrence", *ids):
            if getattr(self, key) is not None:
                self._require_whole(key, 1 if key == "embedding_size" else 0)
        for key in ids:
            inside = getattr(self, key) is None or getattr(self, key) < self.vocab_size
            self._require(inside, key, f"null or a row of the table, below vocab_size {self.vocab_size}")
        rates = ["hidden_dropout", "attention_dropout"]
        for key in rates if self.embedding_dropout is None else [*rates, "embedding_dropout"]:
            self._require_number(key, lambda value: 0 <= value < 1, "a number from 0 to below 1")
        for key in ("rms_norm_eps", "rope_theta", "initializer_range"):
            self._require_number(key, lambda value: value > 0, "a number above 0")
        self._require_number("exit_loss_weight", lambda value: 0 <= value <= 1, "a number from 0 to 1")
        self._require_number("halt_loss_weight", lambda value: value > 0, "a number above 0")
        self._require_number("residual_scale", math.isfinite, "a finite number")
        for key in self.own_keys():
            is_switch = isinstance(getattr(RecurraConfig, key), bool)
            self._require(not is_switch or isinstance(getattr(self, key), bool), key, "true or false")
        for key, choices in _CHOICES.items():
            value = getattr(self, key)
            self._require(isinstance(value, str) and value in choices, key, f"one of {choices}")
        self._require_whole_list("dilations", empty=False)
        self._require_whole_list("exits", empty=True)
        self._check_combinations()

    def _check_combinations(self) -> None:
        """Checks what depends on several keys."""
        width, heads, kind = self.hidden_size, self.num_attention_heads, self.feed_forward
        rising = all(first < second for first, second in itertools.pairwise(self.exits))
        below = all(number < self.num_recurrences for number in self.exits)
        counted, single = self.tokens_without_recurrence is not None, self.num_recurrences == 1
        unshared = "with num_recurrences 1, where nothing is shared"
        for key, holds, allowed in (
            ("relaxation_start", self.relaxation_start == "shared",
             "shared; other starts were dropped, for they ended behind it: leave the key out"),
            ("num_attention_heads", width % heads == 0 and (width // heads) % 2 == 0,
             f"a divisor of hidden_size {width} that gives heads of even width"),
            ("num_cycles", self.has_cycles or self.num_cycles == 1,
             f"1 with feed_forward '{kind}', which has no cycles"),
            ("embedding_cycles", self.has_cycles or self.embedding_cycles == 0,
             f"0 with feed_forward '{kind}'; cycles are one of {CYCLES}"),
            ("kernel_size", self.causal_convolution or self.kernel_size % 2 == 1,
             "an odd number without causal_convolution: as many positions on either side"),
            ("exits", rising and below,
             f"rising numbers below num_recurrences {self.num_recurrences}, after which the final head stands"),
            ("exits", not self.exits or self.num_coda_layers == 0, "none with coda layers: an exit skips them"),
            ("tokens_without_recurrence", not (counted and (self.exits or self.num_coda_layers)),
             "null with exits or coda layers: each row has one head, behind its own last recurrence"),
            ("tokens_per_recurrence", counted or self.tokens_per_recurrence == 1,
             "1 without tokens_without_recurrence"),
            ("learned_halt", counted or not self.learned_halt,
             "false without tokens_without_recurrence, which teaches it"),
            ("learned_halt", not (single and self.learned_halt),
             "false with num_recurrences 1: there is nothing to stop"),
            ("low_rank", self.low_rank <= width, f"0 to hidden_size, which is {width}"),
            ("low_rank", not single or self.low_rank == 0, f"0 {unshared}"),
            ("recurrence_norms", not (single and self.recurrence_norms), f"false {unshared}"),
            ("recurrence_norms", not self.recurrence_norms or self.norm in ("rms", "layer"),
             f"false with norm '{self.norm}'"),
        ):  # fmt: skip
            self._require(holds, key, allowed)

    def _require(self, holds: bool, key: str, allowed: str) -> None:
        if not holds:
            raise ConfigurationError(f"model configuration: '{key}' is {getattr(self, key)!r}; allowed: {allowed}")

    def _require_whole(self, key: str, least: int) -> None:
        self._require(_is_whole(getattr(self, key), least), key, f"a whole number from {least}")

    def _require_whole_list(self, key: str, *, empty: bool) -> None:
        value = getattr(self, key)
        is_valid = isinstance(value, list | tuple) and all(_is_whole(item, 1) for item in value)
        kind = "a list" if empty else "a list, not empty,"
        self._require(is_valid and (empty or len(value) > 0), key, f"{kind} of whole numbers from 1")
        setattr(self, key, list(value))

    def _require_number(self, key: str, holds: Callable[[float], bool], allowed: str) -> None:
        value = getattr(self, key)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        self._require(number and math.isfinite(value) and holds(value), key, allowed)


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
