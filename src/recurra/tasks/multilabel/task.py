"""Multi-label classification: any number of labels a text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recurra.core.errors import ConfigurationError
from recurra.core.record import AuditResult, MultiLabelMetricsRecord, MultiLabelRunRecord, read_record
from recurra.data.configuration import DataConfig, MultiLabelData
from recurra.data.dataset import TextDataset
from recurra.data.labels import AS_JSON
from recurra.deployment.decision import AnyLabels, LabelDecision
from recurra.evaluation.audits.leakage import audit_leakage
from recurra.evaluation.metrics import fit_temperature
from recurra.tasks.exits import ExitSubject
from recurra.tasks.labelling.task import LabellingTask, Logits
from recurra.tasks.multilabel.reporting import FIGURES, as_two_labels, choose_thresholds, measure_labels
from recurra.tasks.tables import Table

# One probe is fitted a label. Of many labels, the rare ones are the least likely to be guessed from the format.
MOST_PROBED = 20


class MultiLabelTask(LabellingTask):
    """Any number of labels a text."""

    name = "multi-label classification"
    data_config = MultiLabelData
    kind_of_answer = "several"
    record_class = MultiLabelRunRecord
    measures = FIGURES

    def claims(self, values: Mapping[str, Any]) -> bool:
        """Claims data that name a separator of labels or several columns of labels."""
        return values.get("label_separator") is not None or bool(values.get("label_columns"))

    def data_audits(self, dataset: TextDataset) -> list[AuditResult]:
        return [*audit_leakage(dataset), *audit_label_shortcuts(dataset)]

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
        return measure_labels(logits, labels, decision)

    def details(self, names: Sequence[str], metrics: Any, decision: LabelDecision) -> Table:
        assert isinstance(decision, AnyLabels)
        by_label = [
            {
                "Label": name,
                "Threshold": f"{threshold:.4f}",
                "Rows with it": f"{item.support:,}",
                "Rows given it": f"{item.predicted:,}",
                **{heading: f"{getattr(item, heading.lower()):.4f}" for heading in ("Precision", "Recall", "F1")},
            }
            for (name, item), threshold in zip(metrics.labels.items(), decision.thresholds, strict=True)
        ]
        return Table("labels", "", by_label)

    def exit_subject(self, run: Path, data_root: Path | None) -> ExitSubject:
        """Refuses: an exit rule asks whether the label is settled, and here there are several."""
        raise ConfigurationError(
            f"run '{read_record(run).run_id}' gives texts any number of labels, and exit rules are for models that "
            "give one; its texts take all recurrences"
        )


def audit_label_shortcuts(dataset: TextDataset) -> list[AuditResult]:
    """Audits shortcuts to each label, as if it were the only one: texts with it against texts without it.

    Returns:
        The audits of `audit_shortcuts`, each of the label for which it is worst; its ``details`` name the label,
        and give the value of every label that was audited, the 20 most frequent.
    """
    from recurra.evaluation.audits.shortcuts import audit_shortcuts

    frequent = np.argsort(-dataset.splits["train"].labels.sum(axis=0), kind="stable")[:MOST_PROBED]
    by_audit: dict[str, list[tuple[str, AuditResult]]] = defaultdict(list)
    for label in frequent.tolist():
        # Folds of each label would take minutes.
        for result in audit_shortcuts(_of_label(dataset, label), in_folds=False):
            by_audit[result.name].append((dataset.label_names[label], result))
    return [_worst(results) for results in by_audit.values()]


def _of_label(dataset: TextDataset, label: int) -> TextDataset:
    name = dataset.label_names[label]
    splits = {key: replace(split, labels=split.labels[:, label]) for key, split in dataset.splits.items()}
    return replace(dataset, label_names=[f"not {name}", name], splits=splits)


def _worst(results: Sequence[tuple[str, AuditResult]]) -> AuditResult:
    def badness(item: tuple[str, AuditResult]) -> tuple[bool, float]:
        audit = item[1]
        return audit.status in ("failed", "note"), -1.0 if audit.value is None else audit.value - (
            audit.threshold or 0.0
        )

    label, worst = max(results, key=badness)
    values = {name: audit.value for name, audit in results}
    return worst.model_copy(
        update={
            "summary": f"'{label}', the worst of {len(results)} labels: {worst.summary}",
            "details": {**worst.details, "label": label, "values": values},
        }
    )


TASK = MultiLabelTask()
