"""The gaps that a study isolates, one row each: what width does, what sharing does, and how sure that is."""

from __future__ import annotations

from markupsafe import Markup

from recurra.study.report import svg
from recurra.study.report.answers import ContrastLine
from recurra.study.report.chart import Chart, LegendEntry
from recurra.study.report.formatting import points, significant
from recurra.study.report.summary import TableSummary

WIDTH = 560.0
LEFT = 14.0
RIGHT = 546.0
ROW = 38.0
TOP = 8.0
LONGEST_NAME = 84


def isolation(table: TableSummary, key: str) -> Chart | None:
    """The contrasts of a table as intervals around their gaps, in points of accuracy.

    Args:
        table: The table.
        key: Unique in the page.

    Returns:
        ``None`` if the study named no contrast of models that are there.
    """
    lines = table.contrasts
    if not lines:
        return None
    bottom = TOP + ROW * len(lines)
    ends = [end * 100 for line in lines for end in _ends(line)]
    pad = max(max(ends) - min(ends), 0.5) * 0.05
    x = svg.linear_scale([min(ends) - pad, max(ends) + pad, 0.0], LEFT, RIGHT, ticks=8)
    parts = [
        svg.element("line", x1=x(tick), x2=x(tick), y1=TOP, y2=bottom + 4, class_="grid")
        + svg.text(x(tick), bottom + 17, significant(tick).replace("-", "−"), "middle", "tick")
        for tick in x.ticks
    ]
    parts.append(svg.element("line", x1=x(0.0), x2=x(0.0), y1=TOP, y2=bottom, class_="zero"))
    title = "gap in accuracy in points; right of 0 the first model is better"
    parts.append(svg.text((LEFT + RIGHT) / 2, bottom + 34, title, "middle", "axis-title"))
    parts += [_row(line, index, x) for index, line in enumerate(lines)]
    described = "; ".join(f"{line.name}: {points(line.gap)}, {line.verdict}" for line in lines)
    heading = "What each change does"
    return Chart(
        "isolation",
        heading,
        svg.figure(WIDTH, bottom + 44, heading, f"On {table.headline_split}. {described}.", key, *parts),
        [
            LegendEntry("95 % over seeds", 0, "interval"),
            LegendEntry("95 % over rows", 0, "rows"),
            LegendEntry("distinguishable", 0, "mark"),
            LegendEntry("by rows only, not distinguishable, or untested", 0, "open"),
        ],
        f"Gaps between the models that the study names, on {table.headline_split}.",
    )


def _ends(line: ContrastLine) -> list[float]:
    half = line.half or 0.0
    rows = [end for end in (line.low, line.high) if end is not None]
    return [line.gap - half, line.gap + half, *rows]


def _row(line: ContrastLine, index: int, x: svg.Scale) -> Markup:
    top = TOP + ROW * index
    y = top + 27
    name = svg.short(f"{line.name}: {line.a} − {line.b}", LONGEST_NAME)
    drawn = svg.label(LEFT + 2, top + 14, name)
    if line.low is not None and line.high is not None:
        drawn += svg.element("line", x1=x(line.low * 100), x2=x(line.high * 100), y1=y, y2=y, class_="rows s0")
    if line.half is not None:
        low, high = x((line.gap - line.half) * 100), x((line.gap + line.half) * 100)
        drawn += svg.element("line", x1=low, x2=high, y1=y, y2=y, class_="interval s0")
    shape = "mark s0" if line.verdict == "distinguishable" else "open s0"
    return drawn + svg.element("circle", cx=x(line.gap * 100), cy=y, r=4.2, class_=shape)
