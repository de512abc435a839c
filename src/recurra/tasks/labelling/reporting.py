"""Reporting of models with one or several labels a text: their surest mistakes, and folds merged into one run."""

from __future__ import annotations

import contextlib
import statistics
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recurra.core import terminal as form
from recurra.core.configuration import content_hash
from recurra.core.errors import CheckpointError
from recurra.core.record import (
    AuditResult,
    DataRecord,
    DecisionRecord,
    LabelRunRecord,
    LearningCurveRecord,
    MistakeRecord,
    SplitRecord,
)
from recurra.core.terminal import one_line
from recurra.data.dataset import TextSplit
from recurra.deployment.decision import LabelDecision, Probabilities
from recurra.deployment.explanation import effects_of, spans_of, strongest, without
from recurra.evaluation.audits.grading import ROWS, keep_rows, kept_rows
from recurra.evaluation.predictions import Predictions, read_predictions
from recurra.evaluation.significance import resampled
from recurra.tasks import drawing
from recurra.tasks.drawing import Chart, Line, Point
from recurra.tasks.loaded_runs import LoadedRun, TableKey, TableRuns, in_order
from recurra.tasks.measures import Measure
from recurra.tasks.questions import Questions
from recurra.tasks.reporting import Reporting
from recurra.tasks.summary import ModelSummary, TableSummary
from recurra.tasks.tables import NONE, Table

# More labels than a person reads one by one.
MANY_LABELS = 20
LOSS = Measure("loss", "Loss", "nats", False, attrgetter("loss"), limits=(0.0, None), digits=3)
# How far the probability of the given label lies from the share that is right, and the same without temperature.
CALIBRATION = Measure("calibration_error", "Calibration error", "", False, attrgetter("calibration_error"), digits=3)
UNCALIBRATED = Measure(
    "uncalibrated_error", "Before temperature", "", False, attrgetter("uncalibrated_error"), digits=3
)
CALIBRATION_NOTE = (
    "Calibration error is the mean gap between the probability of the predicted label and the share of right answers, "
    "over 15 bins (Guo et al. 2017, equation 3), with and without the temperature fitted on the selection split."
)


BOOTSTRAP_SEED = 20


def bootstrap_interval(
    score: Callable[[NDArray[np.float64]], NDArray[np.float64]], counts: NDArray[Any], width: int = 1
) -> tuple[float, float]:
    """95 % percentile interval over rows of a figure, see `recurra.evaluation.significance.resampled`."""
    low, high = np.quantile(resampled(score, counts, seed=BOOTSTRAP_SEED, width=width), [0.025, 0.975])
    return float(low), float(high)


def _label_counts(counts: dict[str, int]) -> str:
    if len(counts) > MANY_LABELS:
        fewest, most = min(counts.values()), max(counts.values())
        return f"{len(counts)} labels, {form.count(fewest)} to {form.count(most)} rows each"
    return ", ".join(f"{label} {form.count(rows)}" for label, rows in counts.items())


def telling_words(table: LabellingTable) -> Table:
    """Which words speak for which label."""
    rows = [
        {"Label": label, "Words and pairs that point to it": ", ".join(words)}
        for label, words in (table.telling_words or {}).items()
    ]
    note = (
        "The words that add most to linear-tuned's score of the label in its training texts, the strongest first. "
        "A word here that should not reveal the label is a shortcut that every model may take."
    )
    return Table("telling-words", "Words that point to a label", rows, note if rows else "", folded=True)


@dataclass(frozen=True, kw_only=True)
class LabellingTable(TableSummary):
    """A table of models that label texts, with the labels and the rows that cleaning left out, by reason.

    Attributes:
        splits: A mapping for each split, as the runs saw them.
        control: Preset of the tuned linear control; empty if it is not among them. The next two are of its first run.
        mistakes: Rows that the recommended model gets wrong, if the data are a user's file that can still be read.
        form_accuracy: Accuracy on the headline split of a classifier that sees only length, punctuation and case; None
            if the shortcut audit could not fit one.
        costs: Costs of mistakes, ``[true][predicted]``, if models are judged by them.
    """

    splits: list[dict[str, Any]]
    label_names: list[str]
    dropped: dict[str, int]
    control: str = ""
    learning_curve: LearningCurveRecord | None = None
    telling_words: dict[str, list[str]] | None = None
    mistakes: list[dict[str, Any]] = field(default_factory=list)
    form_accuracy: float | None = None
    costs: list[list[float]] | None = None


