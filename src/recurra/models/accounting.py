"""Exact counts: parameters by part, and floating-point operations.

One multiply-add is two operations. Counted are matrix products, attention scores and their weighted sum; norms,
activations, rotary turns and additions are left out, as is usual (Kaplan et al. 2020, section 2.1).
"""

from __future__ import annotations

from dataclasses import dataclass

from recurra.models.configuration import RecurraConfig

MIB = 2**20


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
        """All but the embeddings (tables, factorisation, embedding norm)."""
        return self.prelude + self.core + self.coda + self.final_norm + self.head

    def size_mib(self, bytes_each: int = 4) -> float:
        """Size of the bare weights in MiB."""
        return self.total * bytes_each / MIB


def _linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def _layer(config: RecurraConfig) -> int:
    width, inner = config.hidden_size, config.intermediate_size
    attention = _linear(width, 3 * width) + _linear(width, width)
    feed_forward = _linear(width, 2 * inner) + _linear(inner, width)
    return attention + feed_forward + 2 * width


def count_parameters(config: RecurraConfig) -> Parameters:
    """Counts the parameters of a classifier from its configuration alone (a test compares with the built model)."""
    width, table = config.hidden_size, config.token_embedding_size
    embeddings = config.vocab_size * table + config.type_vocab_size * width + width
    if table != width:
        embeddings += _linear(table, width)
    core = config.num_core_layers * _layer(config)
    core += int(config.learned_residual_scale)
    core += config.num_recurrences * width if config.recurrence_embedding else 0
    core += _linear(2 * width, width) if config.input_injection == "concat" else 0
    return Parameters(
        embeddings=embeddings,
        prelude=config.num_prelude_layers * _layer(config),
        core=core,
        coda=config.num_coda_layers * _layer(config),
        final_norm=width if config.final_norm else 0,
        head=_linear(width, config.num_labels),
    )


def forward_flops(config: RecurraConfig, tokens: int, *, head_positions: int | None = None) -> float:
    """Floating-point operations of one forward pass over one sequence, as executed.

    Args:
        config: The model.
        tokens: Length of the sequence.
        head_positions: Positions that the last layer application computes; none means what the classifier does: 1 with
            ``pooling="first"``, all with ``"last"``.
    """
    if head_positions is None:
        head_positions = 1 if config.pooling == "first" else tokens
    width, inner = config.hidden_size, config.intermediate_size
    applications = config.num_hidden_layers
    pairs = tokens * (tokens + 1) / 2 if config.causal else tokens * tokens
    whole = 2 * tokens * (4 * width * width + 3 * width * inner) + 4 * width * pairs
    narrow_pairs = head_positions * (head_positions + 1) / 2 if config.causal else head_positions * tokens
    narrow: float = 2 * (2 * tokens * width * width + head_positions * (2 * width * width + 3 * width * inner))
    narrow += 4 * width * narrow_pairs
    last = whole if head_positions >= tokens else narrow
    total = (applications - 1) * whole + last + 2 * width * config.num_labels
    if config.token_embedding_size != width:
        total += 2 * tokens * config.token_embedding_size * width
    if config.input_injection == "concat":
        total += config.num_recurrences * 2 * tokens * 2 * width * width
    return float(total)


def flops_per_token(config: RecurraConfig, tokens: int = 128) -> float:
    """Operations a token of a forward pass over a sequence of ``tokens`` tokens, as executed."""
    return forward_flops(config, tokens) / tokens
