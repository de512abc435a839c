"""The folds of a cross-validation as one run of a classifier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from recurra.core.label_record import LabelRunRecord
from recurra.core.record import MetricsRecord, OneLabelRecord
from recurra.deployment.decision import read_decision
from recurra.evaluation.metrics import evaluate_logits
from recurra.evaluation.predictions import Predictions, read_predictions
from recurra.tasks.labelling.folds import Pooling, in_order
from recurra.tasks.loaded_runs import LoadedRun


def predictions_of(run: LoadedRun, split: str) -> Predictions:
    """The predictions of a run on a split, of pooled folds all of them, in the order of the rows' identities.

    Probabilities are those that each fold's own temperature gives, so logits are divided by it.

    Raises:
        CheckpointError: If a file of them is missing or damaged.
    """
    if not run.folds:
        return read_predictions(run.folder, split)
    return _joined([_calibrated(each, split) for each in run.folds])


def _joined(parts: Sequence[Predictions]) -> Predictions:
    ids = [name for part in parts for name in part.ids]
    order = in_order(ids)
    labels, logits = (np.concatenate([getattr(part, name) for part in parts])[order] for name in ("labels", "logits"))
    return Predictions([ids[row] for row in order], labels, logits)


def _calibrated(run: LoadedRun, split: str) -> Predictions:
    found = read_predictions(run.folder, split)
    assert isinstance(run.record, LabelRunRecord)
    decision = run.record.decision
    temperature = decision.temperature if isinstance(decision, OneLabelRecord) else 1.0
    return replace(found, logits=(found.logits / np.float32(temperature)).astype(np.float32))


def _measure(records: Sequence[LabelRunRecord], parts: Sequence[Predictions]) -> MetricsRecord:
    said = [
        read_decision(record.data.label_names, record.decision).probabilities(part.logits)
        for record, part in zip(records, parts, strict=True)
    ]
    logits, labels = (np.concatenate([getattr(part, name) for part in parts]) for name in ("logits", "labels"))
    return evaluate_logits(logits, labels, np.concatenate(said))


POOLING = Pooling(
    lambda run, split: read_predictions(run.folder, split), _measure, lambda _: OneLabelRecord(temperature=1.0)
)
