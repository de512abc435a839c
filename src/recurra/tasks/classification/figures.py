"""Charts of classifiers: learning curves by epoch and by rows, accuracy by difficulty, confusion matrices."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from markupsafe import Markup

from recurra.core.record import RunRecord
from recurra.core.terminal import decimal
from recurra.tasks import drawing
from recurra.tasks.classification.measures import ACCURACY
from recurra.tasks.drawing import Chart, Line, Point
from recurra.tasks.labelling.reporting import LabellingTable, shown_model
from recurra.tasks.reporting import Records
from recurra.tasks.summary import ModelSummary

# Of more labels, the matrix has no figures and is drawn of the recommended model alone.
LABELS_WITH_FIGURES = 10
MOST_LABELS = 100
INTERVALS = "Upright lines are the 95 % intervals: over seeds where there are several, else over examples."
MATRIX_LEFT, MATRIX_TOP = 84.0, 10.0


def table_charts(table: LabellingTable, runs: Records, key: str) -> list[Chart]:
    """The charts of one table, after those that every task has."""
    charts = []
    histories = [
        (model.label, model.color, seeds)
        for model in table.models
        if (seeds := [history for run in model.runs if (history := runs[run.run_id].record.training.history)])
    ]
    if histories:
        charts += [
            drawing.chart_by_epoch(
                "accuracy", "Validation accuracy by epoch", histories, ["validation_accuracy"], f"{key}-accuracy",
                y_title="validation accuracy", digits=3,
                caption="On the split that chooses the checkpoint; means over seeds.",
            ),
            drawing.chart_by_epoch(
                "loss", "Loss by epoch", histories, ["validation_loss", "train_loss"], f"{key}-loss",
                y_title="loss in nats", digits=2,
                caption="Solid: validation, dashed: train; means over seeds.",
            ),
        ]  # fmt: skip
    many = len(table.label_names) > LABELS_WITH_FIGURES
    models = [model for model in table.models if not many or model is shown_model(table)]
    more = [confusion(model, table, f"{key}-confusion-{model.color}") for model in models]
    more += [_accuracy_by_difficulty(table, f"{key}-splits")]
    return [*charts, *(chart for chart in more if chart is not None)]


def _accuracy_by_difficulty(table: LabellingTable, key: str) -> Chart | None:
    """Accuracy on the reported splits whose names have a number, in their order; none of fewer than two."""
    splits = [name for name in table.reported_splits if any(map(str.isdigit, name))]
    if len(splits) < 2:
        return None
    lines = []
    for model in table.models:
        points = [
            Point(place, value.mean, value.low, value.high)
            for place, name in enumerate(splits, start=1)
            if (value := ACCURACY.of(model, name)) is not None
        ]
        lines.append(Line(model.label, model.color, points))
    ends = [end for line in lines for point in line.points for end in point[1:] if end is not None]
    x = drawing.whole_axis(1, len(splits), "split", lambda value: splits[round(value) - 1])
    y = drawing.linear_axis(ends, "accuracy", lambda value: decimal(value, 2), limits=(0.0, 1.0))
    heading = f"Accuracy by difficulty: {table.title}"
    return drawing.line_chart("difficulty", heading, lines, x, y, key=key, caption=INTERVALS)


def study_charts(tables: Sequence[LabellingTable], runs: Records) -> list[Chart]:
    """Accuracy by rows, across tables that were trained on parts of one corpus."""
    by_rows: dict[tuple[str, int | None], list[tuple[int, LabellingTable]]] = defaultdict(list)
    for table in tables:
        run = runs[table.models[0].runs[0].run_id]
        part, train = run.data_settings, run.record_of(RunRecord).data.splits["train"]
        if not part.get("length_tail"):
            name = f"{table.data}, {table.protocol}, {table.training}, {table.precision}"
            by_rows[name, part.get("max_length")].append((train.rows, table))
    drawn = {key: parts for key, parts in by_rows.items() if len({rows for rows, _ in parts}) > 1}
    named = Counter(name for name, _ in drawn)
    curves = []
    for index, ((name, length), parts) in enumerate(drawn.items()):
        heading = f"{name}, {length} tokens" if named[name] > 1 else name
        curves.append(_accuracy_by_rows(f"Accuracy against data size: {heading}", parts, f"s{index}-rows"))
    return curves


def _accuracy_by_rows(heading: str, parts: Sequence[tuple[int, LabellingTable]], key: str) -> Chart:
    curves: dict[str, list[Point]] = defaultdict(list)
    for rows, table in sorted(parts, key=lambda part: part[0]):
        for model in table.models:
            if (accuracy := ACCURACY.of(model, table.headline_split)) is not None:
                curves[model.label].append(Point(rows, accuracy.mean, accuracy.low, accuracy.high))
    lines = [Line(label, index, points) for index, (label, points) in enumerate(curves.items())]
    return drawing.chart_by_rows(heading, lines, f"accuracy on {parts[0][1].headline_split}", key, INTERVALS)


def confusion(model: ModelSummary, table: LabellingTable, key: str) -> Chart | None:
    """True labels by predicted ones; the shade is the share of the true label's rows.

    Returns:
        ``None`` if the model has no score, or there are too many labels for a drawing.
    """
    score = model.scores.get(table.headline_split)
    matrix = score.confusion_matrix if score else []
    size = len(matrix)
    if not 2 <= size <= MOST_LABELS:
        return None
    names = [*table.label_names, *map(str, range(len(table.label_names), size))][:size]
    figures = size <= LABELS_WITH_FIGURES
    side = min(64.0, 240.0 / size) if figures else 400.0 / size
    left, end = (MATRIX_LEFT if figures else 24.0), MATRIX_TOP + side * size
    parts = [
        _cell(
            rows, rows / max(sum(cells), 1), left + side * column, MATRIX_TOP + side * row, side,
            hint=f"{names[row]} predicted as {names[column]}: {rows:,} rows",
            color=drawing.series(model.color), figures=figures,
        )
        for row, cells in enumerate(matrix)
        for column, rows in enumerate(cells)
        if figures or rows
    ]  # fmt: skip
    parts.append(drawing.element("rect", x=left, y=MATRIX_TOP, width=side * size, height=side * size, class_="border"))
    middle = side * size / 2
    for index, name in enumerate(names if figures else ()):
        along, whole = side * (index + 0.5), drawing.element("title", name)
        fit = max(int(side / drawing.CHARACTER_WIDTH), 2)
        for text, x, y, anchor in (
            (drawing.short(name, 10), left - 6, MATRIX_TOP + along + 4, "end"),
            (drawing.short(name, fit), left + along, end + 16, "middle"),
        ):
            parts.append(drawing.element("text", whole, text, x=x, y=y, text_anchor=anchor, class_="tick"))
    parts.append(drawing.text(left + middle, end + 36, "predicted", "middle", "axis-title"))
    parts.append(drawing.upright(11, MATRIX_TOP + middle, "true"))
    right, total = sum(matrix[index][index] for index in range(size)), sum(map(sum, matrix))
    summed = f", summed over {len(model.seeds)} seeds" if len(model.seeds) > 1 else ""
    return drawing.chart(
        "confusion",
        f"Confusion matrix: {model.label}",
        f"{right:,} of {total:,} rows are right (the diagonal){summed}.",
        key,
        *parts,
        caption=f"Rows of {table.headline_split}{summed}; shades are shares of the true label."
        + ("" if figures else " Labels stand in the order of the tables; point at a cell for its labels."),
        size=(left + side * size + 10, end + 46),
    )


def _cell(rows: int, share: float, x: float, y: float, side: float, *, hint: str, color: str, figures: bool) -> Markup:
    gap = 1 if figures else 0
    opacity = round(0.05 + 0.9 * share, 3)
    box = {"x": x + gap, "y": y + gap, "width": side - 2 * gap, "height": side - 2 * gap}
    drawn = drawing.element("rect", drawing.element("title", hint), class_=f"cell {color}", fill_opacity=opacity, **box)
    if figures:
        roomy, shade = side > 44, "on-cell" if share > 0.5 else "off-cell"
        middle, height = x + side / 2, y + side / 2
        drawn += drawing.text(middle, height + (0 if roomy else 4), f"{rows:,}", "middle", shade)
        if roomy:
            drawn += drawing.text(middle, height + 15, f"{share * 100:.1f} %", "middle", f"{shade} small")
    return drawn