# Most mistakes that are recorded of a run, and most words of each.
MOST_RECORDED, MOST_WORDS = 10, 3
# Parts left out of a text in turn, and characters of all such shortened texts: seconds for a small encoder on a CPU.
MOST_PARTS, LEAST_PARTS, MOST_CHARACTERS = 60, 10, 50_000
# In characters: longer texts are not explained, and only the start of a longer run of words is recorded.
LONGEST_EXPLAINED, LONGEST_WORD = 2_000, 120
LONGEST_TEXT = 300


def surest_mistakes(
    predict: Callable[[Sequence[str]], Probabilities],
    decision: LabelDecision,
    split: TextSplit,
    probabilities: Probabilities,
) -> list[MistakeRecord]:
    """The rows with the surest wrong label, the surest first, and the words on which this label depends.

    ``probabilities`` are those of the rows of the split, ``(rows, labels)``; ``predict`` gives those of other texts.
    """
    names, predicted, truth = decision.label_names, decision.decide(probabilities), split.labels
    if decision.exclusive:
        predicted, truth = (np.arange(len(names)) == labels[:, None] for labels in (predicted, truth))
    wrong_scores = np.where(predicted & (truth == 0), probabilities, 0.0)
    surest, wrong = wrong_scores.max(axis=1), wrong_scores.argmax(axis=1)
    rows = [row for row in np.argsort(-surest, kind="stable")[:MOST_RECORDED].tolist() if surest[row] > 0]
    texts = {row: split.texts[row] for row in rows if len(split.texts[row]) <= LONGEST_EXPLAINED}
    spans = {row: spans_of(text, _parts(len(text), len(texts))) for row, text in texts.items()}
    reduced = predict([without(texts[row], span) for row, cut in spans.items() for span in cut])
    words: dict[int, list[str]] = {}
    for row, cut in spans.items():
        effects = effects_of(texts[row], cut, probabilities[row], reduced[: len(cut)], wrong[row])
        reduced = reduced[len(cut) :]
        words[row] = [one_line(word.text, LONGEST_WORD) for word in strongest(effects, MOST_WORDS)]
    return [
        MistakeRecord(
            id=split.ids[row],
            labels=[names[label] for label in np.flatnonzero(truth[row])],
            said=names[wrong[row]],
            probability=float(surest[row]),
            words=words.get(row),
        )
        for row in rows
    ]


