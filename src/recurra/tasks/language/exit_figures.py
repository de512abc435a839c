"""Leaving early, drawn: where tokens leave, and what that saves against what it costs ("CRT-Deep", figure 2)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from recurra.core.exits_record import EarlyExitRecord, ExitsRecord
from recurra.core.formatting import decimal
from recurra.tasks.drawing import svg
from recurra.tasks.drawing.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, LegendEntry
from recurra.tasks.language.summary import LanguageModelSummary

SERIES = 8


def exit_charts(models: Sequence[LanguageModelSummary], key: str) -> list[Chart]:
    """Both drawings, for the models whose exits were kept; none where none were.

    Args:
        models: All of a table; a model keeps its colour in both.
        key: Unique in the page.
    """
    charts = []
    chosen = [(place, model) for place, model in enumerate(models) if any(found.chosen for found in model.exits)]
    if chosen:
        charts.append(_distribution(chosen, f"{key}-taken"))
    kept = [(place, model) for place, model in enumerate(models) if model.exits]
    if kept:
        charts.append(_speed_up(kept, f"{key}-speed-up"))
    return charts


def shares_by_loops(exits: Sequence[ExitsRecord]) -> dict[int, float]:
    """Share of tokens by the recurrences that they take under the chosen rule, mean over seeds that have one."""
    counts = [found.chosen.taken for found in exits if found.chosen is not None]
    numbers = sorted({number for one in counts for number in one})
    return {number: statistics.fmean(one.get(number, 0) / sum(one.values()) for one in counts) for number in numbers}


def _distribution(models: Sequence[tuple[int, LanguageModelSummary]], key: str) -> Chart:
    shares = {model.label: shares_by_loops(model.exits) for _, model in models}
    last = max(found.num_recurrences for _, model in models for found in model.exits)
    x = svg.Scale(0.4, last + 0.6, LEFT, RIGHT, tuple(float(number) for number in range(1, last + 1)))
    y = svg.linear_scale([0.0, 1.0], BOTTOM, TOP, floor=0.0, ceiling=1.0)
    parts = [
        svg.axes(
            x, y, x_title="loops that a token takes", y_title="share of tokens",
            x_format=lambda value: f"{value:.0f}", y_format=lambda value: f"{100 * value:.0f} %",
        )
    ]  # fmt: skip
    width = 0.8 / len(models)
    for index, (place, model) in enumerate(models):
        for number, share in shares[model.label].items():
            left, right = (x(number - 0.4 + width * (index + side)) for side in (0, 1))
            box = {"x": left, "y": y(share), "width": right - left, "height": y(0.0) - y(share)}
            parts.append(svg.element("rect", class_=f"area s{place % SERIES}", **box))
    split = models[0][1].exits[0].split
    said = "; ".join(
        f"{label}: {', '.join(f'{number} {100 * share:.0f} %' for number, share in found.items())}"
        for label, found in shares.items()
    )
    heading = f"Loops taken on {split}"
    drawing = svg.figure(WIDTH, HEIGHT, heading, f"{said}.", key, *parts)
    legend = [LegendEntry(f"{model.label}: {_rule(model)}", place, "bar") for place, model in models]
    return Chart("exits", heading, drawing, legend, "Under the rule that was chosen on validation; mean over seeds.")


def _rule(model: LanguageModelSummary) -> str:
    labels = {found.chosen.label for found in model.exits if found.chosen is not None}
    return labels.pop() if len(labels) == 1 else "a rule chosen for each seed"


def _speed_up(models: Sequence[tuple[int, LanguageModelSummary]], key: str) -> Chart:
    """Decoding's speed-up in wall-clock against its loss: every exit by itself, and the chosen rule."""
    lines = [
        (place, model.label, size, exit_points(model.exits, size)) for place, model in models for size in _sizes(model)
    ]
    found = [(place, _rule_point(model.exits, size)) for place, model in models for size in _sizes(model)]
    rules = [(place, point) for place, point in found if point is not None]
    points = [*(point for *_, line in lines for point in line), *(point for _, point in rules)]
    x = svg.linear_scale([loss for loss, _ in points], LEFT, RIGHT, ticks=4)
    y = svg.linear_scale([*(speed for _, speed in points), 1.0], BOTTOM, TOP, floor=0.0)
    split = models[0][1].exits[0].split
    parts = [
        svg.axes(
            x, y, x_title=f"loss on {split}, nats a token", y_title="times as fast as in full",
            x_format=lambda value: decimal(value, 2), y_format=lambda value: decimal(value, 2),
        )
    ]  # fmt: skip
    legend = []
    smallest = min(size for _, _, size, _ in lines)
    for place, label, size, line in lines:
        style = "solid" if size == smallest else "dashed"
        parts.append(svg.polyline([(x(loss), y(speed)) for loss, speed in line], f"line {style} s{place % SERIES}"))
        parts += [svg.marker(place, x(loss), y(speed), 2.8) for loss, speed in line]
        legend.append(LegendEntry(f"{label}, batch {size}", place, style))
    for place, (loss, speed) in rules:
        parts.append(svg.element("circle", cx=x(loss), cy=y(speed), r=5, class_=f"open s{place % SERIES}"))
    legend += [
        LegendEntry(f"{model.label}: {_rule(model)}", place, "open")
        for place, model in models
        if any(kept.chosen for kept in model.exits)
    ]
    said = "; ".join(
        f"{label} at batch {size}: {', '.join(f'{speed:.2f} times at {loss:.3f}' for loss, speed in line)}"
        for _, label, size, line in lines
    )
    heading = f"Speed-up against loss on {split}"
    drawing = svg.figure(WIDTH, HEIGHT, heading, f"{said}.", key, *parts)
    caption = "Wall-clock of decoding, in turns with the full model (1 times); every exit by itself. Mean over seeds."
    return Chart("speed-up", heading, drawing, legend, caption)


def _sizes(model: LanguageModelSummary) -> list[int]:
    return [timed.batch_size for timed in model.exits[0].fixed[0].timed]


def exit_points(exits: Sequence[ExitsRecord], batch_size: int) -> list[tuple[float, float]]:
    """Loss and speed-up of every exit and of the full model, means over seeds, the first exit first."""
    each = zip(*(found.fixed for found in exits), strict=True)
    points = [_mean_point(kept, batch_size) for kept in each]
    return [*points, (statistics.fmean(found.full_loss for found in exits), 1.0)]


def _rule_point(exits: Sequence[ExitsRecord], batch_size: int) -> tuple[float, float] | None:
    chosen = [found.chosen for found in exits if found.chosen is not None]
    return _mean_point(chosen, batch_size) if chosen else None


def _mean_point(exits: Sequence[EarlyExitRecord], batch_size: int) -> tuple[float, float]:
    speeds = [timed.speed_up for one in exits for timed in one.timed if timed.batch_size == batch_size]
    return statistics.fmean(one.loss for one in exits), statistics.fmean(speeds)
