"""A drawing with its heading, legend and caption, and the size that all drawings share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from recurra.tasks.drawing import svg

WIDTH = 380.0
HEIGHT = 264.0
LEFT = 58.0
RIGHT = 366.0
TOP = 12.0
BOTTOM = 218.0


@dataclass(frozen=True)
class LegendEntry:
    """What a colour, line or size stands for.

    ``style`` is ``mark``, ``open``, ``bar``, ``size``, or a line's: ``solid``, ``dashed``, ``interval``, ``rows``.
    """

    label: str
    color: int | None
    style: str
    radius: float = 0.0

    @property
    def swatch(self) -> Markup:
        """A small drawing of it."""
        color = "ink" if self.color is None else f"s{self.color % 8}"
        if self.style == "size":
            side = 2 * self.radius + 2
            circle = svg.element("circle", cx=side / 2, cy=side / 2, r=self.radius, class_="size-key")
            return svg.element("svg", circle, width=side, height=side, aria_hidden="true")
        if self.style == "mark":
            inside = svg.marker(self.color or 0, 9, 6, 4, hint="")
        elif self.style == "open":
            inside = svg.element("circle", cx=9, cy=6, r=4, class_=f"open {color}")
        elif self.style in ("interval", "rows"):
            inside = svg.element("line", x1=1, x2=17, y1=6, y2=6, class_=f"{self.style} {color}")
        elif self.style == "bar":
            inside = svg.element("rect", x=1, y=1, width=16, height=10, class_=f"area {color}")
        else:
            inside = svg.element("line", x1=0, x2=18, y1=6, y2=6, class_=f"line {self.style} {color}")
        return svg.element("svg", inside, width=18, height=12, aria_hidden="true")


@dataclass(frozen=True)
class Chart:
    """A drawing with its heading, legend and caption."""

    kind: Literal[
        "trade-off",
        "size",
        "isolation",
        "loss",
        "accuracy",
        "lengths",
        "confusion",
        "data-size",
        "by-loop",
        "exits",
        "speed-up",
        "plans",
        "learning-curve",
        "calibration",
    ]
    heading: str
    drawing: Markup
    legend: list[LegendEntry]
    caption: str = ""