def _parts(characters: int, texts: int) -> int:
    """Number of words, or runs of words, to leave out of a text: as many as its share of the characters allows."""
    return min(MOST_PARTS, max(LEAST_PARTS, MOST_CHARACTERS // (texts * max(1, characters))))


def learning_curve(split: str, right: Mapping[int, NDArray[np.bool_]]) -> LearningCurveRecord:
    """How a control does on a split with fewer training rows.

    Args:
        right: Which of its rows the control gets right, ``(rows,)``, by the number of its training rows, ascending.
    """
    *_, before, last = right.values()
    gains = last.astype(np.float64) - before
    mean, half = float(gains.mean()), 1.96 * float(gains.std()) / np.sqrt(len(gains))
    shares = [float(values.mean()) for values in right.values()]
    return LearningCurveRecord(split=split, rows=list(right), right=shares, last_gain=(mean - half, mean + half))


def shown_model(table: LabellingTable) -> ModelSummary | None:
    """The model whose errors are shown: the recommended one; None if there is none with a score."""
    choice = table.recommended
    wanted = [model for model in table.models if choice is not None and model.label == choice.choice]
    return next((model for model in wanted if table.headline_split in model.scores), None)


def shown_mistakes(
    table: LabellingTable, groups: Mapping[str, Sequence[LoadedRun]], texts: Mapping[str, str]
) -> list[dict[str, Any]]:
    """The mistakes that the first run of the shown model recorded on the headline split, the surest first.

    Other models of the table are ``right`` with most of their seeds; None if not all could be compared. ``words`` is
    None for a text too long to explain.
    """
    model, split = shown_model(table), table.headline_split
    if model is None:
        return []
    record = groups[model.label][0].record_of(LabelRunRecord)
    if record.data.headline_split != split:
        return []
    mistakes = [mistake for mistake in record.mistakes or () if mistake.id in texts]
    mistakes = sorted(mistakes, key=lambda mistake: -mistake.probability)[:MOST_RECORDED]
    others = {label: runs for label, runs in groups.items() if label != model.label}
    right: dict[str, set[str]] | None = None
    if mistakes and others and table.judged_by.paired_by_rows:
        # If the predictions of a model cannot be read, it is unknown which rows it gets right.
        with contextlib.suppress(CheckpointError):
            wanted = {mistake.id for mistake in mistakes}
            right = {label: _right_rows(runs, split, wanted) for label, runs in others.items()}
    return [
        {
            "text": one_line(texts[mistake.id], LONGEST_TEXT),
            "label": ", ".join(mistake.labels) or "no label",
            "said": mistake.said,
            "probability": mistake.probability,
            "right": None if right is None else [label for label, rows in right.items() if mistake.id in rows],
            "words": mistake.words,
        }
        for mistake in mistakes
    ]


def _right_rows(runs: Sequence[LoadedRun], split: str, wanted: set[str]) -> set[str]:
    """Identities of the wanted rows that most seeds of a model get right."""
    predictions = [run.predictions(split) for run in runs if split in run.record.metrics]
    rows = (row for part in predictions for row in zip(part.ids, part.correct, strict=True))
    counts = Counter(row_id for row_id, right in rows if row_id in wanted and right)
    return {row for row, seeds in counts.items() if seeds > len(predictions) / 2}


_BY_RANK = "recurra label-errors FILE ranks all rows by how likely their label is wrong."
_BY_MODEL = (
    f"If no model agrees with the label, check the label first: {_BY_RANK} "
    "If other models are right, the text is hard for this model only."
)
_BY_LABEL = "Each row shows the surest wrong label of a text; labels that the model misses are not considered."
_SPOKE = (
    " The words for the wrong label are those (runs of words in a long text) without which its probability falls most."
)


def mistakes_table(table: Any) -> Table:
    """The mistakes of a table that has them."""
    model, mistakes = shown_model(table), table.mistakes
    if model is None or not mistakes:
        return Table("mistakes", "Surest mistakes", [])
    rows = [
        {
            "Text": row["text"],
            "Labelled": row["label"],
            "Predicted": row["said"],
            "Words for the wrong label": NONE if row["words"] is None else ", ".join(row["words"]) or "no single word",
            "How sure": f"{row['probability'] * 100:.1f} %",
            "Models that are right": NONE if row["right"] is None else ", ".join(row["right"]) or "no model here",
        }
        for row in mistakes
    ]
    if not table.judged_by.paired_by_rows:
        note = _BY_LABEL
    else:
        note = _BY_RANK if mistakes[0]["right"] is None else _BY_MODEL
    note += f" These are the mistakes of seed {model.seeds[0]}." if len(model.seeds) > 1 else ""
    note += _SPOKE if any(row["words"] is not None for row in mistakes) else ""
    return Table("mistakes", f"Surest mistakes: {model.label} on {table.headline_split}", rows, note)


def more_rows(table: LabellingTable) -> list[tuple[str, str]]:
    """Says what more labelled rows may bring, by what the tuned linear control lost with half of them."""
    curve = table.learning_curve
    if curve is None:
        return []
    (before, last), gain, (low, high) = curve.rows[-2:], curve.right[-1] - curve.right[-2], curve.last_gain
    ends = " to ".join(form.points(end).removesuffix(" points") for end in (low, high))
    measured = f"{form.points(gain)} (95 % over test rows {ends})"
    rows = f"from {form.count(before)} to {form.count(last)} training rows {table.control} gained {measured}"
    likely = f"Probably: {rows}. Doubling them again may bring as much, at most."
    return [("Would more labels help", likely if low > 0 else f"Not shown: {rows}.")]


class LabellingReporting(Reporting):
    """Base of the reporting of tasks whose models label texts."""

    @abstractmethod
    def measure_folds(self, records: Sequence[LabelRunRecord], parts: Sequence[Predictions], split: str) -> Any:
        """Metrics of the predictions of several folds, each decided and calibrated as its own record says."""

    def pooled(self, runs: Sequence[LoadedRun]) -> Sequence[LoadedRun]:
        """Merges the folds of each training into one run, in the place of the first; other runs stay as they are.

        The metrics of a merged run are computed from the predictions of all folds. It has each audit of the fold with
        the worst result.
        """
        trainings: dict[str, list[LoadedRun]] = defaultdict(list)
        for index, run in enumerate(runs):
            trainings[_training(run) if _folds(run) else str(index)].append(run)
        return [
            _pooled(members, self.measure_folds) if _folds(members[0]) else members[0] for members in trainings.values()
        ]

    def table(self, common: TableSummary, table: TableRuns, questions: Questions) -> LabellingTable:
        records = [run.record_of(LabelRunRecord) for run in table.runs]
        data = records[0].data
        summary = LabellingTable(**vars(common), label_names=list(data.label_names), dropped=dict(data.dropped))
        control = next((record for record in records if record.telling_words is not None), None)
        if control is None:
            return summary
        learning_curve, words = control.learning_curve, control.telling_words
        return replace(summary, control=control.model.preset, learning_curve=learning_curve, telling_words=words)

    def examined(self, made: Any, table: TableRuns, questions: Questions) -> TableSummary:
        summary: LabellingTable = made
        texts = questions.texts_of(made.fingerprint, table.headline)
        return replace(summary, mistakes=shown_mistakes(summary, table.groups, texts))

    def splits(self, table: Any) -> Table:
        rows = [
            {
                "Split": split["name"],
                "Use": split["role"],
                "Rows": form.count(split["rows"]),
                "Rows a label": _label_counts(split["label_counts"]),
                "Words: mean, median, longest": f"{form.significant(split['mean_words'])}, "
                f"{form.significant(split['median_words'])}, {split['max_words']}",
                "Fingerprint": split["fingerprint"],
            }
            for split in table.splits
        ]
        return Table("data", "Splits", rows)

    def key_text(self, key: TableKey) -> str:
        return f"{key.data}/{key.protocol}/{key.training}/{key.precision}/{key.fingerprint}"

    def variant(self, run: LoadedRun) -> str:
        seed = run.data_settings.get("split_seed")
        return ", ".join(filter(None, [self.subset(run), f"split seed {seed}" if seed else ""]))

    def subset(self, run: LoadedRun) -> str:
        data = run.data_settings
        fraction, tail = data.get("fraction"), data.get("length_tail")
        parts = [
            f"{fraction:.3g} of train" if isinstance(fraction, (int, float)) and fraction != 1 else "",
            f"{data['rows_per_label']:,} rows a label" if data.get("rows_per_label") else "",
            f"{data['folds']}-fold cross-validation" if _folds(run) else "",
            f"{tail} {data.get('tail_fraction', '')} by words".replace("  ", " ") if tail else "",
            "tested on any length" if data.get("whole_test") else "",
        ]
        return ", ".join(filter(None, parts))

    def stands_everywhere(self, run: LoadedRun) -> bool:
        """A model that is no Transformer depends on neither protocol nor precision, unless a teacher taught it."""
        return run.record.model.kind != "transformer" and getattr(run.record, "teacher", None) is None

    def order(self, runs: Sequence[LoadedRun], headline: str) -> tuple[Any, ...]:
        """Linear first, then by falling number of parameters."""
        model = runs[0].record.model
        return (model.kind != "linear", -model.parameters, model.preset, runs[0].settings_hash)

    def split_lines(self, run: LoadedRun) -> list[dict[str, Any]]:
        data = run.record_of(LabelRunRecord).data
        roles = {name: "reported" if name in data.reported_splits else "not reported" for name in data.splits}
        roles |= {data.selection_split: f"chose the checkpoint, {roles[data.selection_split]}", "train": "trained on"}
        return [
            {
                "name": name,
                "role": roles[name],
                "rows": split.rows,
                "fingerprint": split.fingerprint,
                "label_counts": dict(split.label_counts),
                "mean_words": split.words.mean,
                "median_words": split.words.median,
                "max_words": split.words.max,
            }
            for name, split in data.splits.items()
        ]

    def charts(self, table: LabellingTable, key: str) -> list[Chart]:
        """The chart of the tuned linear control with fewer training rows, if that was measured."""
        model = next((model for model in table.models if model.preset == table.control), None)
        curve = table.learning_curve
        if curve is None or model is None:
            return []
        line = Line(model.label, model.color, [Point(*point) for point in zip(curve.rows, curve.right, strict=True)])
        caption = f"Share of {curve.split} rows that {model.label} gets right with fewer training rows."
        title = f"{curve.split} rows right"
        return [drawing.chart_by_rows("What more labels bring", [line], title, f"{key}-rows", caption)]

    def facts(self, table: Any) -> list[tuple[str, str]]:
        dropped = "; ".join(f"{reason}: {form.count(rows)}" for reason, rows in table.dropped.items() if rows)
        names = table.label_names
        more = f" and {len(names) - MANY_LABELS} more" if len(names) > MANY_LABELS else ""
        return [("Labels", f"{', '.join(names[:MANY_LABELS])}{more}"), ("Rows left out", dropped)]


# Settings of the data in which the folds of one training differ.
_OF_THE_FOLD = ("fold", "split_seed")
_WORST_FIRST = ("failed", "note", "measured", "passed", "skipped")


def _folds(run: LoadedRun) -> int:
    folds = run.data_settings.get("folds")
    return folds if isinstance(folds, int) and folds > 1 else 0


def _training(run: LoadedRun) -> str:
    """A key that is equal for the folds of one training."""
    record = run.record
    return content_hash([record.model.preset, {**run.settings, "data": _data_of_all(run)}, record.seed])


def _data_of_all(run: LoadedRun) -> dict[str, Any]:
    """Settings of the data without the fold; ``split_seed`` is the requested one, without the run's seed."""
    data = {key: value for key, value in run.data_settings.items() if key not in _OF_THE_FOLD}
    requested_seed = int(run.data_settings.get("split_seed", 0)) - run.record.seed
    return {**data, "split_seed": requested_seed} if requested_seed > 0 else data


def _pooled(members: Sequence[LoadedRun], measure: Callable[..., Any]) -> LoadedRun:
    folds = sorted(members, key=lambda run: int(run.data_settings.get("fold", 0)))
    records = [run.record_of(LabelRunRecord) for run in folds]
    first = records[0]
    splits = [split for split in first.metrics if all(split in record.metrics for record in records)]
    predictions = {split: [read_predictions(run.folder, split) for run in folds] for split in splits}
    data = _data_of_all(folds[0])
    changes = {
        "config": {**first.config, "data": data},
        "metrics": {split: measure(records, parts, split) for split, parts in predictions.items()},
        "data": _data(records, content_hash([data, first.config.get("data_hash")])),
        "audits": _audits(records, predictions),
        # Thresholds of the first fold stand for all; the metrics come from those of each fold.
        "decision": first.decision if isinstance(first.decision, DecisionRecord) else None,
        "learning_curve": _curve(records),
        "mistakes": [mistake for record in records for mistake in record.mistakes or ()],
    }
    return LoadedRun(folds[0].folder, first.model_copy(update=changes), folds=tuple(folds))


def _data(records: Sequence[LabelRunRecord], fingerprint: str) -> DataRecord:
    """The data of a merged run: train of the first fold, and the other splits of all folds together."""
    first = records[0].data
    splits = {
        name: split if name == "train" else _split([record.data.splits[name] for record in records])
        for name, split in first.splits.items()
    }
    folds = records[0].config["data"]["folds"]
    notes = [note for note in first.notes if not note.startswith("Split '")]
    note = f"Cross-validation: {len(records)} of {folds} folds, each with its own training; train is that of the first."
    return first.model_copy(update={"fingerprint": fingerprint, "splits": splits, "notes": [*notes, note]})


def _split(parts: Sequence[SplitRecord]) -> SplitRecord:
    """A split of all folds; medians and 90th percentiles of lengths are medians over folds, the histogram the first."""
    rows, lengths = [part.rows for part in parts], [part.words for part in parts]
    words = {
        "mean": float(np.average([part.mean for part in lengths], weights=rows)),
        "median": statistics.median(part.median for part in lengths),
        "p90": statistics.median(part.p90 for part in lengths),
        "max": max(part.max for part in lengths),
    }
    return SplitRecord(
        fingerprint=content_hash([part.fingerprint for part in parts]),
        rows=sum(rows),
        label_counts={label: sum(part.label_counts[label] for part in parts) for label in parts[0].label_counts},
        words=lengths[0].model_copy(update=words),
    )


def _curve(records: Sequence[LabelRunRecord]) -> LearningCurveRecord | None:
    """The mean over folds, weighted by their test rows, which differ; training rows are those of the first."""
    curves = [record.learning_curve for record in records if record.learning_curve is not None]
    if len(curves) < len(records) or len({len(curve.right) for curve in curves}) > 1:
        return None
    first = curves[0]
    rows = np.array([record.data.splits[first.split].rows for record in records], dtype=np.float64)
    shares = rows / rows.sum()
    right = shares @ np.array([curve.right for curve in curves])
    halves = np.array([(curve.last_gain[1] - curve.last_gain[0]) / 2 for curve in curves])
    gain, half = float(right[-1] - right[-2]), float(np.sqrt(np.sum((shares * halves) ** 2)))
    return first.model_copy(update={"right": right.tolist(), "last_gain": (gain - half, gain + half)})


def _audits(records: Sequence[LabelRunRecord], predictions: Mapping[str, Sequence[Predictions]]) -> list[AuditResult]:
    """Each audit of the fold with the worst result, with the rows that it found in any fold."""
    by_fold: dict[str, dict[int, AuditResult]] = defaultdict(dict)
    for fold, record in enumerate(records):
        for audit in record.audits:
            by_fold[audit.name][fold] = audit
    ids = {split: [part.ids for part in parts] for split, parts in predictions.items()}
    numbers = [record.config["data"].get("fold", 0) + 1 for record in records]
    return [
        _audit(fold_audits, next((ids[split] for split in ids if name.endswith(f".{split}")), []), numbers)
        for name, fold_audits in by_fold.items()
    ]


def _audit(by_fold: Mapping[int, AuditResult], ids: Sequence[Sequence[str]], numbers: Sequence[int]) -> AuditResult:
    fold, worst = min(by_fold.items(), key=lambda item: (_WORST_FIRST.index(item[1].status), -(item[1].value or 0.0)))
    masks = [kept_rows(by_fold[index], len(rows)) if index in by_fold else None for index, rows in enumerate(ids)]
    details = {key: value for key, value in worst.details.items() if key != ROWS}
    if any(mask is not None for mask in masks):
        known = [np.zeros(len(rows), bool) if mask is None else mask for mask, rows in zip(masks, ids, strict=True)]
        details |= keep_rows(np.concatenate(known)[in_order([name for rows in ids for name in rows])])
    several = len({audit.summary for audit in by_fold.values()}) > 1
    summary = f"{worst.summary} (fold {numbers[fold]}, the worst of {len(by_fold)})" if several else worst.summary
    return worst.model_copy(update={"summary": summary, "details": details})
