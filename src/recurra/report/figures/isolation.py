"""The gaps that a study isolates, one row each: what width does, what sharing does, and how sure that is."""

from __future__ import annotations

from markupsafe import Markup

from recurra.core.formatting import significant
from recurra.tasks.drawing import svg
from recurra.tasks.drawing.chart import Chart, LegendEntry
from recurra.tasks.measures import Measure
from recurra.tasks.summary import ContrastLine, TableSummary

WIDTH = 560.0
LEFT = 14.0
RIGHT = 546.0
ROW = 38.0
TOP = 8.0
LONGEST_NAME = 84


def isolation(table: TableSummary, key: str, measure: Measure) -> Chart | None:
    """The contrasts of a table as intervals around their gaps.

    Args:
        table: The table.
        key: Unique in the page.
        measure: What the gaps are of.

    Returns:
        ``None`` if the study named no contrast of models that are there.
    """
    lines = table.contrasts
    if not lines:
        return None
    bottom = TOP + ROW * len(lines)
    ends = [end * measure.scale for line in lines for end in _ends(line)]
    pad = max(max(ends) - min(ends), 0.005 * measure.scale) * 0.05
    x = svg.linear_scale([min(ends) - pad, max(ends) + pad, 0.0], LEFT, RIGHT, ticks=8)
    parts = [
        svg.element("line", x1=x(tick), x2=x(tick), y1=TOP, y2=bottom + 4, class_="grid")
        + svg.text(x(tick), bottom + 17, significant(tick).replace("-", "−"), "middle", "tick")
        for tick in x.ticks
    ]
    parts.append(svg.element("line", x1=x(0.0), x2=x(0.0), y1=TOP, y2=bottom, class_="zero"))
    side = "right" if measure.higher_is_better else "left"
    title = f"gap in {measure.heading.lower()} in {measure.unit}; {side} of 0 the first model is better"
    parts.append(svg.text((LEFT + RIGHT) / 2, bottom + 34, title, "middle", "axis-title"))
    parts += [_row(line, index, x, measure.scale) for index, line in enumerate(lines)]
    described = "; ".join(f"{line.name}: {measure.gap(line.gap)}, {line.verdict}" for line in lines)
    heading = "What each change does"
    return Chart(
        "isolation",
        heading,
        svg.figure(WIDTH, bottom + 44, heading, f"On {table.headline_split}. {described}.", key, *parts),
        [
            LegendEntry("95 % over seeds", 0, "interval"),
            *([LegendEntry("95 % over rows", 0, "rows")] if measure.paired_by_rows else []),
            LegendEntry("distinguishable", 0, "mark"),
            LegendEntry(
                f"{'by rows only, ' if measure.paired_by_rows else ''}not distinguishable, or untested", 0, "open"
            ),
        ],
        f"Gaps between the models that the study names, on {table.headline_split}.",
    )


def _ends(line: ContrastLine) -> list[float]:
    half = line.half or 0.0
    rows = [end for end in (line.low, line.high) if end is not None]
    return [line.gap - half, line.gap + half, *rows]


def _row(line: ContrastLine, index: int, x: svg.Scale, scale: float) -> Markup:
    top = TOP + ROW * index
    y = top + 27
    name = svg.short(f"{line.name}: {line.a} − {line.b}", LONGEST_NAME)
    drawn = svg.label(LEFT + 2, top + 14, name)
    if line.low is not None and line.high is not None:
        drawn += svg.element("line", x1=x(line.low * scale), x2=x(line.high * scale), y1=y, y2=y, class_="rows s0")
    if line.half is not None:
        low, high = x((line.gap - line.half) * scale), x((line.gap + line.half) * scale)
        drawn += svg.element("line", x1=low, x2=high, y1=y, y2=y, class_="interval s0")
    shape = "mark s0" if line.verdict == "distinguishable" else "open s0"
    hint = svg.tooltip(f"{line.a} − {line.b}: {line.gap * scale:+.4g}, {line.verdict}")
    return drawn + svg.element("circle", hint, cx=x(line.gap * scale), cy=y, r=4.2, class_=shape)
