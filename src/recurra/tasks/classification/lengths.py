"""Distributions of the lengths of texts, one over the other."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from recurra.core.record import LengthSummary
from recurra.tasks import drawing
from recurra.tasks.drawing import LEFT, RIGHT, Chart, Line, Point

SHARE_DRAWN = 0.995


def length_chart(heading: str, named: Mapping[str, LengthSummary], key: str) -> Chart:
    """Distributions of lengths in words over each other."""
    end = max(_edge_of_share(lengths) for lengths in named.values())
    lines = [
        Line(name, color, _outline(lengths, end), "outline") for color, (name, lengths) in enumerate(named.items())
    ]
    ends, limits = (LEFT, RIGHT), (0.0, float(end))
    x = drawing.linear_axis(limits, "words in a text", "{:.0f}".format, ends=ends, ticks=6, limits=limits)
    shares = [point.y for line in lines for point in line.points]
    y = drawing.linear_axis(shares, "% of texts, a word of length", limits=(0.0, None))
    facts = "; ".join(
        f"{name}: mean {lengths.mean:.1f}, median {lengths.median:.0f}, 90 % up to {lengths.p90:.0f}, "
        f"longest {lengths.max}"
        for name, lengths in named.items()
    )
    beyond = end <= max(lengths.max for lengths in named.values())
    caption = f"{facts}.{' The longest 0.5 % or fewer are cut off.' if beyond else ''}"
    return drawing.line_chart("lengths", heading, lines, x, y, key=key, description=f"{facts}.", caption=caption)


def _edge_of_share(lengths: LengthSummary) -> int:
    """The first edge below which nearly all texts lie."""
    below = np.cumsum(lengths.counts)
    return lengths.edges[1 + int(np.searchsorted(below, SHARE_DRAWN * below[-1]))]


def _outline(lengths: LengthSummary, end: int) -> list[Point]:
    """Percent of texts a word: bins differ in width, so areas and not heights are shares."""
    total, points = sum(lengths.counts), [Point(0.0, 0.0)]
    for left, right, rows in zip(lengths.edges, lengths.edges[1:], lengths.counts, strict=False):
        if left < end:
            share = 100.0 * rows / total / max(right - left, 1)
            points += [Point(left, share), Point(min(right, end), share)]
    return [*points, Point(points[-1].x, 0.0)]
