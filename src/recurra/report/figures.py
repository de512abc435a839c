"""The report's charts: quality against cost and contrasts for every task, further ones of a task, and SVG files."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from markupsafe import Markup

from recurra.core.record_parts import ANSWERS
from recurra.core.terminal import significant, words
from recurra.report.summary import PRICE, SIZE, costs_of, latency_cost, reporting_of
from recurra.tasks import drawing
from recurra.tasks.drawing import BOTTOM, LEFT, RIGHT, TOP, Chart, LegendEntry, Line, Point
from recurra.tasks.reporting import Reporting
from recurra.tasks.summary import Comparison, Summary, TableSummary

TEMPLATES = Path(__file__).parent / "templates"
LARGEST_BUBBLE = 26.0
SMALLEST_BUBBLE = 2.5
WIDE, ROW_HEIGHT = 560.0, 38.0
LONGEST_NAME = 84

_VARIABLE = re.compile(r"var\(--([\w-]+)\)")
_DECLARATION = re.compile(r"--([\w-]+):\s*([^;]+);")
Box = tuple[float, float, float, float]


# Charts by the key of their table; charts across tables have an empty key.
Charts = dict[str, list[Chart]]


def draw(summary: Summary) -> Charts:
    """Makes all charts of a study."""
    if not summary.task:
        return {"": []}
    reporting = reporting_of(summary.task)
    tables = {table.key: charts_of(table, f"t{index}", reporting) for index, table in enumerate(summary.tables)}
    return {"": reporting.charts_across(summary.tables), **tables}


def charts_of(table: TableSummary, key: str, reporting: Reporting) -> list[Chart]:
    """All charts of a table; charts without content are left out."""
    costs = costs_of(table.models, table.batch_sizes)
    timed = [(latency_cost(batch), f"latency, batch {batch}", "ms") for batch in table.batch_sizes]
    priced = [(PRICE, "price", "price")] if PRICE in costs else []
    charts = [
        quality_against_cost(table, costs[cost], cost, name=name, unit=unit, key=f"{key}-{index}")
        for index, (cost, name, unit) in enumerate([*(timed or [(SIZE, "size", "MiB")]), *priced])
    ]
    charts.append(contrasts(table, f"{key}-contrasts"))
    return [*(chart for chart in charts if chart is not None), *reporting.charts(table, key)]


def quality_against_cost(
    table: TableSummary, costs: Mapping[str, float], cost: str, *, name: str, unit: str, key: str
) -> Chart | None:
    """Quality against a cost; the area of a bubble is the size on disk.

    ``cost`` is the name of the cost in `recurra.report.summary`, ``name`` is the same in words; ``key`` is unique in
    the page.

    Returns:
        ``None`` if no model has both and may be compared.
    """
    split, measure = table.headline_split, table.judged_by
    quality = measure.in_text
    models = [
        (model, Point(costs[model.label], estimate.mean, estimate.low, estimate.high))
        for model in table.models
        if model.label in costs and not model.barred and (estimate := measure.of(model, split)) is not None
    ]
    if not models:
        return None
    values = [value for _, point in models for value in point[1:] if value is not None]
    pad = max(max(values) - min(values), 0.01) * 0.15
    y = drawing.linear_axis(
        [min(values) - pad, max(values) + pad], f"{quality} on {split}", "{:.3f}".format, limits=measure.limits
    )
    title = {SIZE: "MiB on disk", PRICE: "price a text"}.get(cost, f"median {unit} a text, {name.partition(', ')[2]}")
    model_costs = [point.x for _, point in models]
    if min(model_costs) > 0 and max(model_costs) / min(model_costs) > 8:
        x = drawing.logarithmic_axis(model_costs, title)
    else:
        x = drawing.linear_axis([0.0, max(model_costs) * 1.15], title, ends=(LEFT, RIGHT), ticks=4)
    largest = max(model.file_size_mib for model, _ in models) or 1.0
    lines, bubbles, circles, bars, facts = [], [], [], [], []
    for model, point in models:
        cx, cy = x(point.x), y(point.y)
        radius = max(LARGEST_BUBBLE * math.sqrt(model.file_size_mib / largest), SMALLEST_BUBBLE)
        circles.append((cx, cy, radius))
        # A model that is known only by its answers has no size.
        size = [] if model.kind == ANSWERS else [f"{significant(model.file_size_mib)} MiB"]
        numbers = dict.fromkeys([f"{significant(point.x)} {unit}", *size])
        facts.append(f"{model.label}: {quality} {measure.value(point.y)}, {', '.join(numbers)}")
        hint = drawing.element("title", facts[-1])
        class_ = f"bubble {drawing.series(model.color)}"
        bubbles.append(drawing.element("circle", hint, cx=cx, cy=cy, r=radius, class_=class_))
        if point.low is not None and point.high is not None:
            bars.append((cx - _HALF_BAR, y(point.high), cx + _HALF_BAR, y(point.low)))
        lines.append(Line(drawing.labelled(model.label, "".join(f": {mib}" for mib in size)), model.color, [point]))
    front_points = [
        (model.label, circle[:2]) for (model, _), circle in zip(models, circles, strict=True) if cost in model.fronts
    ]
    front = drawing.polyline(sorted(position for _, position in front_points), "front")
    power = 10.0 ** math.floor(math.log10(largest))
    reference = next(factor * power for factor in (5, 2, 1) if factor * power <= largest * 1.0001)
    area = f"area = size on disk; this is {significant(reference)} MiB"
    return drawing.line_chart(
        "trade-off",
        f"{measure.heading} against {name}",
        lines,
        x,
        y,
        key=key,
        description=f"Bubble area is the size on disk. {'; '.join(facts)}.",
        under=[*([front] if len(front_points) > 1 else []), *bubbles],
        over=_bubble_labels([model.label for model, _ in models], circles, bars),
        legend=[LegendEntry(area, None, "size", LARGEST_BUBBLE * math.sqrt(reference / largest))],
        caption=f"{'Up' if measure.higher_is_better else 'Down'} and left is better. Vertical lines are the 95 % "
        f"intervals of {quality}. Pareto front (dotted; no model is both cheaper and {measure.better}): "
        f"{words([label for label, _ in front_points])}.",
    )


# Half of the width that an interval's bar keeps free of names.
_HALF_BAR = 3.0
# Characters of a name that does not fit as a whole.
_SHORT_NAME = 22


def _bubble_labels(
    names: Sequence[str], circles: Sequence[tuple[float, float, float]], bars: Sequence[Box]
) -> list[Markup]:
    """Names, whole or cut, beside the bubbles where they cross no interval; the legend lists all names."""
    taken, labels = [*bars], []
    for name, circle in zip(names, circles, strict=True):
        places = [(text, box) for text in (name, drawing.short(name, _SHORT_NAME)) for box in _places(text, *circle)]
        for text, box in places:
            if not any(_overlap(box, other) for other in taken):
                taken.append(box)
                labels.append(drawing.label(box[0], box[3] - 2, text))
                break
    return labels


def _places(name: str, cx: float, cy: float, radius: float) -> list[Box]:
    """Boxes for a name above, below, right and left of a bubble that lie inside the axes."""
    # Names are bold.
    width = len(name) * drawing.CHARACTER_WIDTH * 1.12
    middle = min(max(cx - width / 2, LEFT + 2), RIGHT - width)
    above, below = (middle, cy - radius - 5), (middle, cy + radius + drawing.TEXT_HEIGHT + 1)
    starts = (above, below, (cx + radius + 4, cy + 4), (cx - radius - 4 - width, cy + 4))
    boxes = [(left, base - drawing.TEXT_HEIGHT, left + width, base + 2) for left, base in starts]
    return [box for box in boxes if box[0] >= LEFT and box[2] <= RIGHT + 8 and box[1] >= 0 and box[3] <= BOTTOM - 2]


def _overlap(first: Box, second: Box) -> bool:
    return first[0] < second[2] and first[2] > second[0] and first[1] < second[3] and first[3] > second[1]


def contrasts(table: TableSummary, key: str) -> Chart | None:
    """The contrasts of a table as intervals around their gaps; None if the table has no contrasts."""
    lines, measure = table.contrasts, table.judged_by
    if not lines:
        return None
    bottom = TOP + ROW_HEIGHT * len(lines)
    ends = [end * measure.scale for line in lines for end in _ends(line)]
    pad = max(max(ends) - min(ends), 0.005 * measure.scale) * 0.05
    x = drawing.linear_axis([min(ends) - pad, max(ends) + pad, 0.0], ends=(14.0, WIDE - 14.0), ticks=8)
    parts = [
        drawing.segment(x(tick), TOP, x(tick), bottom + 4, "grid")
        + drawing.text(x(tick), bottom + 17, significant(tick).replace("-", "−"), "middle", "tick")
        for tick in x.ticks
    ]
    parts.append(drawing.segment(x(0.0), TOP, x(0.0), bottom, "zero"))
    side = "right" if measure.higher_is_better else "left"
    title = f"gap in {measure.in_text} in {measure.unit}; {side} of 0 the first model is better"
    parts.append(drawing.text(WIDE / 2, bottom + 34, title, "middle", "axis-title"))
    for index, line in enumerate(lines):
        top = TOP + ROW_HEIGHT * index
        y, half = top + 27, line.half
        parts.append(drawing.label(16.0, top + 14, drawing.short(f"{line.name}: {line.a} − {line.b}", LONGEST_NAME)))
        over_seeds = (None, None) if half is None else (line.gap - half, line.gap + half)
        for (low, high), style in (((line.low, line.high), "rows"), (over_seeds, "interval")):
            if low is not None and high is not None:
                parts.append(drawing.segment(x(low * measure.scale), y, x(high * measure.scale), y, f"{style} s0"))
        shape = "mark s0" if line.verdict == "distinguishable" else "open s0"
        hint = drawing.element("title", f"{line.a} − {line.b}: {line.gap:+.4g}, {line.verdict}")
        parts.append(drawing.element("circle", hint, cx=x(line.gap * measure.scale), cy=y, r=4.2, class_=shape))
    by_rows = measure.paired_by_rows
    description = "; ".join(f"{line.name}: {measure.gap(line.gap)}, {line.verdict}" for line in lines)
    return drawing.chart(
        "isolation",
        "What each change does",
        f"On {table.headline_split}. {description}.",
        key,
        *parts,
        legend=[
            LegendEntry("95 % over seeds", 0, "interval"),
            *([LegendEntry("95 % over rows", 0, "rows")] if by_rows else []),
            LegendEntry("distinguishable", 0, "mark"),
            LegendEntry(f"{'by rows only, ' if by_rows else ''}not distinguishable, or untested", 0, "open"),
        ],
        caption=f"Gaps between the models that the study names, on {table.headline_split}.",
        size=(WIDE, bottom + 44),
    )


def _ends(line: Comparison) -> list[float]:
    half = line.half or 0.0
    return [line.gap - half, line.gap + half, *(end for end in (line.low, line.high) if end is not None)]


def standalone(chart: Chart) -> str:
    """The text of an SVG file of a chart, without heading and caption."""
    width, height = map(drawing.number, chart.size)
    start = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
    inner = re.sub(r' style="[^"]*"', "", str(chart.drawing), count=1).removeprefix("<svg ")
    svg = f"{start}{inner.replace('>', f'><style>{stylesheet()}</style>', 1)}\n"
    # A lone surrogate from a broken label cannot be written as UTF-8.
    return svg.encode("utf-8", "replace").decode("utf-8")


@lru_cache(maxsize=1)
def stylesheet() -> str:
    """The style of the page's charts on white, without variables, which few programs except browsers support."""
    colors, rules = ((TEMPLATES / name).read_text(encoding="utf-8") for name in ("colors.css", "chart.css"))
    values = dict(_DECLARATION.findall(colors.partition("@media")[0]))
    return _VARIABLE.sub(lambda variable: values[variable[1]], rules)
