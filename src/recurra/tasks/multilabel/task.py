"""Multi-label classification: how its runs are configured, and audits of its data. Imports no torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from recurra.core.record import AuditResult
from recurra.data.configuration import MultiLabelData
from recurra.data.dataset import TextDataset
from recurra.evaluation.audits.leakage import audit_leakage
from recurra.tasks.labelling.task import LabellingTask

# A probe a label is fitted: of many labels, the rare ones are the least likely to be guessed from the format.
MOST_PROBED = 20


class MultiLabelTask(LabellingTask):
    """Any number of labels a text."""

    name = "multi-label classification"
    data_config = MultiLabelData

    def claims(self, values: Mapping[str, Any]) -> bool:
        """Data that say what stands between labels, or which columns they are."""
        return values.get("label_separator") is not None or bool(values.get("label_columns"))

    def data_audits(self, dataset: TextDataset) -> list[AuditResult]:
        """Leakage between splits, and shortcuts to any of the labels."""
        return [*audit_leakage(dataset), *audit_label_shortcuts(dataset)]


def audit_label_shortcuts(dataset: TextDataset) -> list[AuditResult]:
    """Audits shortcuts to each label, as if it were the only one: texts with it against texts without it.

    Args:
        dataset: With labels ``(rows, labels)``.

    Returns:
        What `audit_shortcuts` returns, each of the label for which it is worst; its ``details`` name the label,
        and give the value of every label that was audited, the 20 most frequent.
    """
    from recurra.evaluation.audits.shortcuts import audit_shortcuts

    frequent = np.argsort(-dataset.splits["train"].labels.sum(axis=0), kind="stable")[:MOST_PROBED]
    found: dict[str, list[tuple[str, AuditResult]]] = defaultdict(list)
    for label in frequent.tolist():
        for result in audit_shortcuts(_of_label(dataset, label)):
            found[result.name].append((dataset.label_names[label], result))
    return [_worst(results) for results in found.values()]


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
