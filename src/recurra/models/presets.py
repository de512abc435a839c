"""Presets by name, and what a configuration counts: parameters, operations, sizes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from recurra.core.errors import ConfigurationError, unknown
from recurra.models.configuration import RecurraConfig
from recurra.models.names import GELU, LANGUAGE_PRESETS, PRESETS


def preset(name: str, *, num_labels: int = 2, **overrides: Any) -> RecurraConfig:
    """Returns the configuration of a preset."""
    found = PRESETS.get(name) or LANGUAGE_PRESETS.get(name)
    if found is None:
        raise ConfigurationError(unknown("model preset", name, [*PRESETS, *LANGUAGE_PRESETS]))
    return RecurraConfig(**{**found[1], "num_labels": num_labels, **overrides})


MIB = 2**20


class HeadKind(StrEnum):
    """What stands on top of the model."""

    CLASSIFICATION = "classification"
    LANGUAGE_MODELLING = "language modelling"


@dataclass(frozen=True)
class Parameters:
    """Parameters by part. ``core`` is counted once, however often it is applied."""

    embeddings: int
    prelude: int
    core: int
    coda: int
    final_norm: int
    head: int

    @property
    def total(self) -> int:
        """All parameters."""
        return self.embeddings + self.non_embedding

    @property
    def non_embedding(self) -> int:
        """All but the embeddings (tables, factorisation, refinement, embedding norm)."""
        return self.prelude + self.core + self.coda + self.final_norm + self.head

    def size_mib(self, bytes_each: int = 4) -> float:
        """Size of the bare weights in MiB."""
        return self.total * bytes_each / MIB


def _linear(inputs: int, outputs: int, *, bias: bool = True) -> int:
    return inputs * outputs + (outputs if bias else 0)


def _norm(config: RecurraConfig) -> int:
    return {"none": 0, "rms": 1, "layer": 2, "batch": 2}[config.norm] * config.hidden_size


def _cycle(config: RecurraConfig) -> int:
    width, inner = config.hidden_size, config.intermediate_size
    depthwise = config.kernel_size * width if config.has_convolution else 0
    pointwise = _linear(width, width) if _has_pointwise(config) else 0
    perceptron = _linear(width, inner) + _linear(inner, width) if config.feed_forward != "conv" else 0
    return depthwise + pointwise + _norm(config) + perceptron


def _has_pointwise(config: RecurraConfig) -> bool:
    return config.feed_forward in ("conv+linear", "conv")


def _ways_up(config: RecurraConfig) -> int:
    """Linear maps to the inner width: SwiGLU has a gate beside the other."""
    return 1 if config.feed_forward == GELU else 2


def _layer_items(config: RecurraConfig) -> dict[str, int]:
    width, inner = config.hidden_size, config.intermediate_size
    biased = config.attention_bias
    if config.has_cycles:
        feed_forward = config.num_cycles * _cycle(config)
    else:
        feed_forward = _linear(width, _ways_up(config) * inner) + _linear(inner, width)
    return {
        "attention": _linear(width, 3 * width, bias=biased) + _linear(width, width, bias=biased),
        "feed-forward": feed_forward,
        "layer norms": 2 * _norm(config),
    }


def _layer_vectors(config: RecurraConfig) -> int:
    """Parameters of a layer's norms and biases that a recurrence may have of its own; batch norms stay shared."""
    width, inner = config.hidden_size, config.intermediate_size
    norm = 0 if config.norm == "batch" else _norm(config)
    attention = 4 * width if config.attention_bias else 0
    if config.has_cycles:
        perceptron = inner + width if config.feed_forward != "conv" else 0
        each = norm + (width if _has_pointwise(config) else 0) + perceptron
        return 2 * norm + attention + config.num_cycles * each
    return 2 * norm + attention + _ways_up(config) * inner + width


def _updates(config: RecurraConfig) -> tuple[int, int]:
    """Inputs and outputs of the maps of a layer that have low-rank updates, added up: attention, feed-forward."""
    width, inner = config.hidden_size, config.intermediate_size
    if config.has_cycles:
        pointwise = 2 * width if _has_pointwise(config) else 0
        perceptron = 2 * (width + inner) if config.feed_forward != "conv" else 0
        feed_forward = config.num_cycles * (pointwise + perceptron)
    else:
        feed_forward = width + _ways_up(config) * inner + inner + width
    where = config.low_rank_where
    return (0 if where == "feed-forward" else 6 * width), (0 if where == "attention" else feed_forward)


