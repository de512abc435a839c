"""Quality against latency, with the size on disk as the area of the bubbles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from recurra.core.formatting import significant, words
from recurra.report.pareto import SIZE, latency_cost
from recurra.tasks.drawing import svg
from recurra.tasks.drawing.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, LegendEntry
from recurra.tasks.measures import Measure
from recurra.tasks.summary import ModelSummary, TableSummary

LARGEST_BUBBLE = 26.0
SMALLEST_BUBBLE = 2.5

Box = tuple[float, float, float, float]


def trade_off(table: TableSummary, batch: int, key: str, measure: Measure) -> Chart | None:
    """Quality against latency; the area of a bubble is the size on disk.

    Args:
        table: The table.
        batch: Batch size of the latencies.
        key: Unique in the page.
        measure: Of quality.

    Returns:
        ``None`` if no model was timed at this batch size.
    """
    times = {model.label: model.latency[str(batch)].median_ms for model in table.models if str(batch) in model.latency}
    axis = _Axis("trade-off", f"median ms a text, batch {batch}", "ms", latency_cost(batch))
    return _against(table, times, axis, f"{measure.heading} against latency, batch {batch}", key=key, measure=measure)


def quality_against_size(table: TableSummary, key: str, measure: Measure) -> Chart | None:
    """Quality against the size on disk, which is also the area of a bubble.

    Args:
        table: The table.
        key: Unique in the page.
        measure: Of quality.
    """
    sizes = {model.label: model.file_size_mib for model in table.models if model.file_size_mib > 0}
    axis = _Axis("size", "MiB on disk", "MiB", SIZE)
    return _against(table, sizes, axis, f"{measure.heading} against size", key=key, measure=measure)


@dataclass(frozen=True)
class _Axis:
    """What lies along the horizontal axis."""

    kind: Literal["trade-off", "size"]
    title: str
    unit: str
    front: str


def _against(
    table: TableSummary, costs: Mapping[str, float], axis: _Axis, heading: str, *, key: str, measure: Measure
) -> Chart | None:
    """A drawing of the models that were scored and may be held against each other; none if there is none."""
    split, name = table.headline_split, measure.heading.lower()
    scored = [
        (model, found)
        for model in table.models
        if model.label in costs and not model.barred and (found := measure.of(model, split)) is not None
    ]
    if not scored:
        return None
    models = [model for model, _ in scored]
    times = [max(costs[model.label], 1e-6) for model in models]
    values = [found for _, found in scored]
    ends = [end for item in values for end in (item.low, item.high, item.mean) if end is not None]
    pad = max(max(ends) - min(ends), 0.01) * 0.15
    y = svg.linear_scale(
        [min(ends) - pad, max(ends) + pad], BOTTOM, TOP, floor=measure.limits[0], ceiling=measure.limits[1]
    )
    wide = max(times) / min(times) > 8
    x = (
        svg.logarithmic_scale(times, LEFT, RIGHT)
        if wide
        else svg.linear_scale([0.0, max(times) * 1.15], LEFT, RIGHT, ticks=4)
    )
    largest = max(model.file_size_mib for model in models) or 1.0

    def radius(size: float) -> float:
        return max(LARGEST_BUBBLE * math.sqrt(size / largest), SMALLEST_BUBBLE)

    parts = [
        svg.axes(
            x,
            y,
            x_title=f"{axis.title}{' (logarithmic)' if wide else ''}",
            y_title=f"{name} on {split}",
            x_format=significant,
            y_format=lambda value: f"{value:.3f}",
        )
    ]
    circles = [
        (x(time), y(item.mean), radius(model.file_size_mib))
        for model, time, item in zip(models, times, values, strict=True)
    ]
    front = sorted((cx, cy) for model, (cx, cy, _) in zip(models, circles, strict=True) if axis.front in model.fronts)
    if len(front) > 1:
        parts.append(svg.polyline(front, "front"))
    sizes = [f"{significant(model.file_size_mib)} MiB" for model in models]
    costly = [f"{significant(time)} {axis.unit}" for time in times]
    said = [
        ", ".join([f"{model.label}: {name} {measure.value(item.mean)}", *dict.fromkeys((cost, size))])
        for model, item, cost, size in zip(models, values, costly, sizes, strict=True)
    ]
    drawn = zip(models, circles, values, said, strict=True)
    for model, (cx, cy, r), item, hint in sorted(drawn, key=lambda entry: -entry[1][2]):
        color = f"s{model.color % 8}"
        parts.append(svg.element("circle", svg.tooltip(hint), cx=cx, cy=cy, r=r, class_=f"bubble {color}"))
        if item.low is not None and item.high is not None:
            parts.append(svg.element("line", x1=cx, x2=cx, y1=y(item.low), y2=y(item.high), class_=f"error {color}"))
        parts.append(svg.marker(model.color, cx, cy, 2.6, hint=hint))
    parts += _bubble_labels(models, circles)
    reference = _round_down(largest)
    legend = [
        LegendEntry(f"{model.label}: {significant(model.file_size_mib)} MiB", model.color, "mark") for model in models
    ]
    legend.append(
        LegendEntry(f"area = size on disk; this is {significant(reference)} MiB", None, "size", radius(reference))
    )
    described = "; ".join(said)
    on_front = [model.label for model in models if axis.front in model.fronts]
    return Chart(
        axis.kind,
        heading,
        svg.figure(WIDTH, HEIGHT, heading, f"Bubble area is the size on disk. {described}.", key, *parts),
        legend,
        f"{'Up' if measure.higher_is_better else 'Down'} and left is better. Upright lines are the 95 % intervals of "
        f"{name}. Pareto front (dotted; nothing is both cheaper and {measure.better}): {words(on_front)}.",
    )


def _round_down(value: float) -> float:
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (5, 2, 1) if factor * power <= value * 1.0001)


def _bubble_labels(models: Sequence[ModelSummary], circles: Sequence[tuple[float, float, float]]) -> list[Markup]:
    """Names beside the bubbles: each takes the first of some places that hits no name, and as few bubbles as may be."""
    taken: list[Box] = []
    labels = []
    for model, (cx, cy, r) in zip(models, circles, strict=True):
        name = svg.short(model.label, 22)
        width = len(name) * svg.CHARACTER_WIDTH
        places = [
            (cx - width / 2, cy - r - 5),
            (cx - width / 2, cy + r + svg.TEXT_HEIGHT + 1),
            (cx + r + 4, cy + 4),
            (cx - r - 4 - width, cy + 4),
            (cx + r + 4, cy - r - 5),
            (cx + r + 4, cy + r + svg.TEXT_HEIGHT + 1),
            (cx - r - 4 - width, cy - r - 5),
            (cx - r - 4 - width, cy + r + svg.TEXT_HEIGHT + 1),
        ]
        boxes = [(left, base - svg.TEXT_HEIGHT, left + width, base + 2) for left, base in places]
        costs = [_crowding(box, taken, circles) for box in boxes]
        box = boxes[costs.index(min(costs))]
        taken.append(box)
        left = min(max(box[0], LEFT + 2), RIGHT - width)
        labels.append(svg.label(left, box[3] - 2, name))
    return labels


def _crowding(
    box: Box,
    taken: Sequence[Box],
    circles: Sequence[tuple[float, float, float]],
) -> float:
    left, top, right, bottom = box
    cost = 50.0 * ((left < LEFT) + (right > RIGHT + 8) + (top < 0) + (bottom > BOTTOM - 2))
    cost += 100.0 * sum(_overlap(box, other) for other in taken)
    for cx, cy, r in circles:
        near_x, near_y = min(max(cx, left), right), min(max(cy, top), bottom)
        cost += 10.0 * (math.hypot(cx - near_x, cy - near_y) < r)
        # The interval's line runs upright through the bubble.
        cost += 2.0 * (left < cx < right)
    return cost


def _overlap(first: Box, second: Box) -> bool:
    return first[0] < second[2] and first[2] > second[0] and first[1] < second[3] and first[3] > second[1]
