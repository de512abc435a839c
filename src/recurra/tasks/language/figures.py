"""Drawings of a language study: loss by epoch, and loss and perplexity by loop ("CRT-Deep", figures 2 and 3).

The other panels of figure 2, where tokens leave and what that saves, are below.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from recurra.core.exits_record import EarlyExitRecord, ExitsRecord
from recurra.core.formatting import decimal, significant
from recurra.core.language_record import FINAL_HEAD
from recurra.tasks.drawing import svg
from recurra.tasks.drawing.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, LegendEntry
from recurra.tasks.language.summary import LanguageModelSummary, LanguageTable

EXIT_SERIES = 8


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
            parts.append(svg.element("rect", class_=f"area s{place % EXIT_SERIES}", **box))
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
        parts.append(
            svg.polyline([(x(loss), y(speed)) for loss, speed in line], f"line {style} s{place % EXIT_SERIES}")
        )
        parts += [
            svg.marker(place, x(loss), y(speed), 2.8, hint=f"{label}, batch {size}: {speed:.2f} times at {loss:.3f}")
            for loss, speed in line
        ]
        legend.append(LegendEntry(f"{label}, batch {size}", place, style))
    for place, (loss, speed) in rules:
        parts.append(svg.element("circle", cx=x(loss), cy=y(speed), r=5, class_=f"open s{place % EXIT_SERIES}"))
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
    each = zip(*(found.by_loop for found in exits), strict=True)
    points = [_mean_point(kept, batch_size) for kept in each]
    return [*points, (statistics.fmean(found.full_loss for found in exits), 1.0)]


def _rule_point(exits: Sequence[ExitsRecord], batch_size: int) -> tuple[float, float] | None:
    chosen = [found.chosen for found in exits if found.chosen is not None]
    return _mean_point(chosen, batch_size) if chosen else None


def _mean_point(exits: Sequence[EarlyExitRecord], batch_size: int) -> tuple[float, float]:
    speeds = [timed.speed_up for one in exits for timed in one.timed if timed.batch_size == batch_size]
    return statistics.fmean(one.loss for one in exits), statistics.fmean(speeds)


SERIES = 8


def language_charts(table: LanguageTable, key: str) -> list[Chart]:
    """All drawings of a table; those for which there is nothing to draw are left out.

    Args:
        table: The table.
        key: Unique in the page, for element identifiers.
    """
    charts = []
    curves = [model for model in table.models if max(map(len, model.history), default=0) > 1]
    if curves:
        charts.append(loss_by_epoch(curves, f"{key}-curve"))
    with_exits = [model for model in table.models if len(_heads(model, table)) > 1]
    if with_exits:
        split = table.headline_split
        charts.append(by_loop(with_exits, table, f"Loss by loop on {split}", "loss", f"{key}-loss"))
        charts.append(
            by_loop(with_exits, table, f"Perplexity a token by loop on {split}", "token_perplexity", f"{key}-ppl")
        )
    return [*charts, *exit_charts(table.models, key)]


def _heads(model: LanguageModelSummary, table: LanguageTable) -> list[str]:
    return list(model.scores[table.headline_split])


def loss_by_epoch(models: Sequence[LanguageModelSummary], key: str) -> Chart:
    """The objective on train and on validation by epoch, means over seeds; on a logarithmic scale.

    Args:
        models: Models with more than one epoch.
        key: Unique in the page.
    """
    means = {model.label: _epochs(model) for model in models}
    last = max(epoch for rows in means.values() for epoch, *_ in rows)
    every = max(1, math.ceil(last / 10))
    ticks = tuple(float(epoch) for epoch in range(1, last + 1, every))
    x = svg.Scale(1 - 0.08 * last, last + 0.08 * last, LEFT, RIGHT, ticks)
    values = [value for rows in means.values() for _, *losses in rows for value in losses]
    y = svg.logarithmic_scale(values, BOTTOM, TOP)
    parts = [_axes(x, y, "epoch", "objective in nats a token", lambda value: f"{value:.0f}")]
    legend = []
    for place, model in enumerate(models):
        for index, style, split in ((1, "dashed", "train"), (2, "solid", "validation")):
            rows = [(row[0], row[index]) for row in means[model.label]]
            points = [(x(epoch), y(value)) for epoch, value in rows]
            parts.append(svg.polyline(points, f"line {style} s{place % SERIES}"))
            parts += [
                svg.marker(place, *point, 2.6, hint=f"{model.label}, {split}, epoch {epoch:g}: {value:.3f}")
                for point, (epoch, value) in zip(points, rows, strict=True)
            ]
        legend.append(LegendEntry(model.label, place, "mark"))
    ends = "; ".join(f"{label} ends at {rows[-1][1]:.3f} and {rows[-1][2]:.3f}" for label, rows in means.items())
    heading = "Objective by epoch"
    drawing = svg.figure(WIDTH, HEIGHT, heading, f"On train and on validation: {ends}.", key, *parts)
    caption = "Solid: validation, dashed: train. The weighed mean of all heads' losses; mean over seeds."
    return Chart("loss", heading, drawing, legend, caption)


def _epochs(model: LanguageModelSummary) -> list[tuple[int, float, float]]:
    """Epoch, train and validation objective, mean over the seeds; only epochs that every seed has."""
    rows = []
    for epochs in zip(*model.history, strict=False):
        train = sum(epoch.train_loss for epoch in epochs) / len(epochs)
        validation = sum(epoch.validation_loss for epoch in epochs) / len(epochs)
        rows.append((epochs[0].epoch, train, validation))
    return rows


def by_loop(models: Sequence[LanguageModelSummary], table: LanguageTable, heading: str, figure: str, key: str) -> Chart:
    """A figure of every head in the order of loops, on a logarithmic scale.

    Args:
        models: Models with more than one head.
        table: Theirs.
        heading: Of the drawing.
        figure: ``loss`` or ``token_perplexity``.
        key: Unique in the page.
    """
    names = max((_heads(model, table) for model in models), key=len)
    x = svg.Scale(-0.4, len(names) - 0.6, LEFT, RIGHT, tuple(float(place) for place in range(len(names))))
    scores = {model.label: model.scores[table.headline_split] for model in models}
    found = {
        label: [(name, getattr(score, figure)) for name, score in heads.items() if getattr(score, figure) is not None]
        for label, heads in scores.items()
    }
    values = [value for rows in found.values() for _, value in rows]
    y = svg.logarithmic_scale(values or [1.0], BOTTOM, TOP)
    parts = [_axes(x, y, "head after loop", heading.partition(" by ")[0].lower(), lambda value: _loop(names, value))]
    for place, model in enumerate(models):
        points = [(x(_place(names, name)), y(value)) for name, value in found[model.label]]
        parts.append(svg.polyline(points, f"line solid s{place % SERIES}"))
        parts += [
            svg.marker(place, *point, hint=f"{model.label}, {name}: {value:,.3g}")
            for point, (name, value) in zip(points, found[model.label], strict=True)
        ]
    said = "; ".join(
        f"{label}: {', '.join(f'{name} {value:,.3g}' for name, value in rows)}" for label, rows in found.items()
    )
    drawing = svg.figure(WIDTH, HEIGHT, heading, f"{said}.", key, *parts)
    legend = [LegendEntry(model.label, place, "mark") for place, model in enumerate(models)]
    return Chart("by-loop", heading, drawing, legend, "The last head is the final one. Logarithmic scale.")


def _place(names: Sequence[str], name: str) -> float:
    return float(len(names) - 1 if name == FINAL_HEAD else names.index(name) if name in names else 0)


def _loop(names: Sequence[str], value: float) -> str:
    return names[round(value)].removeprefix("exit-")


def _axes(x: svg.Scale, y: svg.Scale, x_title: str, y_title: str, x_format: Callable[[float], str]) -> str:
    return svg.axes(
        x,
        y,
        x_title=x_title,
        y_title=y_title,
        x_format=x_format,
        y_format=lambda value: decimal(value, 1) if value < 10 else significant(value),
    )
