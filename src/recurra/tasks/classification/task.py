"""Classification of texts: one label each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from recurra.core.record import AuditResult, MetricsRecord, RunRecord
from recurra.data.configuration import DataConfig
from recurra.data.dataset import TextDataset, TextSplit
from recurra.deployment.decision import LabelDecision, OneLabel
from recurra.evaluation.audits.registry import Subject, run_audits
from recurra.tasks.classification.exports import PUBLISHED
from recurra.tasks.exits import ExitSubject
from recurra.tasks.labelling.task import LabellingTask, Logits
from recurra.tasks.tables import CommandResult, Table

if TYPE_CHECKING:
    from recurra.tasks.labelling.evaluation import ComputedRows


class ClassificationTask(LabellingTask):
    """One label a text."""

    name = "classification"
    data_config = DataConfig
    record_class = RunRecord
    exports = True
    takes_answers = True
    published_tables = PUBLISHED

    def claims(self, values: Mapping[str, Any]) -> bool:
        """Whatever no other task claims."""
        return True

    def data_audits(self, dataset: TextDataset) -> list[AuditResult]:
        return run_audits(Subject.LABELLED_DATA, dataset)

    def decide(
        self, config: DataConfig, label_names: Sequence[str], logits: Logits, labels: npt.NDArray[np.int64]
    ) -> LabelDecision:
        """Chooses a temperature."""
        from recurra.evaluation.metrics import fit_temperature

        return OneLabel(label_names, fit_temperature(logits, labels))

    def measure(self, logits: Logits, labels: npt.NDArray[np.int64], decision: LabelDecision) -> MetricsRecord:
        from recurra.evaluation.metrics import evaluate_logits

        return evaluate_logits(logits, labels, decision.probabilities(logits))

    def of_depth(self, metrics: MetricsRecord, split: TextSplit, engine: Any, batch_size: int) -> MetricsRecord:
        if engine.model.config.exits:
            logits = engine.logits_by_recurrence(split.texts, batch_size)
            *exits, _ = sorted(logits)
            right = {number: float((logits[number].argmax(axis=1) == split.labels).mean()) for number in exits}
            return metrics.model_copy(update={"exit_accuracy": right})
        if getattr(engine.model.config, "learned_halt", False):
            numbers, rows = np.unique(engine.recurrences(split.texts, batch_size), return_counts=True)
            return metrics.model_copy(update={"recurrences": dict(zip(numbers.tolist(), rows.tolist(), strict=True))})
        return metrics

    def keep_predictions(self, folder: Path, split: TextSplit, logits: Logits) -> None:
        from recurra.evaluation.predictions import write_predictions

        write_predictions(folder, split.name, split.ids, split.labels, logits)

    def figures(self, metrics: MetricsRecord) -> dict[str, str]:
        error = {} if metrics.calibration_error is None else {"Calibration error": f"{metrics.calibration_error:.4f}"}
        return {
            "Accuracy": f"{metrics.accuracy:.4f}",
            "F1": f"{metrics.f1:.4f}",
            **({} if metrics.loss is None else {"Loss": f"{metrics.loss:.4f}"}),
            **error,
        }

    def evaluation(self, computed: ComputedRows) -> CommandResult:
        metrics = computed.metrics
        low, high = metrics.accuracy_interval
        figures = {
            "Accuracy": f"{metrics.accuracy:.4f}",
            "95 % interval": f"{low:.4f} to {high:.4f}",
            "Precision": f"{metrics.precision:.4f}",
            "Recall": f"{metrics.recall:.4f}",
            "F1": f"{metrics.f1:.4f}",
            "Loss": f"{metrics.loss:.4f}",
            "Calibration error (before)": f"{metrics.calibration_error:.4f} ({metrics.uncalibrated_error:.4f})",
        }
        names = computed.record.data.label_names
        matrix = [
            {"": f"true {name}"} | {f"predicted {said}": f"{count}" for said, count in zip(names, counts, strict=True)}
            for name, counts in zip(names, metrics.confusion_matrix, strict=True)
        ]
        lines = computed.lines()
        if computed.recorded is not None:
            lines.append(f"accuracy in the record: {computed.recorded.accuracy:.4f}")
        return CommandResult(computed.plain(), [computed.table(figures), Table("confusion", "", matrix), lines])

    def exit_subject(self, run: Path, data_root: Path | None) -> ExitSubject:
        from recurra.tasks.classification.exits import ClassifierSubject

        return ClassifierSubject(run, data_root)


TASK = ClassificationTask()
