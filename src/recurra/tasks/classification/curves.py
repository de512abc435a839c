"""Learning curves: loss and validation accuracy by epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from recurra.core.formatting import decimal, words
from recurra.core.record import EpochRecord
from recurra.tasks.drawing import svg
from recurra.tasks.drawing.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, LegendEntry
from recurra.tasks.summary import ModelSummary

Histories = Mapping[str, Sequence[Sequence[EpochRecord]]]


def _epoch_scale(histories: Sequence[Sequence[EpochRecord]]) -> svg.Scale:
    epochs = sorted({epoch.epoch for history in histories for epoch in history})
    low, high = epochs[0], epochs[-1]
    every = max(1, math.ceil((high - low) / 10))
    pad = 0.5 if low == high else (high - low) * 0.04
    ticks = tuple(float(epoch) for epoch in range(low, high + 1, every))
    return svg.Scale(low - pad, high + pad, LEFT, RIGHT, ticks)


def accuracy_by_epoch(models: Sequence[ModelSummary], histories: Histories, key: str) -> Chart:
    """Accuracy on the split that chooses the checkpoint, all models in one drawing.

    Args:
        models: The models that have a history.
        histories: Histories of their seeds, by label.
        key: Unique in the page.
    """
    everything = [history for model in models for history in histories[model.label]]
    x = _epoch_scale(everything)
    values = [epoch.validation_accuracy for history in everything for epoch in history]
    y = svg.linear_scale(values, BOTTOM, TOP, floor=0.0, ceiling=1.0)
    parts = [_epoch_axes(x, y, "validation accuracy", 3)]
    several = False
    for model in models:
        of_model = histories[model.label]
        several = several or len(of_model) > 1
        for history in of_model if len(of_model) > 1 else ():
            points = [(x(epoch.epoch), y(epoch.validation_accuracy)) for epoch in history]
            parts.append(svg.polyline(points, f"line thin s{model.color % 8}"))
        means = _mean_by_epoch(of_model)
        points = [(x(epoch), y(value)) for epoch, value in means]
        parts.append(svg.polyline(points, f"line solid s{model.color % 8}"))
        parts += [svg.marker(model.color, px, py) for px, py in points]
    described = "; ".join(
        f"{model.label} from {_mean_by_epoch(histories[model.label])[0][1]:.4f} "
        f"to at best {max(value for _, value in _mean_by_epoch(histories[model.label])):.4f}"
        for model in models
    )
    heading = "Validation accuracy by epoch"
    return Chart(
        "accuracy",
        heading,
        svg.figure(WIDTH, HEIGHT, heading, f"On the split that chooses the checkpoint. {described}.", key, *parts),
        [LegendEntry(model.label, model.color, "mark") for model in models],
        "On the split that chooses the checkpoint."
        + (" Thick lines are means over the seeds that got that far, thin lines single seeds." if several else ""),
    )


def _mean_by_epoch(histories: Sequence[Sequence[EpochRecord]]) -> list[tuple[int, float]]:
    """Mean accuracy for each epoch that every seed reached: a mean over fewer seeds would jump for no reason."""
    by_epoch: dict[int, list[float]] = {}
    for history in histories:
        for epoch in history:
            by_epoch.setdefault(epoch.epoch, []).append(epoch.validation_accuracy)
    return [
        (epoch, sum(values) / len(values))
        for epoch, values in sorted(by_epoch.items())
        if len(values) == len(histories)
    ]


def _epoch_axes(x: svg.Scale, y: svg.Scale, y_title: str, digits: int) -> Markup:
    return svg.axes(
        x,
        y,
        x_title="epoch",
        y_title=y_title,
        x_format=lambda value: f"{value:.0f}",
        y_format=lambda value: decimal(value, digits),
    )


def loss_limits(histories: Histories) -> list[float]:
    """All losses of all models: what the common scale has to hold."""
    epochs = [epoch for of_model in histories.values() for history in of_model for epoch in history]
    return [*(epoch.train_loss for epoch in epochs), *(epoch.validation_loss for epoch in epochs)]


def loss_by_epoch(
    model: ModelSummary,
    histories: Sequence[Sequence[EpochRecord]],
    best_epochs: Sequence[int],
    limits: Sequence[float],
    key: str,
) -> Chart:
    """Train and validation loss of one model, a line a seed.

    Args:
        model: The model.
        histories: A history a seed.
        best_epochs: The epoch that each seed kept.
        limits: Losses that the scale has to hold, see `loss_limits`.
        key: Unique in the page.
    """
    x = _epoch_scale(histories)
    y = svg.linear_scale(limits, BOTTOM, TOP, floor=0.0)
    parts = [_epoch_axes(x, y, "loss in nats", 2)]
    color = f"s{model.color % 8}"
    for history in histories:
        train = [(x(epoch.epoch), y(epoch.train_loss)) for epoch in history]
        validation = [(x(epoch.epoch), y(epoch.validation_loss)) for epoch in history]
        parts += [svg.polyline(train, f"line dashed {color}"), svg.polyline(validation, f"line solid {color}")]
        parts += [svg.marker(model.color, px, py, 2.4) for px, py in (*train, *validation)]
    for history, best in zip(histories, best_epochs, strict=False):
        parts += [
            svg.element("circle", cx=x(epoch.epoch), cy=y(epoch.validation_loss), r=6.5, class_="ring")
            for epoch in history
            if epoch.epoch == best
        ]
    ends = words([f"{history[-1].train_loss:.3f} and {history[-1].validation_loss:.3f}" for history in histories])
    heading = f"Loss by epoch: {model.label}"
    return Chart(
        "loss",
        heading,
        svg.figure(WIDTH, HEIGHT, heading, f"Train and validation loss end at {ends}.", key, *parts),
        [
            LegendEntry("validation", model.color, "solid"),
            LegendEntry("train", model.color, "dashed"),
            LegendEntry("epoch that was kept", None, "size", 5.0),
        ],
        "A line a seed; the scale of losses is the same for every model.",
    )
