"""Which models nothing beats on quality and cost at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from recurra.tasks.measures import Measure
from recurra.tasks.summary import ModelSummary

SIZE = "size"


def latency_cost(batch: int | str) -> str:
    """Name of the cost "milliseconds a text at this batch size"."""
    return f"latency {batch}"


def pareto_front(merit: Mapping[str, float], cost: Mapping[str, float]) -> list[str]:
    """Names on the Pareto front of merit (more is better) and cost (less is better).

    A model is off the front if another is at least as good and at least as cheap, and better in one of the two.

    Args:
        merit: By name.
        cost: By name; models without a cost are not considered.

    Returns:
        Names by rising cost.
    """
    front: list[str] = []
    best = float("-inf")
    names = [name for name in merit if name in cost]
    for name in sorted(names, key=lambda name: (cost[name], -merit[name])):
        equal = bool(front) and cost[front[-1]] == cost[name] and merit[name] == best
        if merit[name] > best or equal:
            front.append(name)
            best = merit[name]
    return front


def costs_of(models: Sequence[ModelSummary], batch_sizes: Sequence[int]) -> dict[str, dict[str, float]]:
    """Every measure of cost: milliseconds a text at each batch size, and MiB on disk; by measure and label."""
    costs = {
        latency_cost(batch): {
            model.label: model.latency[str(batch)].median_ms for model in models if str(batch) in model.latency
        }
        for batch in batch_sizes
    }
    return {**costs, SIZE: {model.label: model.file_size_mib for model in models}}


def mark_fronts(
    models: Sequence[ModelSummary], split: str, batch_sizes: Sequence[int], measure: Measure
) -> list[ModelSummary]:
    """Notes on each model which fronts of its table it is on; by means, whether or not a gap is supported.

    A model whose figures are held against nobody's is on none and keeps none off.
    """
    merit = {
        model.label: measure.merit(found.mean)
        for model in models
        if not model.barred and (found := measure.of(model, split)) is not None
    }
    fronts = {name: pareto_front(merit, cost) for name, cost in costs_of(models, batch_sizes).items()}
    return [
        replace(model, fronts=[name for name, labels in fronts.items() if model.label in labels]) for model in models
    ]
