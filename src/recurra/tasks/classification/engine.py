"""How classifiers are measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recurra.core.record import MetricsRecord, RunRecord
from recurra.data.configuration import DataConfig
from recurra.data.dataset import TextSplit
from recurra.deployment.decision import LabelDecision, OneLabel
from recurra.deployment.engines.computation import Computation
from recurra.evaluation.metrics import evaluate_logits, fit_temperature
from recurra.evaluation.predictions import write_predictions
from recurra.tasks.base import ExitSubject
from recurra.tasks.classification.task import TASK
from recurra.tasks.labelling.engine import LabellingEngine, Logits
from recurra.tasks.labelling.evaluation import ComputedRows, compute_evaluation
from recurra.tasks.presentation import Shown, ShownTable


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Quality of a run, or of an export of it, on some rows.

    Attributes:
        computed: The rows, and what the model says of them.
        metrics: What was measured now.
    """

    computed: ComputedRows
    metrics: MetricsRecord

    @classmethod
    def of(cls, computed: ComputedRows) -> Evaluation:
        """Measures what was computed."""
        logits = computed.logits
        return cls(computed, evaluate_logits(logits, computed.rows.labels, computed.decision.probabilities(logits)))

    @property
    def recorded(self) -> MetricsRecord | None:
        """What the run's record says of the same split, if it has it."""
        found: MetricsRecord | None = self.computed.recorded
        return found

    @property
    def run_id(self) -> str:
        """The run."""
        return self.computed.record.run_id

    @property
    def source(self) -> str:
        """The split, or the file."""
        return self.computed.rows.name

    @property
    def fingerprint(self) -> str:
        """Of texts and labels, in order."""
        return self.computed.rows.fingerprint

    @property
    def computation(self) -> Computation:
        """Precision of the stored weights and of the computation, engine and device."""
        return self.computed.computation

    def shown(self) -> Shown:
        """Figures and the confusion matrix."""
        metrics = self.metrics
        low, high = metrics.accuracy_interval
        figures = [
            ("Accuracy", f"{metrics.accuracy:.4f}"),
            ("95 % interval", f"{low:.4f} to {high:.4f}"),
            ("Precision", f"{metrics.precision:.4f}"),
            ("Recall", f"{metrics.recall:.4f}"),
            ("F1", f"{metrics.f1:.4f}"),
            ("Loss", f"{metrics.loss:.4f}"),
            ("Calibration error (before)", f"{metrics.calibration_error:.4f} ({metrics.uncalibrated_error:.4f})"),
        ]
        names = self.computed.record.data.label_names
        matrix = [
            [f"true {name}", *map(str, counts)] for name, counts in zip(names, metrics.confusion_matrix, strict=True)
        ]
        lines = self.computed.lines()
        if self.recorded is not None:
            lines.append(f"accuracy in the record: {self.recorded.accuracy:.4f}")
        tables = [
            self.computed.table(figures),
            ShownTable("", ["", *(f"predicted {name}" for name in names)], matrix),
        ]
        return Shown(self.plain(), [*tables, lines])

    def plain(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return self.computed.plain(self.metrics)


def evaluate_run(run: Path, **options: Any) -> Evaluation:
    """Evaluates a run or an export, with the options of `recurra.tasks.labelling.evaluation.compute_evaluation`.

    Raises:
        RecurraError: As `compute_evaluation` does.
    """
    return Evaluation.of(compute_evaluation(run, **options))


class ClassificationEngine(LabellingEngine):
    """Trains and measures classifiers."""

    record_class = RunRecord
    task = TASK

    def decide(
        self, config: DataConfig, label_names: Sequence[str], logits: Logits, labels: npt.NDArray[np.int64]
    ) -> LabelDecision:
        """Chooses a temperature."""
        del config
        return OneLabel(label_names, fit_temperature(logits, labels))

    def measure(self, logits: Logits, labels: npt.NDArray[np.int64], decision: LabelDecision) -> MetricsRecord:
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

    def exit_subject(self, run: Path, data_root: Path | None) -> ExitSubject:
        """A classifier with exits, its validation rows and its last reported split."""
        from recurra.tasks.classification.exits import ClassifierSubject

        return ClassifierSubject(run, data_root)


ENGINE = ClassificationEngine()
