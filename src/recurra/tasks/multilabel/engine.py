"""Multi-label classification: thresholds, and how models are measured. The half of the task that imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from recurra.core.errors import ConfigurationError
from recurra.core.files import atomic_path
from recurra.core.record import MultiLabelMetricsRecord, MultiLabelRunRecord, read_record
from recurra.data.configuration import DataConfig, MultiLabelData
from recurra.data.dataset import TextSplit
from recurra.data.labels import AS_JSON
from recurra.deployment.decision import AnyLabels, LabelDecision
from recurra.evaluation.metrics import fit_temperature
from recurra.evaluation.predictions import SEVERAL_LABELS, predictions_path
from recurra.tasks.base import ExitSubject
from recurra.tasks.labelling.engine import LabellingEngine, Logits
from recurra.tasks.labelling.evaluation import ComputedRows
from recurra.tasks.multilabel.reporting import as_two_labels, choose_thresholds, measure_labels
from recurra.tasks.multilabel.task import TASK
from recurra.tasks.presentation import Shown, ShownTable


class MultiLabelEngine(LabellingEngine):
    """Trains and measures models that give a text any number of labels."""

    record_class = MultiLabelRunRecord
    task = TASK

    def decide(
        self, config: DataConfig, label_names: Sequence[str], logits: Logits, labels: npt.NDArray[np.int64]
    ) -> LabelDecision:
        """Chooses a temperature for all labels, and a threshold for each."""
        assert isinstance(config, MultiLabelData)
        temperature = fit_temperature(*as_two_labels(logits, labels))
        undecided = AnyLabels(label_names, [0.5] * len(label_names), config.label_separator or AS_JSON, temperature)
        thresholds = choose_thresholds(undecided.probabilities(logits), labels)
        return AnyLabels(label_names, thresholds, config.label_separator or AS_JSON, temperature)

    def measure(
        self, logits: Logits, labels: npt.NDArray[np.int64], decision: LabelDecision
    ) -> MultiLabelMetricsRecord:
        """F1, subset accuracy, Hamming loss, loss, and figures of each label."""
        return measure_labels(logits, labels, decision)

    def keep_predictions(self, folder: Path, split: TextSplit, logits: Logits) -> None:
        """Logits and true labels by row, as lists."""
        rows = {"id": split.ids, "labels": split.labels.tolist(), "logits": logits.tolist()}
        table = pa.table(rows, schema=SEVERAL_LABELS)
        with atomic_path(predictions_path(folder, split.name)) as temporary:
            pq.write_table(table, temporary, compression="zstd")

    def figures(self, metrics: MultiLabelMetricsRecord) -> dict[str, str]:
        """F1 over pairs and over labels, subset accuracy, Hamming loss, loss, calibration error."""
        after, before = metrics.calibration_error, metrics.uncalibrated_error
        return {
            "Micro F1": f"{metrics.micro_f1:.4f}",
            "Macro F1": f"{metrics.macro_f1:.4f}",
            "All labels right": f"{metrics.subset_accuracy:.4f}",
            "Hamming loss": f"{metrics.hamming_loss:.4f}",
            "Loss": f"{metrics.loss:.4f}",
            **({} if after is None or before is None else {"Calibration error": f"{after:.4f} ({before:.4f} before)"}),
        }

    def evaluation(self, computed: ComputedRows) -> Shown:
        """Figures, and those of each label with its threshold."""
        decision = computed.decision
        assert isinstance(decision, AnyLabels)
        metrics = measure_labels(computed.logits, computed.rows.labels, decision)
        low, high = metrics.micro_f1_interval
        shown = self.figures(metrics)
        figures = [("Micro F1", shown.pop("Micro F1")), ("95 % interval", f"{low:.4f} to {high:.4f}"), *shown.items()]
        by_label = [
            [name, f"{threshold:.4f}", f"{item.support:,}", f"{item.predicted:,}"]
            + [f"{value:.4f}" for value in (item.precision, item.recall, item.f1)]
            for (name, item), threshold in zip(metrics.labels.items(), decision.thresholds, strict=True)
        ]
        headings = ["Label", "Threshold", "Rows with it", "Rows given it", "Precision", "Recall", "F1"]
        lines = computed.lines()
        if computed.recorded is not None:
            lines.append(f"micro F1 in the record: {computed.recorded.micro_f1:.4f}")
        thresholds = dict(zip(metrics.labels, decision.thresholds.tolist(), strict=True))
        plain = {**computed.plain(metrics), "thresholds": thresholds}
        return Shown(plain, [computed.table(figures), ShownTable("", headings, by_label), lines])

    def exit_subject(self, run: Path, data_root: Path | None) -> ExitSubject:
        """Refuses: an exit rule asks whether the label is settled, and here there are several."""
        del data_root
        raise ConfigurationError(
            f"run '{read_record(run).run_id}' gives texts any number of labels, and exit rules are for models that "
            "give one; its texts take all recurrences"
        )


ENGINE = MultiLabelEngine()