def _embedding_items(config: RecurraConfig) -> dict[str, int]:
    width, table = config.hidden_size, config.token_embedding_size
    return {
        "token table": config.vocab_size * table,
        "embedding projection": _linear(table, width) if table != width else 0,
        "embedding refinement": config.embedding_cycles * _cycle(config),
        "positions": config.max_position_embeddings * width if config.position == "learned" else 0,
        "token types": config.type_vocab_size * width,
        "embedding norm": _norm(config) if config.embedding_norm else 0,
    }


def _core_items(config: RecurraConfig) -> dict[str, int]:
    width = config.hidden_size
    # One set of norms and biases is counted with the core's layers.
    own = (config.num_recurrences - 1) * config.num_core_layers if config.recurrence_norms else 0
    layers = {f"core {name}": config.num_core_layers * count for name, count in _layer_items(config).items()}
    return {
        **layers,
        "recurrence embedding": config.num_recurrences * width if config.recurrence_embedding else 0,
        "recurrence norms and biases": own * _layer_vectors(config),
        "low-rank updates": config.num_recurrences * config.num_core_layers * config.low_rank * sum(_updates(config)),
        "input injection": _linear(2 * width, width) if config.input_injection == "concat" else 0,
        "residual scale": int(config.learned_residual_scale),
    }


def _head_items(config: RecurraConfig, task: HeadKind) -> dict[str, int]:
    width, table = config.hidden_size, config.token_embedding_size
    exits = len(config.exits) if config.heads == "separate" else min(1, len(config.exits))
    if task == HeadKind.CLASSIFICATION:
        each = _linear(width, config.num_labels)
    elif config.heads == "tied":
        return {"head projection": _linear(width, table, bias=False) if table != width else 0}
    else:
        each = _linear(width, config.vocab_size, bias=False)
    return {"final head": each, "exit heads": exits * each}


def itemise_parameters(config: RecurraConfig, task: HeadKind = HeadKind.CLASSIFICATION) -> dict[str, int]:
    """Counts the parameters of every kind of module; those that the model has none of are left out."""
    layer = sum(_layer_items(config).values())
    items = {
        **_embedding_items(config),
        "prelude": config.num_prelude_layers * layer,
        **_core_items(config),
        "coda": config.num_coda_layers * layer,
        "final norm": _norm(config) if config.final_norm else 0,
        **_head_items(config, task),
    }
    return {name: count for name, count in items.items() if count}


def count_parameters(config: Any, task: HeadKind = HeadKind.CLASSIFICATION) -> Parameters:
    """Counts the parameters from the configuration alone (a test compares with the built model)."""
    if not isinstance(config, RecurraConfig):
        return config.count_parameters()
    layer = sum(_layer_items(config).values())
    return Parameters(
        embeddings=sum(_embedding_items(config).values()),
        prelude=config.num_prelude_layers * layer,
        core=sum(_core_items(config).values()),
        coda=config.num_coda_layers * layer,
        final_norm=_norm(config) if config.final_norm else 0,
        head=sum(_head_items(config, task).values()),
    )


def _cycle_flops(config: RecurraConfig) -> int:
    """Operations of one cycle at one position."""
    width, inner = config.hidden_size, config.intermediate_size
    depthwise = config.kernel_size * width if config.has_convolution else 0
    pointwise = width * width if _has_pointwise(config) else 0
    perceptron = 2 * width * inner if config.feed_forward != "conv" else 0
    return 2 * (depthwise + pointwise + perceptron)


def _feed_forward_flops(config: RecurraConfig) -> int:
    if config.has_cycles:
        return config.num_cycles * _cycle_flops(config)
    return 2 * (_ways_up(config) + 1) * config.hidden_size * config.intermediate_size


def _layer_flops(config: RecurraConfig, tokens: int, positions: int) -> float:
    """Operations of a layer over a sequence of which it computes the first ``positions``."""
    width = config.hidden_size
    # A convolution reads neighbours, so all positions are computed and then left out.
    queries = tokens if config.has_convolution else positions
    pairs = queries * (queries + 1) / 2 if config.causal else queries * tokens
    products = 2 * (2 * tokens + 2 * queries) * width * width
    return products + queries * _feed_forward_flops(config) + 4 * width * pairs


