"""Charts as small inline SVG: elements with escaped content, scales with round ticks, axes, markers, line charts.

Elements carry classes instead of colours, and a style sheet colours them, so that one drawing serves light, dark and
paper.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from markupsafe import Markup, escape

from recurra.core.terminal import count, decimal, significant

WIDTH, HEIGHT = 380.0, 264.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 366.0, 12.0, 218.0
CHARACTER_WIDTH = 6.1
TEXT_HEIGHT = 11.0
LONGEST_LABEL = 60
COLORS = 8
# Corners of the marker of each series, in units of its radius; the first marker is a circle.
_SHAPES = (
    (),
    ((-1, -1), (1, -1), (1, 1), (-1, 1)),
    ((0, -1.25), (1.2, 1), (-1.2, 1)),
    ((0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)),
    ((-1.2, -1), (1.2, -1), (0, 1.25)),
)


def element(name: str, *children: str, **attributes: str | float | None) -> Markup:
    """One element. Children that are not `Markup` are text and are escaped, as are all values.

    Args:
        name: Tag.
        children: Elements and text inside it.
        attributes: Underscores stand for hyphens, ``class_`` for ``class``; ``None`` leaves one out.
    """
    parts = []
    for key, value in attributes.items():
        if value is not None:
            text = number(value) if isinstance(value, (int, float)) else value
            parts.append(f' {key.rstrip("_").replace("_", "-")}="{escape(text)}"')
    inside = "".join(escape(child) for child in children)
    return Markup(f"<{name}{''.join(parts)}>{inside}</{name}>")


def number(value: float) -> str:
    """A coordinate: two decimals at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def short(text: str, characters: int) -> str:
    """Cuts a long text in the middle and marks the cut: names of variants differ at the end."""
    end = (characters - 1) // 2
    return text if len(text) <= characters else f"{text[: characters - 1 - end]}…{text[len(text) - end :]}"


def labelled(name: str, suffix: str) -> str:
    """A name and its suffix, within the longest label of a legend: the name is cut, never the suffix."""
    return short(name, LONGEST_LABEL - len(suffix)) + suffix


def series(index: int) -> str:
    """The class that colours a series."""
    return f"s{index % COLORS}"


