"""The drawing of plans: what each keeps of the encoder against what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recurra.models.adaptation.function import ScoredPlan
from recurra.tasks.drawing import svg
from recurra.tasks.drawing.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, LegendEntry

# Colours and markers that can be told apart; deeper plans share the last.
_SERIES = 6


@dataclass(frozen=True)
class PlanPoint:
    """A plan that was scored, and what its model costs.

    Attributes:
        scored: The plan and what it keeps.
        parameters: That are stored, without a head.
        ms: Estimated time of a text by itself; none if it was not asked for.
    """

    scored: ScoredPlan
    parameters: int
    ms: float | None = None


def draw_plans(points: Sequence[PlanPoint], encoder: str, texts: int) -> Chart:
    """A drawing of plans, best first.

    Where all plans store as many parameters, the horizontal axis is how many layers they apply.

    Args:
        points: The plans.
        encoder: Name of the encoder.
        texts: Texts that they were scored on.
    """
    sizes = [point.parameters / 1e6 for point in points]
    by_size = len(set(sizes)) > 1
    places = sizes if by_size else [float(point.scored.plan.applied) for point in points]
    kept = [point.scored.kept for point in points]
    low, high = min(places), max(places)
    pad = 0.06 * (high - low) or 0.5
    x = svg.linear_scale([low - pad, high + pad], LEFT, RIGHT, ticks=4)
    y = svg.linear_scale([min(kept), max(kept)], BOTTOM, TOP, ceiling=1.0)
    fewest = min(point.scored.plan.applied for point in points)
    series = [min(point.scored.plan.applied - fewest, _SERIES - 1) for point in points]
    title = "parameters without a head, millions" if by_size else "layers applied"
    parts = [
        svg.axes(
            x,
            y,
            x_title=title,
            y_title="kept of the encoder",
            x_format=lambda value: f"{value:.4g}",
            y_format=lambda value: f"{value:.2f}",
        )
    ]
    parts += [
        svg.marker(number, x(place), y(value), 2.6, hint=f"{point.scored.plan}: {value:.3f}")
        for point, number, place, value in reversed(list(zip(points, series, places, kept, strict=True)))
    ]
    best = points[0]
    name = f"{best.scored.plan}: {best.scored.kept:.2f}"
    right = x(places[0]) + 6 + len(name) * svg.CHARACTER_WIDTH
    left = x(places[0]) + 6 if right < RIGHT else x(places[0]) - 6 - len(name) * svg.CHARACTER_WIDTH
    parts.append(svg.label(left, y(kept[0]) + 4, name))
    more = {number: point.scored.plan.applied for number, point in zip(series, points, strict=True)}
    legend = [
        LegendEntry(f"{_applied(number, fewest, more)} applied", number, "mark") for number in sorted(set(series))
    ]
    heading = f"Kept of {encoder} by each plan"
    described = "; ".join(f"{each.scored.plan}: {each.scored.kept:.3f}" for each in points[:10])
    return Chart(
        "plans",
        heading,
        svg.figure(WIDTH, HEIGHT, heading, f"The best plans: {described}.", "plans", *parts),
        legend,
        f"Before any training: mean cosine of the centred output and the encoder's, on {texts} texts. Up is better.",
    )


def _applied(number: int, fewest: int, found: dict[int, int]) -> str:
    return f"{fewest + number}{'+' if number == _SERIES - 1 and found[number] > fewest + number else ''} layers"
