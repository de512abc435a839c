"""Small inline SVG: elements with escaped content, scales with round ticks, axes, markers.

Colours are never written here: elements carry classes, and the page's style sheet gives them colours through variables,
so that one drawing serves light, dark and paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

CHARACTER_WIDTH = 6.1
TEXT_HEIGHT = 11.0
_HALF_CROSS = ((-1.4, -0.7), (-0.7, -1.4), (0.0, -0.6), (0.7, -1.4), (1.4, -0.7), (0.6, 0.0))
MARKERS = ("circle", "square", "triangle", "diamond", "wedge", "cross")


def element(name: str, *children: str, **attributes: str | float | None) -> Markup:
    """One element. Children that are not `Markup` are text and are escaped, as are all values.

    Args:
        name: Tag.
        children: Elements and text inside it.
        attributes: Underscores stand for hyphens, ``class_`` for ``class``; ``None`` leaves one out.
    """
    parts = []
    for key, value in attributes.items():
        if value is None:
            continue
        text = number(value) if isinstance(value, (int, float)) else value
        parts.append(f' {key.rstrip("_").replace("_", "-")}="{escape(text)}"')
    inside = "".join(escape(child) for child in children)
    return Markup(f"<{name}{''.join(parts)}>{inside}</{name}>")


def number(value: float) -> str:
    """A coordinate: two decimals at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def short(text: str, characters: int) -> str:
    """Cuts a long text and marks the cut."""
    return text if len(text) <= characters else text[: characters - 1] + "…"


def figure(width: float, height: float, title: str, description: str, key: str, *children: str) -> Markup:
    """The ``svg`` element with a title and a description for who cannot see it.

    Args:
        width: Width of the view box; also the width in CSS pixels at which text has its natural size.
        height: Height of the view box.
        title: Accessible name.
        description: What the drawing shows, with its main figures.
        key: Unique in the page.
        children: The drawing.
    """
    return element(
        "svg",
        element("title", title, id=f"{key}-title"),
        element("desc", description, id=f"{key}-desc"),
        *children,
        class_="chart",
        viewBox=f"0 0 {number(width)} {number(height)}",
        role="img",
        aria_labelledby=f"{key}-title {key}-desc",
        style=f"--natural:{number(width)}px",
    )


