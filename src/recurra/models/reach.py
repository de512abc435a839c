"""How far ahead a decoder reads if its convolutions are not causal."""

from __future__ import annotations

from recurra.models.configuration import RecurraConfig


def reach_ahead(config: RecurraConfig, recurrences: int | None = None) -> int | None:
    """Returns the number of later tokens that a position's state can depend on, by the shape alone.

    A convolution with ``kernel_size`` k and dilation s reads ``(k // 2) * s`` positions ahead, and what is applied one
    after the other adds up: cycles of the embedding, of every layer, and of every recurrence. Causal attention adds
    nothing, because what it reads lies earlier and has read no further ahead.

    Args:
        config: The model.
        recurrences: How often the core is applied; none means as often as configured.

    Returns:
        0 for a causal model; none for an encoder, whose attention reads everything.
    """
    if not config.causal:
        return None
    if not config.leaks:
        return 0
    steps = [(config.kernel_size // 2) * dilation for dilation in config.dilations]

    def of_cycles(count: int) -> int:
        return sum(steps[number % len(steps)] for number in range(count))

    applied = config.num_recurrences if recurrences is None else recurrences
    layers = config.num_prelude_layers + config.num_core_layers * applied + config.num_coda_layers
    return of_cycles(config.embedding_cycles) + layers * of_cycles(config.num_cycles)