@dataclass(frozen=True)
class Axis:
    """Maps values to coordinates: ``low`` to ``start`` and ``high`` to ``end``, linearly or by logarithm.

    ``text`` writes a value.
    """

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    title: str = ""
    text: Callable[[float], str] = significant
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Coordinate of a value; values outside are put at the edge."""
        if self.logarithmic:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)


def linear_axis(
    values: Sequence[float],
    title: str = "",
    text: Callable[[float], str] = significant,
    *,
    ends: tuple[float, float] = (BOTTOM, TOP),
    ticks: int = 5,
    limits: tuple[float | None, float | None] = (None, None),
) -> Axis:
    """A linear axis, upright by default, whose round ends enclose all values and stay within the limits."""
    low, high = min(values), max(values)
    if high - low < 1e-9:
        pad = abs(high) * 0.05 or 0.5
        low, high = low - pad, high + pad
    raw_step = (high - low) / max(ticks, 1)
    magnitude = 10.0 ** math.floor(math.log10(raw_step))
    step = next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= raw_step * 0.999)
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    floor, ceiling = limits
    low = low if floor is None else max(low, floor)
    high = high if ceiling is None else min(high, ceiling)
    if high <= low:
        high = low + step
    first = math.ceil(low / step - 1e-9)
    marks = tuple(index * step for index in range(first, math.floor(high / step + 1e-9) + 1))
    return Axis(low, high, *ends, marks, title, text)


def logarithmic_axis(values: Sequence[float], title: str = "", text: Callable[[float], str] = significant) -> Axis:
    """A horizontal axis of positive values; ticks at 1, 2 and 5 times the powers of ten, fewer over a wide range."""
    low, high = min(values) / 1.6, max(values) * 1.6
    factors = (1, 2, 5) if math.log10(high / low) < 2.5 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = tuple(factor * 10.0**power for power in powers for factor in factors)
    visible_marks = tuple(mark for mark in marks if low <= mark <= high)
    return Axis(low, high, LEFT, RIGHT, visible_marks, f"{title} (logarithmic)", text, logarithmic=True)


def whole_axis(low: int, high: int, title: str, text: Callable[[float], str] = "{:.0f}".format) -> Axis:
    """A horizontal axis of whole numbers with about ten ticks."""
    pad = max((high - low) * 0.04, 0.5 if low == high else 0.0)
    step = max(1, math.ceil((high - low) / 10))
    return Axis(low - pad, high + pad, LEFT, RIGHT, tuple(map(float, range(low, high + 1, step))), title, text)


def text(x: float, y: float, content: str, anchor: str = "start", class_: str | None = None) -> Markup:
    """A line of text; ``anchor`` is ``start``, ``middle`` or ``end``."""
    return element("text", content, x=x, y=y, text_anchor=anchor, class_=class_)


def label(x: float, y: float, content: str) -> Markup:
    """A name with a rim in the background colour: a second text, since not every program paints rims first."""
    return text(x, y, content, class_="halo") + text(x, y, content, class_="label")


def upright(x: float, y: float, content: str) -> Markup:
    """The title of an upright axis, read from below, centred on ``y``."""
    turn = f"rotate(-90 {number(x)} {number(y)})"
    return element("text", content, x=x, y=y, text_anchor="middle", class_="axis-title", transform=turn)


def segment(x: float, y: float, end_x: float, end_y: float, class_: str) -> Markup:
    """A straight line."""
    return element("line", x1=x, x2=end_x, y1=y, y2=end_y, class_=class_)


def axes(x: Axis, y: Axis) -> Markup:
    """Both axes with grid lines, ticks, tick labels and titles."""
    parts = [
        segment(x.start, y(tick), x.end, y(tick), "grid")
        + text(x.start - 6, y(tick) + 3.6, y.text(tick), "end", "tick")
        for tick in y.ticks
    ]
    parts += [
        segment(x(tick), y.start, x(tick), y.start + 4, "axis")
        + text(x(tick), y.start + 16, x.text(tick), "middle", "tick")
        for tick in x.ticks
    ]
    parts += [
        segment(x.start, y.start, x.end, y.start, "axis"),
        segment(x.start, y.start, x.start, y.end, "axis"),
        text((x.start + x.end) / 2, y.start + 33, x.title, "middle", "axis-title"),
        upright(11, (y.start + y.end) / 2, y.title),
    ]
    return Markup("").join(parts)


def polyline(points: Sequence[tuple[float, float]], class_: str) -> Markup:
    """An open line through points in coordinates."""
    return element("polyline", points=" ".join(f"{number(x)},{number(y)}" for x, y in points), class_=class_)


def marker(index: int, x: float, y: float, size: float = 3.4, *, hint: str = "") -> Markup:
    """The marker of a series; its shape identifies it as well as its colour, so that it works without colour."""
    inside = [element("title", hint)] if hint else []
    class_ = f"mark {series(index)}"
    corners = _SHAPES[index % len(_SHAPES)]
    if not corners:
        return element("circle", *inside, cx=x, cy=y, r=size, class_=class_)
    points = " ".join(f"{number(x + 1.1 * size * dx)},{number(y + 1.1 * size * dy)}" for dx, dy in corners)
    return element("polygon", *inside, points=points, class_=class_)


@dataclass(frozen=True)
class LegendEntry:
    """What a colour, line or size stands for.

    ``style`` is ``mark``, ``open``, ``size``, or a line's: ``solid``, ``interval``, ``rows``.
    """

    label: str
    color: int | None
    style: str
    radius: float = 0.0

    @property
    def height(self) -> float:
        """Height of its row."""
        return max(18.0, 2 * self.radius + 6)

    def drawn(self, y: float) -> Markup:
        """A small drawing of it and its label, in a row around ``y``."""
        x, color = 10.0, series(self.color or 0)
        if self.style == "size":
            swatch = element("circle", cx=x + self.radius, cy=y, r=self.radius, class_="size-key")
        elif self.style == "mark":
            swatch = marker(self.color or 0, x + 9, y, 4)
        elif self.style == "open":
            swatch = element("circle", cx=x + 9, cy=y, r=4, class_=f"open {color}")
        else:
            swatch = segment(x + 1, y, x + 17, y, f"{'line' if self.style == 'solid' else self.style} {color}")
        return swatch + text(x + max(18.0, 2 * self.radius) + 7, y + 4, short(self.label, LONGEST_LABEL))


Kind = Literal[
    "trade-off", "isolation", "loss", "accuracy", "lengths", "confusion", "data-size", "difficulty", "by-loop", "exits"
]


@dataclass(frozen=True)
class Chart:
    """A drawing with its legend, its heading and caption, and the width and height of its view box."""

    kind: Kind
    heading: str
    drawing: Markup
    caption: str
    size: tuple[float, float]


def chart(
    kind: Kind,
    heading: str,
    description: str,
    key: str,
    *children: str,
    legend: Sequence[LegendEntry] = (),
    caption: str = "",
    size: tuple[float, float] = (WIDTH, HEIGHT),
) -> Chart:
    """A chart of elements, with the legend in rows below them.

    The heading is its accessible name, the description is for readers who cannot see it, ``key`` is unique in the page,
    and ``size`` is that of the elements, in CSS pixels at which text has its natural size.
    """
    width, height = size
    rows = []
    for entry in legend:
        rows.append(entry.drawn(height + entry.height / 2))
        height += entry.height
    drawing = element(
        "svg",
        element("title", heading, id=f"{key}-title"),
        element("desc", description, id=f"{key}-desc"),
        *children,
        *rows,
        class_="chart",
        viewBox=f"0 0 {number(width)} {number(height)}",
        role="img",
        aria_labelledby=f"{key}-title {key}-desc",
        style=f"--natural:{number(width)}px",
    )
    return Chart(kind, heading, drawing, caption, (width, height))


class Point(NamedTuple):
    """A point of a line, with the ends of its interval if it has one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