@dataclass(frozen=True)
class Scale:
    """Maps values to coordinates, linearly or by logarithm, with round ticks.

    Attributes:
        low: Lowest value shown.
        high: Highest value shown.
        start: Coordinate of ``low``.
        end: Coordinate of ``high``.
        ticks: Values to mark.
        logarithmic: Whether equal distances are equal ratios.
    """

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Coordinate of a value; values outside are placed at the edge."""
        if self.logarithmic:
            share = (math.log(max(value, self.low)) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)


def _step(span: float, ticks: int) -> float:
    raw = span / max(ticks, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)


def linear_scale(
    values: Sequence[float],
    start: float,
    end: float,
    *,
    ticks: int = 5,
    floor: float | None = None,
    ceiling: float | None = None,
) -> Scale:
    """A linear scale that holds all values between round ends.

    Args:
        values: What is to be shown, not empty.
        start: Coordinate of the low end.
        end: Coordinate of the high end.
        ticks: About how many ticks.
        floor: The scale does not go below this.
        ceiling: The scale does not go above this.
    """
    low, high = min(values), max(values)
    if high - low < 1e-9:
        pad = abs(high) * 0.05 or 0.5
        low, high = low - pad, high + pad
    step = _step(high - low, ticks)
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    if floor is not None:
        low = max(low, floor)
    if ceiling is not None:
        high = min(high, ceiling)
    if high <= low:
        high = low + step
    first = math.ceil(low / step - 1e-9)
    marks = tuple(index * step for index in range(first, math.floor(high / step + 1e-9) + 1))
    return Scale(low, high, start, end, marks)


def logarithmic_scale(values: Sequence[float], start: float, end: float) -> Scale:
    """A logarithmic scale for positive values; ticks at 1, 2 and 5 times the powers of ten, fewer over a wide range."""
    low, high = min(values) / 1.6, max(values) * 1.6
    decades = math.log10(high / low)
    factors = (1, 2, 5) if decades < 2.5 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = tuple(factor * 10.0**power for power in powers for factor in factors)
    return Scale(low, high, start, end, tuple(mark for mark in marks if low <= mark <= high), logarithmic=True)


def text(x: float, y: float, content: str, anchor: str = "start", class_: str | None = None) -> Markup:
    """A line of text; ``anchor`` is ``start``, ``middle`` or ``end``."""
    return element("text", content, x=x, y=y, text_anchor=anchor, class_=class_)


def label(x: float, y: float, content: str) -> Markup:
    """A name with a rim in the colour of the ground: a second text, since not every program paints rims first."""
    return text(x, y, content, class_="halo") + text(x, y, content, class_="label")


def upright(x: float, y: float, content: str) -> Markup:
    """The title of an upright axis, read from below, centred on ``y``."""
    turn = f"rotate(-90 {number(x)} {number(y)})"
    return element("text", content, x=x, y=y, text_anchor="middle", class_="axis-title", transform=turn)


def axes(
    x: Scale,
    y: Scale,
    *,
    x_title: str,
    y_title: str,
    x_format: Callable[[float], str],
    y_format: Callable[[float], str],
) -> Markup:
    """Both axes with grid lines, ticks, tick labels and titles."""
    parts = [
        element("line", x1=x.start, x2=x.end, y1=y(tick), y2=y(tick), class_="grid")
        + text(x.start - 6, y(tick) + 3.6, y_format(tick), "end", "tick")
        for tick in y.ticks
    ]
    parts += [
        element("line", x1=x(tick), x2=x(tick), y1=y.start, y2=y.start + 4, class_="axis")
        + text(x(tick), y.start + 16, x_format(tick), "middle", "tick")
        for tick in x.ticks
    ]
    parts += [
        element("line", x1=x.start, x2=x.end, y1=y.start, y2=y.start, class_="axis"),
        element("line", x1=x.start, x2=x.start, y1=y.start, y2=y.end, class_="axis"),
        text((x.start + x.end) / 2, y.start + 33, x_title, "middle", "axis-title"),
        upright(11, (y.start + y.end) / 2, y_title),
    ]
    return Markup("").join(parts)


def polyline(points: Sequence[tuple[float, float]], class_: str) -> Markup:
    """An open line through points in coordinates."""
    return element("polyline", points=" ".join(f"{number(x)},{number(y)}" for x, y in points), class_=class_)


def tooltip(text: str) -> Markup:
    """What a browser shows while the pointer rests on the element that this stands in; needs no script."""
    return element("title", text)


def marker(index: int, x: float, y: float, size: float = 3.4, *, hint: str) -> Markup:
    """The marker of a series: shape and colour both tell it, so that it is known on grey paper too.

    Args:
        index: Of the series.
        x: Place.
        y: Place.
        size: Radius, about.
        hint: What a pointer that rests on it is shown; empty for one that stands for no value.
    """
    shape = MARKERS[index % len(MARKERS)]
    class_ = f"mark s{index % 8}"
    inside = [tooltip(hint)] if hint else []
    if shape == "circle":
        return element("circle", *inside, cx=x, cy=y, r=size, class_=class_)
    s = size * 1.1
    paths = {
        "square": ((-s, -s), (s, -s), (s, s), (-s, s)),
        "triangle": ((0, -s * 1.25), (s * 1.2, s), (-s * 1.2, s)),
        "diamond": ((0, -s * 1.4), (s * 1.4, 0), (0, s * 1.4), (-s * 1.4, 0)),
        "wedge": ((-s * 1.2, -s), (s * 1.2, -s), (0, s * 1.25)),
        "cross": tuple((s * sign * dx, s * sign * dy) for sign in (1, -1) for dx, dy in _HALF_CROSS),
    }
    points = " ".join(f"{number(x + dx)},{number(y + dy)}" for dx, dy in paths[shape])
    return element("polygon", *inside, points=points, class_=class_)
