"""Drawings across the tables of a study: lengths of the parts of a corpus, and accuracy against the amount of data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recurra.core.formatting import count, decimal
from recurra.core.record import LengthSummary, RunRecord
from recurra.tasks.classification.figures import length_chart
from recurra.tasks.classification.summary import ClassificationTable
from recurra.tasks.drawing import svg
from recurra.tasks.drawing.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, LegendEntry
from recurra.tasks.estimates import Estimate


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
    for index, curve in enumerate(curves.values()):
        # Side by side, so that intervals of equal numbers of rows do not hide each other.
        shift = (index - middle) * 4.0
        points = [(x(rows) + shift, y(item.mean)) for rows, item in curve]
        drawn.append(svg.polyline(points, f"line solid s{index % 8}"))
        for (px, py), (_, item) in zip(points, curve, strict=True):
            if item.low is not None and item.high is not None:
                drawn.append(
                    svg.element("line", x1=px, x2=px, y1=y(item.low), y2=y(item.high), class_=f"error s{index % 8}")
                )
            drawn.append(svg.marker(index, px, py))
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
