"""Evaluating a finished run or an export: on a split of the run's own data, or on a labelled file of the user."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recurra.core.record import MetricsRecord
from recurra.deployment.engines.computation import Computation
from recurra.evaluation.metrics import evaluate_logits
from recurra.tasks.labelling.evaluation import ComputedRows, compute_rows
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
    """Evaluates a run or an export, with the options of `recurra.tasks.labelling.evaluation.compute_rows`.

    Raises:
        RecurraError: As `compute_rows` does.
    """
    return Evaluation.of(compute_rows(run, **options))
