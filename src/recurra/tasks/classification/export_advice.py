"""Which export to deploy when latency, throughput, balance or memory matters, from the records alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from recurra.core.formatting import count, points, significant
from recurra.tasks.estimates import ExportLine
from recurra.tasks.summary import Advice

# What storing a model may cost: a share of labels that are right.
MOST_LOST = 0.005


def advise_exports(lines: Sequence[ExportLine], level: Sequence[str]) -> list[Advice]:
    """Advice by priority; none if there are not two exports that were timed in turns and lose little.

    Args:
        lines: The exports of a table.
        level: Labels of the models that are not shown to be less accurate than the best one.
    """
    fair = [line for line in lines if line.median_ms and line.gap >= -MOST_LOST]
    if len(fair) < 2:
        return []
    one = min(int(batch) for line in fair for batch in line.median_ms)
    many = max(int(batch) for line in fair for batch in line.median_ms)
    advice = [
        _pick("Latency, exported", fair, lambda line: line.median_ms.get(str(one)), one, many),
        _pick("Throughput, exported", fair, lambda line: _inverse(line.texts_per_s.get(str(many))), one, many),
        _pick("Memory, exported", fair, lambda line: line.memory_mib, one, many),
        _pick(
            "Balance, exported",
            [line for line in fair if line.model in level],
            lambda line: _product(line.median_ms.get(str(one)), line.memory_mib),
            one,
            many,
            note=": the least product of time and memory among models not shown to be less accurate than the best",
        ),
    ]
    return [item for item in advice if item is not None]


def _pick(
    priority: str,
    lines: Sequence[ExportLine],
    cost: Callable[[ExportLine], float | None],
    one: int,
    many: int,
    *,
    note: str = "",
) -> Advice | None:
    costs = {position: cost(line) for position, line in enumerate(lines)}
    known = {position: value for position, value in costs.items() if value is not None}
    if not known:
        return None
    line = lines[min(known, key=lambda position: (known[position], -lines[position].accuracy.mean))]
    facts = [f"{significant(line.median_ms.get(str(one)))} ms a text at batch {one}"]
    if str(many) in line.texts_per_s:
        facts.append(f"{count(line.texts_per_s[str(many)])} texts a second at batch {many}")
    if line.memory_mib is not None:
        facts.append(f"{count(line.memory_mib)} MiB of memory")
    facts.append(f"{significant(line.weights_mib)} MiB of weights")
    facts.append(f"accuracy {line.accuracy.mean:.4f}, {points(line.gap)} for being stored so")
    return Advice(priority, f"{line.model}, {line.stored_as}", f"{', '.join(facts)}{note}.")


def _inverse(value: float | None) -> float | None:
    return None if value is None else 1 / value


def _product(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else math.sqrt(first * second)
