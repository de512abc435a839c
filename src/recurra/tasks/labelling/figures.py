"""Drawings of models that label texts, whatever their labels are."""

from __future__ import annotations

from recurra.core.formatting import count
from recurra.core.label_record import LearningCurveRecord
from recurra.tasks.drawing import svg
from recurra.tasks.drawing.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, LegendEntry


def by_training_rows(curve: LearningCurveRecord, label: str, color: int, key: str) -> Chart:
    """Share of rows that a model gets right with fewer training rows.

    Args:
        curve: The shares.
        label: Of the model.
        color: Its colour.
        key: Unique in the page.
    """
    x = svg.logarithmic_scale(curve.rows, LEFT, RIGHT)
    y = svg.linear_scale(curve.right, BOTTOM, TOP, floor=0.0, ceiling=1.0)
    points = [(x(rows), y(right)) for rows, right in zip(curve.rows, curve.right, strict=True)]
    titles = (f"{curve.split} rows right", "training rows")
    axes = svg.axes(x, y, x_title=titles[1], y_title=titles[0], x_format=count, y_format=lambda v: f"{v:.3f}")
    said = [f"{count(rows)}: {right:.4f}" for rows, right in zip(curve.rows, curve.right, strict=True)]
    marks = (svg.marker(color, *point, hint=each) for point, each in zip(points, said, strict=True))
    parts = [axes, svg.polyline(points, f"line solid s{color % 8}"), *marks]
    heading = "What more labels bring"
    facts = "; ".join(said)
    described = f"Share of {curve.split} rows that {label} gets right, by training rows: {facts}."
    drawing = svg.figure(WIDTH, HEIGHT, heading, described, key, *parts)
    return Chart("learning-curve", heading, drawing, [LegendEntry(label, color, "mark")], described)
