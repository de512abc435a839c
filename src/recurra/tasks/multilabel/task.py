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
        separator, temperature = config.label_separator or AS_JSON, fit_temperature(*as_two_labels(logits, labels))
        undecided = AnyLabels(label_names, [0.5] * len(label_names), separator, temperature)
        return AnyLabels(
            label_names, choose_thresholds(undecided.probabilities(logits), labels), separator, temperature
        )

    def measure(
        self, logits: Logits, labels: npt.NDArray[np.int64], decision: LabelDecision
    ) -> MultiLabelMetricsRecord:
        return measure_labels((logits, labels, decision))

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
        name = dataset.label_names[label]
        splits = {key: replace(split, labels=split.labels[:, label]) for key, split in dataset.splits.items()}
        one_label = replace(dataset, label_names=[f"not {name}", name], splits=splits)
        # Folds of each label would take minutes.
        for result in audit_shortcuts(one_label, in_folds=False):
            by_audit[result.name].append((name, result))
    audits = []
    for results in by_audit.values():
        label, worst = max(results, key=_badness)
        summary = f"'{label}', the worst of {len(results)} labels: {worst.summary}"
        details = {**worst.details, "label": label, "values": {name: audit.value for name, audit in results}}
        audits.append(worst.model_copy(update={"summary": summary, "details": details}))
    return audits


def _badness(result: tuple[str, AuditResult]) -> tuple[bool, float]:
    _, audit = result
    beyond = -1.0 if audit.value is None else audit.value - (audit.threshold or 0.0)
    return audit.status in ("failed", "note"), beyond


TASK = MultiLabelTask()
