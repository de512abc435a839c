"""Classification of texts: how classifiers are measured. The half of the task that imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from recurra.core.record import MetricsRecord, RunRecord
from recurra.data.configuration import DataConfig
from recurra.data.dataset import TextSplit
from recurra.deployment.decision import Decision, OneLabel
from recurra.evaluation.calibration import fit_temperature
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

    def decide(
        self, config: DataConfig, label_names: Sequence[str], logits: Logits, labels: npt.NDArray[np.int64]
    ) -> Decision:
        """Chooses a temperature."""
        del config
        return OneLabel(label_names, fit_temperature(logits, labels))

    def measure(self, logits: Logits, labels: npt.NDArray[np.int64], decision: Decision) -> MetricsRecord:
        """Accuracy, F1, loss, calibration and the confusion matrix."""
        return evaluate_logits(logits, labels, decision.probabilities(logits))

    def keep_predictions(self, folder: Path, split: TextSplit, logits: Logits) -> None:
        """Logits by row, for the paired tests of a report."""
        write_predictions(folder, split.name, split.ids, split.labels, logits)

    def figures(self, metrics: MetricsRecord) -> dict[str, str]:
        """Accuracy, F1, loss and how far the probabilities are off."""
        error = {} if metrics.calibration_error is None else {"Calibration error": f"{metrics.calibration_error:.4f}"}
        return {
            "Accuracy": f"{metrics.accuracy:.4f}",
            "F1": f"{metrics.f1:.4f}",
            "Loss": f"{metrics.loss:.4f}",
            **error,
        }

    def evaluation(self, computed: ComputedRows) -> Shown:
        """Figures and the confusion matrix."""
        return Evaluation.of(computed).shown()

    def exit_subject(self, run: Path, data_root: Path | None) -> ClassifierSubject:
        """A classifier with exits, its validation rows and its last reported split."""
        return ClassifierSubject(run, data_root)


ENGINE = ClassificationEngine()
