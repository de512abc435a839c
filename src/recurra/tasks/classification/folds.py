"""The folds of a cross-validation as one run of a classifier: every row judged by a model that was not shown it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from recurra.core.configuration import content_hash
from recurra.core.label_record import LearningCurveRecord
from recurra.core.record import AuditResult, DataRecord, LengthSummary, OneLabelRecord, RunRecord, SplitRecord
from recurra.deployment.decision import read_decision
from recurra.evaluation.audits.grading import ROWS, keep_rows, kept_rows
from recurra.evaluation.metrics import evaluate_logits
from recurra.evaluation.predictions import Predictions, read_predictions
from recurra.tasks.loaded_runs import LoadedRun

# What tells the folds of one training apart.
_OF_THE_FOLD = ("fold", "split_seed")
_WORST_FIRST = ("failed", "note", "measured", "passed", "skipped")


def pool_folds(runs: Sequence[LoadedRun]) -> list[LoadedRun]:
    """Puts the folds of each training in the place of the first of them, as one run; other runs stay as they are.

    Its predictions are those of all folds, in the order of the rows' identities, and its metrics are computed from
    them. Probabilities are those that each fold's own temperature gives, so logits are divided by it. Of the audits it
    has each by the fold that came out worst.

    Args:
        runs: Of classifiers.
    """
    found: dict[str, list[LoadedRun]] = defaultdict(list)
    for number, run in enumerate(runs):
        found[_training(run) if _folds(run) else str(number)].append(run)
    return [_pooled(members) if _folds(members[0]) else members[0] for members in found.values()]


def predictions_of(run: LoadedRun, split: str) -> Predictions:
    """The predictions of a run on a split, of pooled folds all of them.

    Raises:
        CheckpointError: If a file of them is missing or damaged.
    """
    if not run.folds:
        return read_predictions(run.folder, split)
    return _joined([_calibrated(each, split) for each in run.folds])


def _folds(run: LoadedRun) -> int:
    folds = run.data_settings.get("folds")
    return folds if isinstance(folds, int) and folds > 1 else 0


def _training(run: LoadedRun) -> str:
    """Equal for the folds of one training."""
    record = run.record
    return content_hash([record.model.preset, {**run.settings, "data": _data_of_all(run)}, record.seed])


def _data_of_all(run: LoadedRun) -> dict[str, Any]:
    return {key: value for key, value in run.data_settings.items() if key not in _OF_THE_FOLD}


def _record(run: LoadedRun) -> RunRecord:
    assert isinstance(run.record, RunRecord)
    return run.record


def _joined(parts: Sequence[Predictions]) -> Predictions:
    ids = [name for part in parts for name in part.ids]
    order = _order(ids)
    labels, logits = (np.concatenate([getattr(part, name) for part in parts])[order] for name in ("labels", "logits"))
    return Predictions([ids[row] for row in order], labels, logits)


def _order(ids: Sequence[str]) -> list[int]:
    """Rows by their identities, so that every repetition has them in one order."""
    return sorted(range(len(ids)), key=ids.__getitem__)


def _calibrated(run: LoadedRun, split: str) -> Predictions:
    found = read_predictions(run.folder, split)
    decision = _record(run).decision
    temperature = decision.temperature if isinstance(decision, OneLabelRecord) else 1.0
    return replace(found, logits=(found.logits / np.float32(temperature)).astype(np.float32))


def _pooled(members: Sequence[LoadedRun]) -> LoadedRun:
    folds = sorted(members, key=lambda run: int(run.data_settings.get("fold", 0)))
    records = [_record(run) for run in folds]
    first = records[0]
    splits = [split for split in first.metrics if all(split in record.metrics for record in records)]
    data = _data_of_all(folds[0])
    changes = {
        "config": {**first.config, "data": data},
        "metrics": {split: _metrics(folds, split) for split in splits},
        "data": _data(records, content_hash([data, first.config.get("data_hash")])),
        "audits": _audits(folds, splits),
        "decision": OneLabelRecord(temperature=1.0),
        "learning_curve": _curve(records),
        "mistakes": [mistake for record in records for mistake in record.mistakes or ()],
    }
    return LoadedRun(folds[0].folder, first.model_copy(update=changes), folds=tuple(folds))


def _metrics(folds: Sequence[LoadedRun], split: str) -> Any:
    raw = [read_predictions(run.folder, split) for run in folds]
    said = [
        read_decision(record.data.label_names, record.decision).probabilities(part.logits)
        for record, part in zip(map(_record, folds), raw, strict=True)
    ]
    logits, labels = (np.concatenate([getattr(part, name) for part in raw]) for name in ("logits", "labels"))
    return evaluate_logits(logits, labels, np.concatenate(said))


def _data(records: Sequence[RunRecord], fingerprint: str) -> DataRecord:
    """Rows of train are those of the first fold, rows of the other splits those of all folds together."""
    first = records[0].data
    splits = {
        name: split if name == "train" else _split([record.data.splits[name] for record in records])
        for name, split in first.splits.items()
    }
    folds = records[0].config["data"]["folds"]
    notes = [note for note in first.notes if not note.startswith("Split '")]
    said = f"Cross-validation: {len(records)} of {folds} folds, each with its own training; train is that of the first."
    return first.model_copy(update={"fingerprint": fingerprint, "splits": splits, "notes": [*notes, said]})


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


def _curve(records: Sequence[RunRecord]) -> LearningCurveRecord | None:
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


def _audits(folds: Sequence[LoadedRun], splits: Sequence[str]) -> list[AuditResult]:
    """Each audit by the fold that came out worst, with the rows that it found in any of them."""
    found: dict[str, dict[int, AuditResult]] = defaultdict(dict)
    for place, run in enumerate(folds):
        for audit in run.record.audits:
            found[audit.name][place] = audit
    ids = {split: [read_predictions(run.folder, split).ids for run in folds] for split in splits}
    return [
        _audit(each, next((ids[split] for split in splits if name.endswith(f".{split}")), []))
        for name, each in found.items()
    ]


def _audit(found: Mapping[int, AuditResult], ids: Sequence[Sequence[str]]) -> AuditResult:
    place, worst = min(found.items(), key=lambda each: (_WORST_FIRST.index(each[1].status), -(each[1].value or 0.0)))
    masks = [kept_rows(found[number], len(rows)) if number in found else None for number, rows in enumerate(ids)]
    details = {key: value for key, value in worst.details.items() if key != ROWS}
    if any(mask is not None for mask in masks):
        every = [
            np.zeros(len(rows), dtype=bool) if mask is None else mask for mask, rows in zip(masks, ids, strict=True)
        ]
        details |= keep_rows(np.concatenate(every)[_order([name for rows in ids for name in rows])])
    several = len({audit.summary for audit in found.values()}) > 1
    said = f"{worst.summary} (fold {place + 1}, the worst of {len(found)})" if several else worst.summary
    return worst.model_copy(update={"summary": said, "details": details})
