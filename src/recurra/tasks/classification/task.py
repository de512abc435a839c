"""Classification of texts: one label each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recurra.core.record import AuditResult, MetricsRecord, RunRecord
from recurra.data.configuration import DataConfig
from recurra.data.dataset import TextDataset, TextSplit
from recurra.deployment.decision import LabelDecision, OneLabel
from recurra.evaluation.audits.registry import Subject, run_audits
from recurra.evaluation.metrics import evaluate_logits, fit_temperature
from recurra.tasks.classification.exports import PUBLISHED
from recurra.tasks.classification.measures import ACCURACY, F1, PRECISION, RECALL
from recurra.tasks.exits import ExitSubject
from recurra.tasks.labelling.reporting import CALIBRATION, LOSS, UNCALIBRATED
from recurra.tasks.labelling.task import LabellingTask, Logits
from recurra.tasks.tables import Table


class ClassificationTask(LabellingTask):
    """One label a text."""

    name = "classification"
    data_config = DataConfig
    record_class = RunRecord
    exports = True
    takes_answers = True
    published_tables = PUBLISHED
    measures = (ACCURACY, PRECISION, RECALL, F1, LOSS, CALIBRATION, UNCALIBRATED)

    def claims(self, values: Mapping[str, Any]) -> bool:
        """All data that no other task claims."""
        return True

    def data_audits(self, dataset: TextDataset) -> list[AuditResult]:
        return run_audits(Subject.LABELLED_DATA, dataset)

    def decide(
        self, config: DataConfig, label_names: Sequence[str], logits: Logits, labels: npt.NDArray[np.int64]
    ) -> LabelDecision:
        """Chooses a temperature."""
        return OneLabel(label_names, fit_temperature(logits, labels))

    def measure(self, logits: Logits, labels: npt.NDArray[np.int64], decision: LabelDecision) -> MetricsRecord:
        return evaluate_logits(logits, labels, decision.temperature)

    def of_depth(
        self, metrics: MetricsRecord, split: TextSplit, logits: Mapping[int, Logits], engine: Any, batch_size: int
    ) -> MetricsRecord:
        *exits, _ = sorted(logits)
        if exits:
            right = {number: float((logits[number].argmax(axis=1) == split.labels).mean()) for number in exits}
            return metrics.model_copy(update={"exit_accuracy": right})
        taken = engine.recurrences(split.texts, batch_size)
        if taken is None:
            return metrics
        numbers, rows = np.unique(taken, return_counts=True)
        return metrics.model_copy(update={"recurrences": dict(zip(numbers.tolist(), rows.tolist(), strict=True))})

    def details(self, names: Sequence[str], metrics: Any, decision: LabelDecision) -> Table:
        matrix = [
            {"": f"true {name}"} | {f"predicted {label}": f"{rows}" for label, rows in zip(names, counts, strict=True)}
            for name, counts in zip(names, metrics.confusion_matrix, strict=True)
        ]
        return Table("confusion", "", matrix)

    def exit_subject(self, run: Path, data_root: Path | None) -> ExitSubject:
        from recurra.tasks.classification.exits import ClassifierSubject

        return ClassifierSubject(run, data_root)


TASK = ClassificationTask()
