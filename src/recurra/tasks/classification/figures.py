"""Lengths of the texts, and confusion matrices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from recurra.core.formatting import significant
from recurra.core.record import LengthSummary, RunRecord
from recurra.tasks.classification.summary import ClassificationTable, ClassifierSummary
from recurra.tasks.drawing import svg
from recurra.tasks.drawing.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, LegendEntry
from recurra.tasks.summary import ModelSummary

LABELS_IN_MATRIX = 10
# More labels are drawn as a map without figures, up to where a cell is a point.
LABELS_IN_MAP = 200
MAP_SIDE = 480.0
_SHADES = 8
# Cells of errors that say what they are when pointed at.
_TITLED = 200
SHARE_SHOWN = 0.995
MATRIX_LEFT = 84.0
MATRIX_TOP = 10.0
MAP_MARGIN = 24.0


def lengths(record: RunRecord, key: str) -> Chart | None:
    """Lengths of the training texts in words, and those of the test texts over them.

    Args:
        record: Any run of the table.
        key: Unique in the page.
    """
    splits = record.data.splits
    other = "test" if "test" in splits else next((name for name in record.data.reported_splits if name in splits), "")
    names = [name for name in dict.fromkeys(("train", other)) if name in splits and sum(splits[name].words.counts) > 0]
    return length_chart("Lengths of the texts in words", [(name, splits[name].words) for name in names], key)


def length_chart(heading: str, named: Sequence[tuple[str, LengthSummary]], key: str) -> Chart | None:
    """Distributions of lengths in words over each other: the first as an area, the others as lines.

    Args:
        heading: Heading of the drawing.
        named: Name and lengths of each set of texts.
        key: Unique in the page.
    """
    if not named:
        return None
    names, summaries = [name for name, _ in named], [item for _, item in named]
    shown = max(_edge_of_share(item) for item in summaries)
    densities = [_densities(item) for item in summaries]
    x = svg.linear_scale([0.0, float(shown)], LEFT, RIGHT, ticks=6)
    x = svg.Scale(0.0, float(shown), LEFT, RIGHT, tuple(tick for tick in x.ticks if tick <= shown))
    y = svg.linear_scale([0.0, max(share for item in densities for _, _, share in item)], BOTTOM, TOP, floor=0.0)
    parts = [
        svg.axes(
            x,
            y,
            x_title="words in a text",
            y_title="% of texts, a word of length",
            x_format=lambda value: f"{value:.0f}",
            y_format=significant,
        )
    ]
    for index, density in enumerate(densities):
        points = [(x(0.0), y(0.0))]
        for left, right, share in density:
            if left < shown:
                points += [(x(left), y(share)), (x(min(right, shown)), y(share))]
        points.append((points[-1][0], y(0.0)))
        parts.append(svg.polyline(points, f"area s{index}" if index == 0 else f"line solid s{index}"))
    facts = "; ".join(
        f"{name}: mean {item.mean:.1f}, median {item.median:.0f}, 90 % up to {item.p90:.0f}, longest {item.max}"
        for name, item in zip(names, summaries, strict=True)
    )
    beyond = shown <= max(item.max for item in summaries)
    return Chart(
        "lengths",
        heading,
        svg.figure(WIDTH, HEIGHT, heading, f"{facts}.", key, *parts),
        [LegendEntry(name, index, "bar" if index == 0 else "solid") for index, name in enumerate(names)],
        f"{facts}.{' The longest 0.5 % or fewer are cut off.' if beyond else ''}",
    )


def _edge_of_share(lengths: LengthSummary) -> int:
    """The first edge below which nearly all texts lie."""
    total, below = sum(lengths.counts), 0
    for edge, count in zip(lengths.edges[1:], lengths.counts, strict=False):
        below += count
        if below >= SHARE_SHOWN * total:
            return edge
    return lengths.edges[-1]


def _densities(lengths: LengthSummary) -> list[tuple[int, int, float]]:
    """``(left edge, right edge, % of texts a word)``: bins differ in width, so areas and not heights are shares."""
    total = sum(lengths.counts)
    return [
        (left, right, 100.0 * count / total / max(right - left, 1))
        for left, right, count in zip(lengths.edges, lengths.edges[1:], lengths.counts, strict=False)
    ]


def calibration(model: ModelSummary, table: ClassificationTable, key: str) -> Chart:
    """What a model's probabilities say by what is right: points on the diagonal can be taken at their word.

    Args:
        model: The model whose reliability the table has.
        table: Its table.
        key: Unique in the page.
    """
    bins = table.reliability
    values = [value for each in bins for value in (each.said, each.right)]
    x, y = (svg.linear_scale([*values, 1.0], *ends, floor=0.0, ceiling=1.0) for ends in ((LEFT, RIGHT), (BOTTOM, TOP)))
    low = max(x.low, y.low)
    titles = {"x_title": "what it says", "y_title": "what is right"}
    axes = svg.axes(x, y, **titles, x_format=lambda v: f"{v:.1f}", y_format=lambda v: f"{v:.1f}")
    most = max(each.rows for each in bins)
    points = [(x(each.said), y(each.right), 2.0 + 5.0 * (each.rows / most) ** 0.5) for each in bins]
    line = svg.polyline([(x(low), y(low)), (x(1.0), y(1.0))], f"line dashed s{model.color % 8}")
    said = [svg.tooltip(f"says {each.said:.3f}, right {each.right:.3f}, {each.rows:,} rows") for each in bins]
    marks = [
        svg.element("circle", hint, cx=px, cy=py, r=r, class_=f"area s{model.color % 8}")
        for (px, py, r), hint in zip(points, said, strict=True)
    ]
    error = model.scores[table.headline_split].calibration
    facts = f"{len(bins)} bins of probability; larger circles have more rows."
    off = "" if error is None else f" On average {error.after * 100:.1f} points off (expected calibration error)."
    heading = f"Probabilities at their word: {model.label}"
    drawing = svg.figure(WIDTH, HEIGHT, heading, facts + off, key, axes, line, *marks)
    return Chart("calibration", heading, drawing, [], facts + off)


def confusion(model: ClassifierSummary, table: ClassificationTable, key: str) -> Chart | None:
    """True labels by predicted ones; the shade is the share of the true label's rows.

    Args:
        model: The model.
        table: Its table.
        key: Unique in the page.

    Returns:
        ``None`` if the model has no score, or there are too many labels for a drawing.
    """
    score = model.scores.get(table.headline_split)
    matrix = score.confusion_matrix if score else []
    size = len(matrix)
    if not 2 <= size <= LABELS_IN_MAP:
        return None
    names = [*table.label_names, *(str(index) for index in range(len(table.label_names), size))][:size]
    if size > LABELS_IN_MATRIX:
        return _confusion_map(model, table, names, key)
    side = min(64.0, 240.0 / size)
    parts = [_cell(row, column, matrix, side, model.color) for row in range(size) for column in range(size)]
    parts += _label_names(names, side)
    right, everything = sum(matrix[index][index] for index in range(size)), sum(sum(cells) for cells in matrix)
    summed = f", summed over {len(model.seeds)} seeds" if len(model.seeds) > 1 else ""
    heading = f"Confusion matrix: {model.label}"
    described = f"{right:,} of {everything:,} rows are right (the diagonal){summed}."
    width, height = MATRIX_LEFT + side * size + 10, MATRIX_TOP + side * size + 46
    return Chart(
        "confusion",
        heading,
        svg.figure(width, height, heading, described, key, *parts),
        [],
        f"Rows of {table.headline_split}{summed}; shades and percentages are shares of the true label.",
    )


def _confusion_map(model: ClassifierSummary, table: ClassificationTable, names: Sequence[str], key: str) -> Chart:
    """The same for many labels: those that are taken for each other stand together."""
    matrix = np.asarray(model.scores[table.headline_split].confusion_matrix)
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    order = together(shares)
    side = MAP_SIDE / len(order)
    place = {label: position for position, label in enumerate(order)}
    cells: list[list[str]] = [[] for _ in range(_SHADES)]
    for true, said in np.argwhere(matrix > 0).tolist():
        shade = min(int(shares[true, said] * _SHADES), _SHADES - 1)
        x, y = MAP_MARGIN + side * place[said], MAP_MARGIN + side * place[true]
        cells[shade].append(f"M{x:.1f} {y:.1f}h{side:.1f}v{side:.1f}h-{side:.1f}z")
    frame = {"x": MAP_MARGIN, "y": MAP_MARGIN, "width": MAP_SIDE, "height": MAP_SIDE}
    parts = [svg.element("rect", style="fill:none;stroke:var(--rule)", **frame)]
    parts += [
        svg.element(
            "path",
            class_=f"s{model.color % 8}",
            style="fill:var(--c)",
            fill_opacity=(shade + 1) / _SHADES,
            d="".join(found),
        )
        for shade, found in enumerate(cells)
        if found
    ]
    wrong = matrix * (1 - np.eye(len(matrix), dtype=np.int64))
    for cell in np.argsort(-wrong, axis=None, kind="stable")[:_TITLED].tolist():
        true, said = divmod(cell, len(matrix))
        if wrong[true, said]:
            told = svg.element("title", f"{names[true]} taken for {names[said]}: {wrong[true, said]:,} rows")
            x, y = MAP_MARGIN + side * place[said], MAP_MARGIN + side * place[true]
            parts.append(svg.element("rect", told, x=x, y=y, width=side, height=side, fill_opacity=0))
    middle, end = MAP_MARGIN + MAP_SIDE / 2, MAP_MARGIN + MAP_SIDE
    parts.append(svg.text(middle, end + 18, "predicted", "middle", "axis-title"))
    parts.append(svg.upright(11, middle, "true"))
    heading = f"Confusion of {len(names)} labels: {model.label}"
    described = f"{int(np.trace(matrix)):,} of {int(matrix.sum()):,} rows are right (the diagonal)."
    return Chart(
        "confusion",
        heading,
        svg.figure(end + 8, end + 28, heading, described, key, *parts),
        [],
        f"{described} Shades are shares of the true label's rows on {table.headline_split}. Labels that "
        "are taken for each other stand together; point at a cell off the diagonal for its labels.",
    )


def together(shares: npt.NDArray[np.float64]) -> list[int]:
    """An order of labels in which those that are taken for each other are neighbours.

    Args:
        shares: Of each true label's rows, ``[true][predicted]``.

    Returns:
        Labels by place: the leaves of an average-linkage tree over how seldom two are confused, either way.
    """
    mixed = shares + shares.T
    apart = mixed.max(initial=1e-9) - mixed
    np.fill_diagonal(apart, 0.0)
    leaves: list[int] = leaves_list(linkage(squareform(apart, checks=False), "average", optimal_ordering=True)).tolist()
    return leaves


def _cell(row: int, column: int, matrix: Sequence[Sequence[int]], side: float, color: int) -> Markup:
    count = matrix[row][column]
    share = count / max(sum(matrix[row]), 1)
    x, y = MATRIX_LEFT + side * column, MATRIX_TOP + side * row
    box = {"x": x + 1, "y": y + 1, "width": side - 2, "height": side - 2}
    roomy = side > 44
    shade = "on-cell" if share > 0.5 else "off-cell"
    drawn = svg.element("rect", class_=f"cell s{color % 8}", fill_opacity=round(0.05 + 0.9 * share, 3), **box)
    drawn += svg.text(x + side / 2, y + side / 2 + (0 if roomy else 4), f"{count:,}", "middle", shade)
    if roomy:
        drawn += svg.text(x + side / 2, y + side / 2 + 15, f"{share * 100:.1f} %", "middle", f"{shade} small")
    return drawn


def _label_names(names: Sequence[str], side: float) -> list[Markup]:
    """Names of the true labels on the left, of the predicted ones below; cut ones are whole in their titles."""
    size = len(names)
    fit = max(int(side / svg.CHARACTER_WIDTH), 2)
    parts = []
    for index, name in enumerate(names):
        along = side * (index + 0.5)
        whole = svg.element("title", name)
        tick = {"class_": "tick"}
        parts.append(
            svg.element(
                "text",
                whole,
                svg.short(name, 10),
                x=MATRIX_LEFT - 6,
                y=MATRIX_TOP + along + 4,
                text_anchor="end",
                **tick,
            )
        )
        below = MATRIX_TOP + side * size + 16
        parts.append(
            svg.element(
                "text", whole, svg.short(name, fit), x=MATRIX_LEFT + along, y=below, text_anchor="middle", **tick
            )
        )
    middle = side * size / 2
    parts.append(svg.text(MATRIX_LEFT + middle, MATRIX_TOP + side * size + 36, "predicted", "middle", "axis-title"))
    parts.append(svg.upright(11, MATRIX_TOP + middle, "true"))
    return parts
