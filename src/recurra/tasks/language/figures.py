"""Drawings of a language study: loss by epoch, and loss and perplexity by loop ("CRT-Deep", figures 2 and 3).

The other panels of figure 2, where tokens leave and what that saves, are `exit_figures`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from recurra.core.formatting import decimal, significant
from recurra.core.language_record import FINAL_HEAD
from recurra.tasks.drawing import svg
from recurra.tasks.drawing.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, LegendEntry
from recurra.tasks.language.exit_figures import exit_charts
from recurra.tasks.language.summary import LanguageModelSummary, LanguageTable

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
        charts.append(learning_curve(curves, f"{key}-curve"))
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


def learning_curve(models: Sequence[LanguageModelSummary], key: str) -> Chart:
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
        for index, style in ((1, "dashed"), (2, "solid")):
            points = [(x(row[0]), y(row[index])) for row in means[model.label]]
            parts.append(svg.polyline(points, f"line {style} s{place % SERIES}"))
            parts += [svg.marker(place, px, py, 2.6) for px, py in points]
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
        parts += [svg.marker(place, px, py) for px, py in points]
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
