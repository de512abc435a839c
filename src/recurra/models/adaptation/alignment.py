"""Which layer of the encoder that it is made of a layer application stands for."""

from __future__ import annotations

import itertools

from recurra.models.adaptation.plan import SharingPlan


def align(student: SharingPlan, layers: int) -> list[int]:
    """Returns for each of the student's applications how many layers the teacher has applied there, from 1.

    If the student applies as many layers as the teacher has, they stand for each other one by one. If it leaves layers
    out, each of its layers stands for itself. Otherwise its layers stand for some at even distances.

    Args:
        student: Layers of the teacher's encoder, as the student applies them.
        layers: Layers that the teacher applies, each once and in order.
    """
    order = student.order
    if len(order) == layers:
        return list(range(1, layers + 1))
    if all(first < second for first, second in itertools.pairwise(order)):
        return [number + 1 for number in order]
    return [max(1, round(place * layers / len(order))) for place in range(1, len(order) + 1)]


def started_from(plan: SharingPlan, layers: int, start: str) -> tuple[int, ...]:
    """Returns for each layer application of a plan the encoder's layer, from 0, that its own weights start from.

    Args:
        plan: Layers of the encoder, as they are applied.
        layers: Layers that the encoder has.
        start: ``shared``, the layer that is applied, or ``replaced``, the one whose place the application takes: by
            its number where as many are applied as the encoder has, else as `align` spreads them.
    """
    return plan.order if start == "shared" else tuple(number - 1 for number in align(plan, layers))
