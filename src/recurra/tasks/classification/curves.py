"""Learning curves: loss and validation accuracy by epoch; and what a change does across data sets."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from recurra.core.formatting import count, decimal, words
from recurra.core.record import EpochRecord, LengthSummary, RunRecord
from recurra.tasks.classification.figures import length_chart
from recurra.tasks.classification.summary import ClassificationTable
from recurra.tasks.drawing import svg
from recurra.tasks.drawing.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, LegendEntry
from recurra.tasks.estimates import Estimate
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
        parts += [
            svg.marker(model.color, *point, hint=f"{model.label}, epoch {epoch:g}: {value:.4f}")
            for point, (epoch, value) in zip(points, means, strict=True)
        ]
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
        for name, line, losses in (
            ("train", train, [epoch.train_loss for epoch in history]),
            ("validation", validation, [epoch.validation_loss for epoch in history]),
        ):
            parts += [
                svg.marker(model.color, *point, 2.4, hint=f"{name} loss, epoch {epoch.epoch:g}: {loss:.4f}")
                for point, epoch, loss in zip(line, history, losses, strict=True)
            ]
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


@dataclass(frozen=True)
class _Part:
    """One table and the part of the corpus that it was trained on."""

    table: ClassificationTable
    record: RunRecord
    fraction: float
    tail: str
    tail_fraction: float

    @property
    def words(self) -> LengthSummary | None:
        split = self.record.data.splits.get("train")
        return split.words if split and sum(split.words.counts) else None


def study_charts(tables: Sequence[ClassificationTable], records: Mapping[str, RunRecord]) -> list[Chart]:
    """Drawings across tables; none for a study of one part of one corpus.

    Args:
        tables: The tables of the study.
        records: Records of the runs, by run identifier.
    """
    groups: dict[tuple[str, str], list[_Part]] = defaultdict(list)
    for table in tables:
        groups[table.data, table.protocol].append(_part(table, records))
    charts: list[Chart | None] = []
    for index, ((data, protocol), parts) in enumerate(groups.items()):
        name = f"{data}, {protocol}"
        charts.append(_lengths_of_fractions(name, parts, f"s{index}-fractions"))
        charts += _lengths_of_tails(name, parts, f"s{index}-tails")
        charts += _accuracy_by_rows(name, parts, f"s{index}-rows")
    return [chart for chart in charts if chart is not None]


def _part(table: ClassificationTable, records: Mapping[str, RunRecord]) -> _Part:
    record = records[table.models[0].runs[0].run_id]
    found = record.config.get("data")
    settings = found if isinstance(found, dict) else {}
    return _Part(
        table,
        record,
        float(settings.get("fraction") or 1.0),
        str(settings.get("length_tail") or ""),
        float(settings.get("tail_fraction") or 0.0),
    )


def _share(fraction: float) -> str:
    return "whole" if fraction == 1 else f"{fraction * 100:.3g} %"


def _lengths_of_fractions(name: str, parts: Sequence[_Part], key: str) -> Chart | None:
    by_fraction = {part.fraction: part.words for part in parts if not part.tail and part.words}
    if len(by_fraction) < 2:
        return None
    named = [(_share(fraction), by_fraction[fraction]) for fraction in sorted(by_fraction, reverse=True)]
    return length_chart(f"Lengths of the training texts: {name}", named, key)


def _lengths_of_tails(name: str, parts: Sequence[_Part], key: str) -> list[Chart | None]:
    tails: dict[float, dict[str, LengthSummary]] = defaultdict(dict)
    for part in parts:
        if part.tail and part.words:
            tails[part.tail_fraction][part.tail] = part.words
    whole = next((part.words for part in parts if not part.tail and part.fraction == 1), None)
    charts = []
    for index, (fraction, by_tail) in enumerate(sorted(tails.items())):
        named = [("whole", whole)] if whole else []
        named += [(f"{tail} {_share(fraction)}", by_tail[tail]) for tail in sorted(by_tail, reverse=True)]
        charts.append(length_chart(f"Word counts of the {_share(fraction)} tails: {name}", named, f"{key}-{index}"))
    return charts


def _accuracy_by_rows(name: str, parts: Sequence[_Part], key: str) -> list[Chart | None]:
    """A chart for each training protocol and precision."""
    alike: dict[tuple[str, str], list[_Part]] = defaultdict(list)
    for part in parts:
        if not part.tail:
            alike[part.table.training, part.table.precision].append(part)
    return [
        _one_accuracy_by_rows(f"{name}, {training}, {precision}", members, f"{key}-{index}")
        for index, ((training, precision), members) in enumerate(sorted(alike.items()))
        if len({part.fraction for part in members}) > 1
    ]


def _one_accuracy_by_rows(name: str, parts: Sequence[_Part], key: str) -> Chart | None:
    curves: dict[str, list[tuple[int, Estimate]]] = defaultdict(list)
    for part in sorted(parts, key=lambda part: part.fraction):
        rows = part.record.data.splits["train"].rows if "train" in part.record.data.splits else 0
        for model in part.table.models:
            score = model.scores.get(part.table.headline_split)
            if score is not None and rows:
                curves[model.label].append((rows, score.accuracy))
    everything = [point for curve in curves.values() for point in curve]
    if len({rows for rows, _ in everything}) < 2:
        return None
    x = svg.logarithmic_scale([float(rows) for rows, _ in everything], LEFT, RIGHT)
    x = svg.Scale(x.low, x.high, x.start, x.end, tuple(sorted({float(rows) for rows, _ in everything})), True)
    ends = [end for _, item in everything for end in (item.mean, item.low, item.high) if end is not None]
    y = svg.linear_scale(ends, BOTTOM, TOP, floor=0.0, ceiling=1.0)
    split = parts[0].table.headline_split
    drawn = [
        svg.axes(
            x,
            y,
            x_title="rows trained on (logarithmic)",
            y_title=f"accuracy on {split}",
            x_format=count,
            y_format=lambda value: decimal(value, 3),
        )
    ]
    middle = (len(curves) - 1) / 2
    for index, (label, curve) in enumerate(curves.items()):
        # Side by side, so that intervals of equal numbers of rows do not hide each other.
        shift = (index - middle) * 4.0
        points = [(x(rows) + shift, y(item.mean)) for rows, item in curve]
        drawn.append(svg.polyline(points, f"line solid s{index % 8}"))
        for (px, py), (rows, item) in zip(points, curve, strict=True):
            if item.low is not None and item.high is not None:
                drawn.append(
                    svg.element("line", x1=px, x2=px, y1=y(item.low), y2=y(item.high), class_=f"error s{index % 8}")
                )
            drawn.append(svg.marker(index, px, py, hint=f"{label}, {count(rows)} rows: {item.mean:.4f}"))
    described = "; ".join(
        f"{label} from {curve[0][1].mean:.4f} at {count(curve[0][0])} rows to {curve[-1][1].mean:.4f} at "
        f"{count(curve[-1][0])}"
        for label, curve in curves.items()
    )
    heading = f"Accuracy against data size: {name}"
    return Chart(
        "data-size",
        heading,
        svg.figure(WIDTH, HEIGHT, heading, f"{described}.", key, *drawn),
        [LegendEntry(label, index, "mark") for index, label in enumerate(curves)],
        "Upright lines are the 95 % intervals: over seeds where there are several, else over examples.",
    )
