"""A drawing as a file of its own: heading, legend and caption inside, colours for light and dark, nothing from outside.

The page's style sheet gives colours through variables, which few programs but browsers read; here they are written out.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from markupsafe import Markup

from recurra.tasks.drawing import svg
from recurra.tasks.drawing.chart import Chart

TEMPLATES = Path(__file__).parents[1] / "render" / "templates"
SERIES = 8
MARGIN = 10.0
HEADING_HEIGHT = 24.0
LINE_HEIGHT = 15.0
LEGEND_ROW = 18.0

_RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
_VARIABLE = re.compile(r"var\(--([\w-]+)\)")
_DECLARATION = re.compile(r"--([\w-]+):\s*([^;]+);")


def standalone(chart: Chart, table: str = "") -> str:
    """The text of an SVG file of a drawing.

    Args:
        chart: The drawing with its heading, legend and caption.
        table: Heading of the table that it belongs to, if it belongs to one.
    """
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', chart.drawing)
    if box is None:
        raise ValueError(f"the drawing '{chart.heading}' has no view box")
    inner_width, inner_height = float(box[1]), float(box[2])
    width = max(inner_width, 300.0) + 2 * MARGIN
    top = MARGIN + HEADING_HEIGHT
    headings = textwrap.wrap(chart.heading, int((width - 2 * MARGIN) / (svg.CHARACTER_WIDTH * 1.15)))
    parts = [
        svg.text(MARGIN, MARGIN + 13 + LINE_HEIGHT * index, line, class_="strong")
        for index, line in enumerate(headings)
    ]
    top += LINE_HEIGHT * (len(headings) - 1)
    for line in textwrap.wrap(table, int((width - 2 * MARGIN) / (svg.CHARACTER_WIDTH * 0.92))):
        parts.append(svg.text(MARGIN, top + 2, line, class_="tick"))
        top += LINE_HEIGHT
    parts.append(_placed(chart.drawing, MARGIN, top, inner_width, inner_height))
    legend, bottom = _legend(chart, top + inner_height + 8, width)
    parts += legend
    for line in textwrap.wrap(chart.caption, int((width - 2 * MARGIN) / (svg.CHARACTER_WIDTH * 0.92))):
        bottom += LINE_HEIGHT
        parts.append(svg.text(MARGIN, bottom, line, class_="tick"))
    height = bottom + MARGIN
    drawn = svg.element(
        "svg",
        svg.element("style", Markup(stylesheet())),
        svg.element("rect", width=width, height=height, class_="ground"),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        width=width,
        height=height,
        viewBox=f"0 0 {svg.number(width)} {svg.number(height)}",
    )
    # A lone surrogate from a broken label cannot be written as UTF-8.
    return f"{drawn}\n".encode("utf-8", "replace").decode("utf-8")


def _placed(drawing: str, x: float, y: float, width: float, height: float) -> Markup:
    """A drawing inside another one; ``style`` is for the page only."""
    place = f'<svg x="{svg.number(x)}" y="{svg.number(y)}" width="{svg.number(width)}" height="{svg.number(height)}" '
    return Markup(re.sub(r' style="[^"]*"', "", place + str(drawing).removeprefix("<svg "), count=1))


def _legend(chart: Chart, top: float, width: float) -> tuple[list[Markup], float]:
    """Entries side by side as far as they fit; returns them and where they end."""
    parts: list[Markup] = []
    x, y, row = MARGIN, top, LEGEND_ROW
    for entry in chart.legend:
        side = 2 * entry.radius + 2 if entry.style == "size" else 18.0
        tall = max(LEGEND_ROW, side + 4) if entry.style == "size" else LEGEND_ROW
        label = svg.short(entry.label, 60)
        needed = side + 7 + len(label) * svg.CHARACTER_WIDTH + 14
        if x > MARGIN and x + needed > width - MARGIN:
            x, y, row = MARGIN, y + row, LEGEND_ROW
        row = max(row, tall)
        high = side if entry.style == "size" else 12.0
        swatch = str(entry.swatch).removeprefix("<svg ")
        parts.append(Markup(f'<svg x="{svg.number(x)}" y="{svg.number(y + (tall - high) / 2)}" {swatch}'))
        parts.append(svg.text(x + side + 7, y + tall / 2 + 4, label))
        x += needed
    return parts, y + (row if chart.legend else 0.0) + 2


@lru_cache(maxsize=1)
def stylesheet() -> str:
    """The style of the page's drawings without variables: light, and dark where the reader asks for it."""
    colors, rules = ((TEMPLATES / name).read_text(encoding="utf-8") for name in ("colors.css", "chart.css"))
    light, _, dark = colors.partition("@media")
    of_light = dict(_DECLARATION.findall(light))
    of_dark = of_light | dict(_DECLARATION.findall(dark))
    rules += "svg .ground { fill: var(--surface); }\n"
    return f"{_resolve(rules, of_light)}@media (prefers-color-scheme: dark) {{\n{_resolve(rules, of_dark)}}}\n"


def _resolve(rules: str, colors: dict[str, str]) -> str:
    lines = []
    for selectors, body in _RULE.findall(rules):
        if body.strip().startswith("--"):
            continue
        # The colour of a series is set by a class beside that of the shape.
        if "var(--c)" in body:
            for index in range(SERIES):
                named = ", ".join(f"{selector.strip()}.s{index}" for selector in selectors.split(","))
                lines.append(f"{named} {{{_fill(body, {**colors, 'c': colors[f'c{index}']})}}}")
        else:
            lines.append(f"{selectors.strip()} {{{_fill(body, colors)}}}")
    return "\n".join(lines) + "\n"


def _fill(body: str, colors: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: colors[found[1]], body)
