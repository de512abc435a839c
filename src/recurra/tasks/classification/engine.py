"""Classification of texts: how classifiers are measured. The half of the task that imports torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from recurra.core.record import MetricsRecord, RunRecord
from recurra.data.dataset import TextSplit
from recurra.deployment.decision import Decision
from recurra.evaluation.metrics import evaluate_logits
from recurra.evaluation.predictions import write_predictions
from recurra.tasks.classification.evaluation import Evaluation
from recurra.tasks.classification.exits import ClassifierSubject
from recurra.tasks.classification.task import TASK
from recurra.tasks.labelling.engine import LabellingEngine, Logits
from recurra.tasks.labelling.evaluation import ComputedRows
from recurra.tasks.presentation import Shown


class ClassificationEngine(LabellingEngine):
    """Trains and measures classifiers."""

    record_class = RunRecord
    task = TASK

    def measure(self, logits: Logits, labels: npt.NDArray[np.int64], decision: Decision) -> MetricsRecord:
        """Accuracy, F1, loss and the confusion matrix."""
        del decision
        return evaluate_logits(logits, labels)

    def keep_predictions(self, folder: Path, split: TextSplit, logits: Logits) -> None:
        """Logits by row, for the paired tests of a report."""
        write_predictions(folder, split.name, split.ids, split.labels, logits)

    def figures(self, metrics: MetricsRecord) -> dict[str, str]:
        """Accuracy, F1 and loss."""
        return {"Accuracy": f"{metrics.accuracy:.4f}", "F1": f"{metrics.f1:.4f}", "Loss": f"{metrics.loss:.4f}"}

    def evaluation(self, computed: ComputedRows) -> Shown:
        """Figures and the confusion matrix."""
        return Evaluation(computed, evaluate_logits(computed.logits, computed.rows.labels)).shown()

    def exit_subject(self, run: Path, data_root: Path | None) -> ClassifierSubject:
        """A classifier with exits, its validation rows and its last reported split."""
        return ClassifierSubject(run, data_root)


ENGINE = ClassificationEngine()