def _update_flops(config: RecurraConfig, tokens: int, positions: int) -> int:
    """Operations of a layer's low-rank updates over a sequence of which it computes the first ``positions``."""
    width, rank = config.hidden_size, config.low_rank
    attention, feed_forward = _updates(config)
    queries = tokens if config.has_convolution else positions
    if queries < tokens and attention:
        # Queries of some positions, keys and values of all, then the map out.
        attention_each = queries * 2 * width + tokens * 3 * width + queries * 2 * width
    else:
        attention_each = tokens * attention
    return 2 * rank * (attention_each + queries * feed_forward)


def _body_flops(config: RecurraConfig, tokens: int, positions: int, recurrences: int) -> float:
    """Operations of everything below the heads."""
    width, table = config.hidden_size, config.token_embedding_size
    layers = config.num_prelude_layers + config.num_core_layers * recurrences + config.num_coda_layers
    total = (layers - 1) * _layer_flops(config, tokens, tokens) + _layer_flops(config, tokens, positions)
    if config.low_rank:
        whole, last = _update_flops(config, tokens, tokens), _update_flops(config, tokens, positions)
        total += config.num_core_layers * recurrences * whole - (0 if config.num_coda_layers else whole - last)
    total += tokens * config.embedding_cycles * _cycle_flops(config)
    if table != width:
        total += 2 * tokens * table * width
    if config.input_injection == "concat":
        total += recurrences * 2 * tokens * 2 * width * width
    return total


def forward_flops(config: Any, tokens: int, *, head_positions: int | None = None) -> float:
    """Floating-point operations of a classifier's forward pass over one sequence, as executed.

    Args:
        head_positions: Positions that the last layer application computes; none means what the classifier does: 1 with
            ``pooling="first"``, all with any other.
    """
    if not isinstance(config, RecurraConfig):
        return config.forward_flops(tokens)
    if head_positions is None:
        head_positions = 1 if config.pooling == "first" else tokens
    heads = 2 * config.hidden_size * config.num_labels * (1 + len(config.exits))
    return float(_body_flops(config, tokens, min(head_positions, tokens), config.num_recurrences) + heads)


def language_flops(
    config: RecurraConfig, tokens: int, *, exit_after: int | None = None, with_exits: bool = False
) -> float:
    """Floating-point operations of a language model's forward pass over one sequence, with every position's logits."""
    width, table = config.hidden_size, config.token_embedding_size
    recurrences = exit_after or config.num_recurrences
    tied = config.heads == "tied"
    head = 2 * (table if tied else width) * config.vocab_size + (2 * width * table if tied and table != width else 0)
    heads = 1 + (sum(number < recurrences for number in config.exits) if with_exits else 0)
    return float(_body_flops(config, tokens, tokens, recurrences) + heads * tokens * head)


def flops_per_token(config: Any, tokens: int = 128, task: HeadKind = HeadKind.CLASSIFICATION) -> float:
    """Operations a token of a forward pass over a sequence of ``tokens`` tokens, as executed."""
    whole = forward_flops if task == HeadKind.CLASSIFICATION else language_flops
    return whole(config, tokens) / tokens


def describe_presets(*, num_labels: int = 2, tokens: int = 128) -> list[dict[str, Any]]:
    """Describes all presets as plain JSON values."""
    result = []
    entries = [(HeadKind.CLASSIFICATION, item) for item in PRESETS.items()]
    entries += [(HeadKind.LANGUAGE_MODELLING, item) for item in LANGUAGE_PRESETS.items()]
    for task, (name, (description, shape)) in entries:
        config = preset(name, num_labels=num_labels)
        counts = count_parameters(config, task)
        result.append(
            {
                "name": name,
                "task": str(task),
                "description": description,
                "parameters": {
                    "total": counts.total,
                    "embeddings": counts.embeddings,
                    "non_embedding": counts.non_embedding,
                    "parts": asdict(counts),
                    "items": itemise_parameters(config, task),
                },
                "flops_per_token": flops_per_token(config, tokens, task),
                "size_mib": {"fp32": counts.size_mib(), "half": counts.size_mib(2)},
                "vocab_size": config.vocab_size,
                "num_labels": num_labels,
                "tokens": tokens,
                "configuration": shape,
            }
        )
    return result