Style = Literal["solid", "dashed", "outline"]
_BY_EPOCH: tuple[Style, ...] = ("solid", "dashed")


@dataclass(frozen=True)
class Line:
    """A series of a line chart.

    ``style`` is ``solid``, ``dashed``, which stands beside the solid one of the same name and is not in the legend, or
    ``outline``, of a distribution, whose points have no markers.
    """

    label: str
    color: int
    points: Sequence[Point]
    style: Style = "solid"


def line_chart(
    kind: Kind,
    heading: str,
    lines: Sequence[Line],
    x: Axis,
    y: Axis,
    *,
    key: str,
    caption: str,
    description: str = "",
    under: Sequence[Markup] = (),
    over: Sequence[Markup] = (),
    legend: Sequence[LegendEntry] = (),
) -> Chart:
    """Lines with a marker at each point, intervals where points have them, and elements drawn under and over them.

    The default description says where each line begins and ends; the entries of ``legend`` follow those of the lines.
    """
    parts = [axes(x, y), *under]
    for line in lines:
        coordinates = [(x(point.x), y(point.y)) for point in line.points]
        color = series(line.color)
        if len(coordinates) > 1:
            parts.append(polyline(coordinates, f"line {line.style} {color}"))
        if line.style == "outline":
            continue
        dashed = " (dashed)" if line.style == "dashed" else ""
        for (left, top), point in zip(coordinates, line.points, strict=True):
            if point.low is not None and point.high is not None:
                parts.append(segment(left, y(point.low), left, y(point.high), f"error {color}"))
            hint = f"{line.label}{dashed}, {x.title} {x.text(point.x)}: {point.y:.4g}"
            parts.append(marker(line.color, left, top, 2.8, hint=hint))
    named = [line for line in lines if line.style != "dashed"]
    spans = [
        f"{line.label} from {y.text(line.points[0].y)} to {y.text(line.points[-1].y)}" for line in named if line.points
    ]
    entries = [LegendEntry(line.label, line.color, "solid" if line.style == "outline" else "mark") for line in named]
    summary = description or f"{y.title} by {x.title}: {'; '.join(spans)}."
    return chart(kind, heading, summary, key, *parts, *over, legend=[*entries, *legend], caption=caption)


def chart_by_epoch(
    kind: Kind,
    heading: str,
    histories: Sequence[tuple[str, int, Sequence[Sequence[Any]]]],
    fields: Sequence[str],
    key: str,
    *,
    y_title: str,
    digits: int,
    caption: str,
) -> Chart:
    """Means over seeds by epoch, for the epochs that all seeds reached; a mean over fewer seeds would jump.

    ``histories`` hold label, colour, and the epochs of each seed. Each of ``fields`` of an epoch is a line; the second
    one is dashed. ``key`` is unique in the page.
    """
    lines = []
    for label_, color, seeds in histories:
        common_epochs = list(zip(*seeds, strict=False))
        for field, style in zip(fields, _BY_EPOCH, strict=False):
            means = [statistics.fmean(getattr(epoch, field) for epoch in epochs) for epochs in common_epochs]
            points = [Point(epochs[0].epoch, mean) for epochs, mean in zip(common_epochs, means, strict=True)]
            lines.append(Line(label_, color, points, style))
    points = [point for line in lines for point in line.points]
    epoch_numbers = [int(point.x) for point in points]
    y = linear_axis([point.y for point in points], y_title, lambda value: decimal(value, digits), limits=(0.0, None))
    x = whole_axis(min(epoch_numbers), max(epoch_numbers), "epoch")
    return line_chart(kind, heading, lines, x, y, key=key, caption=caption)


def chart_by_rows(heading: str, lines: Sequence[Line], y_title: str, key: str, caption: str) -> Chart:
    """Quality by the number of training rows, on a logarithmic scale."""
    points = [point for line in lines for point in line.points]
    rows = sorted({point.x for point in points})
    x = replace(logarithmic_axis(rows, "rows trained on", count), ticks=tuple(rows))
    values = [value for point in points for value in point[1:] if value is not None]
    y = linear_axis(values, y_title, lambda value: decimal(value, 3), limits=(0.0, 1.0))
    return line_chart("data-size", heading, lines, x, y, key=key, caption=caption)
