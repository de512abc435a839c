"""Reporting of classifiers: tables and charts, and the labels and rows that go wrong."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from markupsafe import Markup

from recurra.core import terminal as form
from recurra.core.record import LabelRunRecord, LengthSummary, MetricsRecord, RunRecord, are_unequal
from recurra.deployment.decision import read_decision
from recurra.deployment.export_record import ExportRecord
from recurra.evaluation.metrics import evaluate_logits, figures_by_class
from recurra.evaluation.predictions import Predictions
from recurra.tasks import drawing, tables
from recurra.tasks.classification.conclusions import (
    advise,
    conclude,
    costs_in_words,
    fault_of,
    only_class,
    unseen_label,
)
from recurra.tasks.classification.exports import export_rows, exports_table, published_rows, published_table
from recurra.tasks.classification.measures import (
    ACCURACY,
    F1,
    MACRO_F1,
    PRECISION,
    RECALL,
    RECURRENCES,
    accuracy_after,
    exit_measures,
    named_measure,
)
from recurra.tasks.drawing import LEFT, RIGHT, Chart, Line, Point
from recurra.tasks.labelling.reporting import (
    CALIBRATION,
    CALIBRATION_NOTE,
    LOSS,
    UNCALIBRATED,
    LabellingReporting,
    LabellingTable,
    mistakes_table,
    more_rows,
    shown_model,
    telling_words,
)
from recurra.tasks.loaded_runs import LoadedRun, TableRuns
from recurra.tasks.measures import Measure, Score, StudyLatency, estimates
from recurra.tasks.questions import Limits, Questions, ordered_costs
from recurra.tasks.summary import Advice, ModelSummary, TableSummary
from recurra.tasks.tables import Table

_EARLY_EXIT = (
    "Recorded by `recurra exits RUN --keep`: each head alone, the published schedule, and the chosen rule. Times are "
    "wall-clock, from tokens to logits in FP32; each batch is timed in turn with the full model."
)


def results_table(table: LabellingTable, figures: Sequence[Measure]) -> Table:
    """Scores and costs of each classifier."""
    split, labels = table.headline_split, table.label_names
    counts = sorted({model.scores[split].rows for model in table.models if split in model.scores})
    timings = [timing for model in table.models for timing in model.latency.values()]
    latency = "No latency was measured."
    if timings:
        threads = f"{timings[0].threads} {'thread' if timings[0].threads == 1 else 'threads'}"
        together = all(model.timed == "side by side" for model in table.models if model.latency)
        latency = (
            "Milliseconds a text are median / 90th percentile over batches after warm-up"
            f"{', all models side by side in one process' if together else ''}, on {timings[0].device} with {threads}."
        )
    calibrated = any(CALIBRATION.of(model, split) for model in table.models)
    note = (
        f"On the {split} split ({' or '.join(map(form.count, counts))} rows). Figures are means over seeds, ± their "
        "standard deviation. Intervals are 95 %: “seeds” is Student's t over seeds and says how another training would "
        "differ; “examples” (Wilson for accuracy, bootstrap for F1) is used where there is one seed, or where the seed "
        "changes nothing, and says how another sample of texts would differ. F1 is "
        f"{f'of label {labels[1]}' if len(labels) == 2 else 'the mean over labels'}; loss is mean cross-entropy in "
        f"nats.{f' {CALIBRATION_NOTE}' if calibrated else ''} {latency} A model is on a Pareto front if no other is "
        f"both cheaper and {table.judged_by.better}; fronts compare means, whether or not a gap is supported."
    )
    return tables.results(table, figures, note=note)


def splits_table(table: LabellingTable) -> Table:
    """Accuracy on every reported split, where there are several."""
    rows = []
    for model in table.models if len(table.reported_splits) > 1 else ():
        cells = {"Model": model.label}
        for split in table.reported_splits:
            value = ACCURACY.of(model, split)
            cells[split] = form.NONE if value is None else f"{ACCURACY.text(value)}, {tables.interval(value)}"
        rows.append(cells)
    chosen = [split["name"] for split in table.splits if split["role"] == "chose the checkpoint, reported"]
    note = " ".join(f"The checkpoint was chosen on {name}: figures there are a little too good." for name in chosen)
    return Table("splits", "Accuracy on every reported split", rows, note if rows else "", folded=True)


def exits_table(table: LabellingTable) -> Table:
    """Accuracy of each head of models with exits, the last one at the end; models without exits for comparison."""
    measures, split = [*exit_measures(table), ACCURACY], table.headline_split
    rows = [
        {"Model": model.label} | {measure.heading: measure.text(measure.of(model, split)) for measure in measures[:-1]}
        | {"After the last recurrence": ACCURACY.text(ACCURACY.of(model, split))}
        for model in table.models
        if len(measures) > 1
    ]  # fmt: skip
    note = f"Accuracy on {split} when every text stops after that many recurrences." if rows else ""
    return Table("exits", "By recurrence", rows, note, folded=True)


MOST_PAIRS = 12
# At most so many labels are shown in the order of the file; more are shown worst first.
FEW_LABELS = 8


def label_table(table: LabellingTable) -> Table:
    """Precision, recall and F1 of every label; of many labels the worst first."""
    model = shown_model(table)
    if model is None:
        return Table("labels", "Label by label", [])
    matrix = np.asarray(model.scores[table.headline_split].confusion_matrix)
    support = matrix.sum(axis=1)
    figures = np.transpose(figures_by_class(np.diagonal(matrix), support, matrix.sum(axis=0)))
    lines = list(zip(table.label_names, support.tolist(), figures.tolist(), strict=True))
    short = len(lines) <= FEW_LABELS
    rows = [
        {
            "Label": name,
            "Rows": form.count(count),
            **dict(zip(("Precision", "Recall", "F1"), (form.decimal(value, 3) for value in values), strict=True)),
        }
        for name, count, values in (lines if short else sorted(lines, key=lambda line: line[2][2]))
    ]
    note = (
        "Precision is the share of right answers among the texts that get this label; recall is the share of the "
        f"label's texts that get it.{'' if short else ' The worst label first.'}{_summed(model)}"
    )
    return Table("labels", f"Label by label: {model.label} on {table.headline_split}", rows, note)


def confused_table(table: LabellingTable) -> Table:
    """The pairs of labels with the most errors, at most `MOST_PAIRS`; none for two labels, whose matrix says it all."""
    model = shown_model(table)
    if model is None or len(table.label_names) == 2:
        return Table("confused", "Most confused", [])
    matrix = np.asarray(model.scores[table.headline_split].confusion_matrix)
    wrong = matrix * (1 - np.eye(len(matrix), dtype=np.int64))
    order = np.argsort(-wrong, axis=None, kind="stable")[:MOST_PAIRS]
    names = table.label_names
    rows = [
        {
            "A text of": names[true],
            "is taken for": names[predicted],
            "Rows": form.count(matrix[true, predicted]),
            "Of its label": f"{matrix[true, predicted] / matrix[true].sum() * 100:.1f} %",
        }
        for true, predicted in (divmod(int(position), len(matrix)) for position in order if wrong.flat[position] > 0)
    ]
    note = f"The pairs with the most errors, at most {MOST_PAIRS}.{_summed(model)}"
    heading = f"Most confused: {model.label} on {table.headline_split}"
    return Table("confused", heading, rows, note if rows else "")


def _summed(model: ModelSummary) -> str:
    return f" Rows are summed over {len(model.seeds)} seeds." if len(model.seeds) > 1 else ""


# With more labels, the matrix has no figures and is drawn for the recommended model alone.
LABELS_WITH_FIGURES = 10
MOST_LABELS = 100
INTERVALS = "Vertical lines are 95 % intervals: over seeds if there are several, otherwise over examples."
MATRIX_LEFT, MATRIX_TOP = 84.0, 10.0


# Of the texts, the shortest ones; the others are cut off.
SHARE_DRAWN = 0.995


def length_chart(heading: str, named: Mapping[str, LengthSummary], key: str) -> Chart:
    """Distributions of lengths in words over each other."""
    end = max(_edge_of_share(lengths) for lengths in named.values())
    lines = [
        Line(name, color, _outline(lengths, end), "outline") for color, (name, lengths) in enumerate(named.items())
    ]
    ends, limits = (LEFT, RIGHT), (0.0, float(end))
    x = drawing.linear_axis(limits, "words in a text", "{:.0f}".format, ends=ends, ticks=6, limits=limits)
    shares = [point.y for line in lines for point in line.points]
    y = drawing.linear_axis(shares, "% of texts, a word of length", limits=(0.0, None))
    facts = "; ".join(
        f"{name}: mean {lengths.mean:.1f}, median {lengths.median:.0f}, 90 % up to {lengths.p90:.0f}, "
        f"longest {lengths.max}"
        for name, lengths in named.items()
    )
    beyond = end <= max(lengths.max for lengths in named.values())
    caption = f"{facts}.{' The longest 0.5 % or fewer are cut off.' if beyond else ''}"
    return drawing.line_chart("lengths", heading, lines, x, y, key=key, description=f"{facts}.", caption=caption)


def _edge_of_share(lengths: LengthSummary) -> int:
    """The first edge below which nearly all texts lie."""
    below = np.cumsum(lengths.counts)
    return lengths.edges[1 + int(np.searchsorted(below, SHARE_DRAWN * below[-1]))]


def _outline(lengths: LengthSummary, end: int) -> list[Point]:
    """Percent of texts a word: bins differ in width, so areas and not heights are shares."""
    total, points = sum(lengths.counts), [Point(0.0, 0.0)]
    for left, right, rows in zip(lengths.edges, lengths.edges[1:], lengths.counts, strict=False):
        if left < end:
            share = 100.0 * rows / total / max(right - left, 1)
            points += [Point(left, share), Point(min(right, end), share)]
    return [*points, Point(points[-1].x, 0.0)]


def _accuracy_by_difficulty(table: LabellingTable, key: str) -> Chart | None:
    """Accuracy on the reported splits whose names have a number, in their order; None if there are fewer than two."""
    splits = [name for name in table.reported_splits if any(map(str.isdigit, name))]
    if len(splits) < 2:
        return None
    lines = []
    for model in table.models:
        points = [
            Point(position, value.mean, value.low, value.high)
            for position, name in enumerate(splits, start=1)
            if (value := ACCURACY.of(model, name)) is not None
        ]
        lines.append(Line(model.label, model.color, points))
    ends = [end for line in lines for point in line.points for end in point[1:] if end is not None]
    x = drawing.whole_axis(1, len(splits), "split", lambda value: splits[round(value) - 1])
    y = drawing.linear_axis(ends, "accuracy", lambda value: form.decimal(value, 2), limits=(0.0, 1.0))
    heading = f"Accuracy by difficulty: {table.title}"
    return drawing.line_chart("difficulty", heading, lines, x, y, key=key, caption=INTERVALS)


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
    names, figures = table.label_names, size <= LABELS_WITH_FIGURES
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
        offset, tooltip = side * (index + 0.5), drawing.element("title", name)
        fit = max(int(side / drawing.CHARACTER_WIDTH), 2)
        for text, x, y, anchor in (
            (drawing.short(name, 10), left - 6, MATRIX_TOP + offset + 4, "end"),
            (drawing.short(name, fit), left + offset, end + 16, "middle"),
        ):
            parts.append(drawing.element("text", tooltip, text, x=x, y=y, text_anchor=anchor, class_="tick"))
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
        + ("" if figures else " Labels are in the order of the tables; point at a cell to see its labels."),
        size=(left + side * size + 10, end + 46),
    )


def _cell(rows: int, share: float, x: float, y: float, side: float, *, hint: str, color: str, figures: bool) -> Markup:
    gap = 1 if figures else 0
    opacity = round(0.05 + 0.9 * share, 3)
    box = {"x": x + gap, "y": y + gap, "width": side - 2 * gap, "height": side - 2 * gap}
    cell = drawing.element("rect", drawing.element("title", hint), class_=f"cell {color}", fill_opacity=opacity, **box)
    if figures:
        roomy, shade = side > 44, "on-cell" if share > 0.5 else "off-cell"
        middle, height = x + side / 2, y + side / 2
        cell += drawing.text(middle, height + (0 if roomy else 4), f"{rows:,}", "middle", shade)
        if roomy:
            cell += drawing.text(middle, height + 15, f"{share * 100:.1f} %", "middle", f"{shade} small")
    return cell


# Measures of every classifier, beside the one it is judged by.
FIGURES = (F1, PRECISION, RECALL, LOSS, CALIBRATION, UNCALIBRATED)


class ClassificationReporting(LabellingReporting):
    """One label a text: accuracy and F1 over rows and seeds, a linear control, the papers' tables 6 to 13."""

    measures = (ACCURACY, MACRO_F1)

    def measure_folds(
        self, records: Sequence[LabelRunRecord], parts: Sequence[Predictions], split: str
    ) -> MetricsRecord:
        temperatures = [read_decision(record.data.label_names, record.decision).temperature for record in records]
        logits, labels = (np.concatenate([getattr(part, name) for part in parts]) for name in ("logits", "labels"))
        by_fold = [record.metrics[split] for record in records]
        of_rows = np.repeat(temperatures, [len(part) for part in parts])
        metrics = evaluate_logits(logits, labels, of_rows).model_copy(update=_by_depth(by_fold))
        return metrics.without_probabilities() if by_fold[0].loss is None else metrics

    def measure_of(self, table: TableRuns, questions: Questions) -> Measure:
        """The measure asked for; else accuracy, or macro F1 if the classes of the headline split are unequal."""
        data = table.runs[0].record_of(RunRecord).data
        counts = data.splits[table.headline].label_counts if table.headline else {}
        default = MACRO_F1 if are_unequal(counts.values()) else ACCURACY
        return self.requested_measure(questions, data.label_names) or default

    def requested_measure(self, questions: Questions, label_names: Sequence[str]) -> Measure | None:
        """The measure that was asked for, which may be of one label or of costs; None if none was."""
        if questions.measure is None:
            return None
        return named_measure(questions.measure, label_names, _costs(questions, label_names))

    def barred(self, runs: Sequence[LoadedRun], split: str, measure: Measure) -> str:
        """Why a model must not be compared: it has one answer for every text, unless texts are ranked and not answered.

        Also bars every model if the rows have one class alone, or none has the label that the measure is about.
        """
        records = [run.record_of(RunRecord) for run in runs]
        names = records[0].data.label_names
        matrices = [item.metrics[split].confusion_matrix for item in records if split in item.metrics]
        if not matrices:
            return ""
        if only_class(matrices[0]):
            return f"all rows of {split} are of one class"
        if label := unseen_label(measure, names, matrices[0]):
            return f"no row of {split} has the label '{label}'"
        predicted = np.flatnonzero(np.sum(matrices, axis=(0, 1)))
        alone = len(predicted) == 1 and not measure.ranks
        return f"it predicts '{names[predicted[0]]}' for every text of {split}" if alone else ""

    def fault(self, table: Any, model: Any) -> str:
        return fault_of(table, model)

    def figures(self, table: Any) -> Sequence[Measure]:
        halting = any(RECURRENCES.of(model, table.headline_split) for model in table.models)
        return [*self._figures(table.judged_by), *([RECURRENCES] if halting else []), *exit_measures(table)]

    def _figures(self, judged_by: Measure) -> list[Measure]:
        return list({measure.key: measure for measure in (ACCURACY, judged_by, MACRO_F1, *FIGURES)}.values())

    def score(self, split: str, metrics: Sequence[MetricsRecord], measure: Measure) -> Score:
        matrices = [seed_metrics.confusion_matrix for seed_metrics in metrics]
        by_macro_f1 = measure.key == MACRO_F1.key or are_unequal(map(sum, matrices[0]))
        measures = [candidate for candidate in self._figures(measure) if by_macro_f1 or candidate.key != MACRO_F1.key]
        measures += [RECURRENCES, *map(accuracy_after, metrics[0].exit_accuracy or ())]
        return Score(split, metrics[0].rows, estimates(measures, metrics), np.sum(matrices, axis=0).tolist())

    def tables(self, table: Any) -> Sequence[Table]:
        exits = {measure.key for measure in exit_measures(table)}
        figures = [figure for figure in self.figures(table) if figure.key not in exits]
        measured = {key for model in table.models for score in model.scores.values() for key in score.figures}
        if len(table.label_names) > 2 and MACRO_F1.key in measured:
            # For more than two labels F1 is macro F1.
            figures = [figure for figure in figures if figure.key != F1.key]
        return (
            results_table(table, figures),
            tables.advice(table),
            splits_table(table),
            exits_table(table),
            tables.early_exits(table, _EARLY_EXIT),
            mistakes_table(table),
            confused_table(table),
            label_table(table),
            telling_words(table),
            tables.contrasts(table),
            tables.by_length(table),
            tables.tests(table),
            published_table(table),
            exports_table(table),
            tables.audits(table),
        )

    def conclude(self, table: Any) -> str:
        return conclude(table)

    def advise(self, table: Any, limits: Limits) -> list[Advice]:
        items = [
            replace(item, details=[*item.details, *more_rows(table)]) if item.details else item
            for item in advise(table, limits)
        ]
        return items or super().advise(table, limits)

    def exports(
        self, table: TableRuns, records: Sequence[ExportRecord], latency: StudyLatency, questions: Questions
    ) -> list[dict[str, Any]]:
        return export_rows(table, records, latency, questions.published)

    def table(self, common: TableSummary, table: TableRuns, questions: Questions) -> LabellingTable:
        summary = super().table(common, table, questions)
        return replace(
            summary,
            form_accuracy=_form_accuracy(table),
            costs=_costs(questions, summary.label_names),
            published=published_rows(table, common.models, questions.published),
        )

    def facts(self, table: Any) -> list[tuple[str, str]]:
        facts = super().facts(table)
        if table.costs is None:
            return facts
        return [*facts, ("Costs of mistakes", costs_in_words(table.label_names, table.costs))]

    def charts(self, table: LabellingTable, key: str) -> list[Chart]:
        charts = super().charts(table, key)
        histories = [
            (model.label, model.color, seeds)
            for model in table.models
            if (seeds := [history for run in model.runs if (history := run.record.training.history)])
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
        splits = table.models[0].runs[0].record_of(RunRecord).data.splits
        named = {name: splits[name].words for name in ("train", table.headline_split) if name in splits}
        charts.append(length_chart("Lengths of the texts in words", named, f"{key}-lengths"))
        more = [confusion(model, table, f"{key}-confusion-{model.color}") for model in models]
        more.append(_accuracy_by_difficulty(table, f"{key}-splits"))
        return [*charts, *filter(None, more)]

    def charts_across(self, tables: Sequence[LabellingTable]) -> list[Chart]:
        """Across tables that were trained on parts of one corpus: lengths of each part, and accuracy by rows."""
        groups: dict[str, dict[str, LengthSummary]] = defaultdict(dict)
        by_rows: dict[tuple[str, int | None], list[tuple[int, LabellingTable]]] = defaultdict(list)
        for table in tables:
            run = table.models[0].runs[0]
            settings, train = run.data_settings, run.record_of(RunRecord).data.splits["train"]
            name = f"{table.data}, {table.protocol}"
            groups[name].setdefault(table.subset or "whole", train.words)
            if not settings.get("length_tail"):
                by_rows[f"{name}, {table.training}, {table.precision}", settings.get("max_length")].append(
                    (train.rows, table)
                )
        sized = {key: parts for key, parts in by_rows.items() if len({rows for rows, _ in parts}) > 1}
        name_counts = Counter(name for name, _ in sized)
        charts = [
            length_chart(f"Lengths of the training texts: {name}", parts, f"s{index}-lengths")
            for index, (name, parts) in enumerate(groups.items())
            if len(parts) > 1
        ]
        for index, ((name, length), parts) in enumerate(sized.items()):
            heading = f"{name}, {length} tokens" if name_counts[name] > 1 else name
            charts.append(_accuracy_by_rows(f"Accuracy against data size: {heading}", parts, f"s{index}-rows"))
        return charts


def _by_depth(folds: Sequence[MetricsRecord]) -> dict[str, Any]:
    """Figures by depth, merged over the rows of all folds; stored predictions do not tell them."""
    exits = [fold.exit_accuracy for fold in folds if fold.exit_accuracy]
    taken = [fold.recurrences for fold in folds if fold.recurrences]
    merged: dict[str, Any] = {}
    if len(exits) == len(folds):
        rows = [fold.rows for fold in folds]
        merged["exit_accuracy"] = {
            number: float(np.average([accuracies[number] for accuracies in exits], weights=rows)) for number in exits[0]
        }
    if len(taken) == len(folds):
        merged["recurrences"] = dict(sum(map(Counter, taken), Counter[int]()))
    return merged


def _costs(questions: Questions, label_names: Sequence[str]) -> list[list[float]] | None:
    return None if questions.costs is None else ordered_costs(questions.costs, label_names)


def _form_accuracy(table: TableRuns) -> float | None:
    """Over the rows of all folds; None if it is not known of one of them."""
    name = f"shortcuts.format.{table.headline}"
    accuracies, rows = [], []
    for part in table.runs[0].parts:
        record = part.record_of(RunRecord)
        details = next((audit.details for audit in record.audits if audit.name == name), {})
        accuracy = details.get("accuracy")
        # With folds of train the accuracy is of other rows.
        if not isinstance(accuracy, (int, float)) or "folds" in details:
            return None
        accuracies.append(accuracy)
        rows.append(record.metrics[table.headline].rows)
    return float(np.average(accuracies, weights=rows))


REPORTING = ClassificationReporting()
