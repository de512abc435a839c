"""A study of multi-label models that never were, for the tests of what every report shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from factories import RunFactory, leakage
from recurra.core.record import DecisionRecord, MistakeRecord, MultiLabelRunRecord, read_record, write_record
from recurra.deployment.decision import AnyLabels
from recurra.report.summary import load_runs, summarise
from recurra.tasks.loaded_runs import LoadedRun
from recurra.tasks.multilabel.reporting import measure_labels
from recurra.tasks.questions import Contrast, Questions
from recurra.tasks.summary import Summary


def study(root: Path, label: str) -> tuple[Summary, list[LoadedRun]]:
    """Three models of two seeds each on rows with any of three labels."""
    names = [label, "second", "third"]
    factory = RunFactory(root, rows={"train": 90, "validation": 60, "test": 80}, data=label, label_names=tuple(names))
    decision = AnyLabels(names, [0.5, 0.4, 0.6], ";")
    folders = []
    for model, noise in (("linear", 3.0), ("recurrent", 1.0), ("baseline", 2.0)):
        for seed in (0, 1):
            telling = label if model == "linear" else None
            audits = [leakage("test", text=label)]
            folder = factory.run(model, seed=seed, audits=audits, predictions=(), telling=telling)
            own = np.random.default_rng([sum(model.encode()), seed])
            metrics = {}
            for split, rows in (("validation", 60), ("test", 80)):
                truth = np.random.default_rng(rows).integers(0, 2, (rows, 3))
                metrics[split] = measure_labels((2.0 * truth - 1 + own.normal(0, noise, truth.shape), truth, decision))
            values = read_record(folder).plain() | {"task": "multi-label classification", "metrics": metrics}
            told = MistakeRecord(id="0", labels=names[:2], said="third", probability=0.9, words=[label])
            values["mistakes"] = [
                told.plain(),
                told.model_copy(update={"id": "1", "labels": [], "words": None}).plain(),
            ]
            values["decision"] = DecisionRecord(thresholds=decision.thresholds.tolist(), separator=";")
            write_record(folder, MultiLabelRunRecord.model_validate({**values, "schema_version": 3}))
            folders.append(folder)
    runs, failed = load_runs(folders)
    assert not failed
    questions = Questions(
        [Contrast(name=label[:100], a="recurrent", b="baseline")],
        texts={"test": {"0": label, "1": label}},
        fingerprint=runs[0].record.data.fingerprint,
    )
    return summarise(runs, questions=questions), runs
