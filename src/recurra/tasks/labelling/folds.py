"""The folds of a cross-validation as one run: every row judged by a model that was not shown it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from recurra.core.configuration import content_hash
from recurra.core.record import (
    AuditResult,
    DataRecord,
    DecisionRecord,
    LabelRunRecord,
    LearningCurveRecord,
    LengthSummary,
    SplitRecord,
)
from recurra.evaluation.audits.grading import ROWS, keep_rows, kept_rows
from recurra.evaluation.predictions import Predictions, read_predictions
from recurra.tasks.loaded_runs import LoadedRun, in_order

# What tells the folds of one training apart.
_OF_THE_FOLD = ("fold", "split_seed")
_WORST_FIRST = ("failed", "note", "measured", "passed", "skipped")


# Metrics of the predictions of several folds, each decided and calibrated as its own record says.
MeasureFolds = Callable[[Sequence[LabelRunRecord], Sequence[Predictions], str], Any]


def pool_folds(runs: Sequence[LoadedRun], measure: MeasureFolds) -> list[LoadedRun]:
    """Puts the folds of each training in the place of the first of them, as one run; other runs stay as they are.

    Its metrics are computed from the predictions of all folds. Of the audits it has each by the fold that came out
    worst.
    """
    trainings: dict[str, list[LoadedRun]] = defaultdict(list)
    for number, run in enumerate(runs):
        trainings[_training(run) if _folds(run) else str(number)].append(run)
    return [_pooled(members, measure) if _folds(members[0]) else members[0] for members in trainings.values()]


def _folds(run: LoadedRun) -> int:
    folds = run.data_settings.get("folds")
    return folds if isinstance(folds, int) and folds > 1 else 0


def _training(run: LoadedRun) -> str:
    """Equal for the folds of one training."""
    record = run.record
    return content_hash([record.model.preset, {**run.settings, "data": _data_of_all(run)}, record.seed])


def _data_of_all(run: LoadedRun) -> dict[str, Any]:
    """Without the fold; ``split_seed`` is what was asked for, before folds were dealt for the run's seed."""
    data = {key: value for key, value in run.data_settings.items() if key not in _OF_THE_FOLD}
    asked = int(run.data_settings.get("split_seed", 0)) - run.record.seed
    return {**data, "split_seed": asked} if asked > 0 else data


def _record(run: LoadedRun) -> LabelRunRecord:
    assert isinstance(run.record, LabelRunRecord)
    return run.record


def _pooled(members: Sequence[LoadedRun], measure: MeasureFolds) -> LoadedRun:
    folds = sorted(members, key=lambda run: int(run.data_settings.get("fold", 0)))
    records = [_record(run) for run in folds]
    first = records[0]
    splits = [split for split in first.metrics if all(split in record.metrics for record in records)]
    predictions = {split: [read_predictions(run.folder, split) for run in folds] for split in splits}
    data = _data_of_all(folds[0])
    changes = {
        "config": {**first.config, "data": data},
        "metrics": {split: measure(records, parts, split) for split, parts in predictions.items()},
        "data": _data(records, content_hash([data, first.config.get("data_hash")])),
        "audits": _audits(records, predictions),
        # Thresholds of the first fold stand for all: what was decided is in the metrics.
        "decision": first.decision if isinstance(first.decision, DecisionRecord) else None,
        "learning_curve": _curve(records),
        "mistakes": [mistake for record in records for mistake in record.mistakes or ()],
    }
    return LoadedRun(folds[0].folder, first.model_copy(update=changes), folds=tuple(folds))


def _data(records: Sequence[LabelRunRecord], fingerprint: str) -> DataRecord:
    """Rows of train are those of the first fold, rows of the other splits those of all folds together."""
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
    counts: dict[str, int] = defaultdict(int)
    for part in parts:
        for label, rows in part.label_counts.items():
            counts[label] += rows
    rows = sum(part.rows for part in parts)
    return SplitRecord(
        fingerprint=content_hash([part.fingerprint for part in parts]),
        rows=rows,
        label_counts=dict(counts),
        words=_words([part.words for part in parts], [part.rows for part in parts]),
    )


def _words(parts: Sequence[LengthSummary], rows: Sequence[int]) -> LengthSummary:
    """Medians and 90th percentiles are the medians of those of the folds; their histogram is that of the first."""
    return parts[0].model_copy(
        update={
            "mean": float(np.average([part.mean for part in parts], weights=rows)),
            "median": statistics.median(part.median for part in parts),
            "p90": statistics.median(part.p90 for part in parts),
            "max": max(part.max for part in parts),
        }
    )


def _curve(records: Sequence[LabelRunRecord]) -> LearningCurveRecord | None:
    """The mean over folds, by their test rows, which are others in each; training rows are those of the first."""
    curves = [record.learning_curve for record in records]
    first = curves[0]
    if first is None or any(curve is None or len(curve.right) != len(first.right) for curve in curves):
        return None
    known = [curve for curve in curves if curve is not None]
    rows = np.array([record.data.splits[first.split].rows for record in records], dtype=np.float64)
    shares = rows / rows.sum()
    right = shares @ np.array([curve.right for curve in known])
    halves = np.array([(curve.last_gain[1] - curve.last_gain[0]) / 2 for curve in known])
    gain, half = float(right[-1] - right[-2]), float(np.sqrt(np.sum((shares * halves) ** 2)))
    return first.model_copy(update={"right": right.tolist(), "last_gain": (gain - half, gain + half)})


def _audits(records: Sequence[LabelRunRecord], predictions: Mapping[str, Sequence[Predictions]]) -> list[AuditResult]:
    """Each audit by the fold that came out worst, with the rows that it found in any of them."""
    by_fold: dict[str, dict[int, AuditResult]] = defaultdict(dict)
    for place, record in enumerate(records):
        for audit in record.audits:
            by_fold[audit.name][place] = audit
    ids = {split: [part.ids for part in parts] for split, parts in predictions.items()}
    return [
        _audit(each, next((ids[split] for split in ids if name.endswith(f".{split}")), []))
        for name, each in by_fold.items()
    ]


def _audit(by_fold: Mapping[int, AuditResult], ids: Sequence[Sequence[str]]) -> AuditResult:
    place, worst = min(by_fold.items(), key=lambda each: (_WORST_FIRST.index(each[1].status), -(each[1].value or 0.0)))
    masks = [kept_rows(by_fold[number], len(rows)) if number in by_fold else None for number, rows in enumerate(ids)]
    details = {key: value for key, value in worst.details.items() if key != ROWS}
    if any(mask is not None for mask in masks):
        every = [
            np.zeros(len(rows), dtype=bool) if mask is None else mask for mask, rows in zip(masks, ids, strict=True)
        ]
        details |= keep_rows(np.concatenate(every)[in_order([name for rows in ids for name in rows])])
    several = len({audit.summary for audit in by_fold.values()}) > 1
    summary = f"{worst.summary} (fold {place + 1}, the worst of {len(by_fold)})" if several else worst.summary
    return worst.model_copy(update={"summary": summary, "details": details})
