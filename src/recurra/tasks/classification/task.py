"""Classification of texts: how its runs are configured and their data audited. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recurra.core.record import AuditResult
from recurra.data.configuration import DataConfig
from recurra.data.dataset import TextDataset
from recurra.evaluation.audits.registry import Subject, run_audits
from recurra.tasks.classification.exports import PUBLISHED
from recurra.tasks.labelling.task import LabellingTask


def data_audits(dataset: TextDataset) -> list[AuditResult]:
    """Every audit of a data set: leakage, shortcuts."""
    return run_audits(Subject.LABELLED_DATA, dataset)


class ClassificationTask(LabellingTask):
    """One label a text."""

    name = "classification"
    data_config = DataConfig
    exports = True
    published_tables = PUBLISHED

    def claims(self, values: Mapping[str, Any]) -> bool:
        """Whatever no other task claims."""
        del values
        return True

    def data_audits(self, dataset: TextDataset) -> list[AuditResult]:
        """Leakage between splits, and shortcuts to the label."""
        return data_audits(dataset)


TASK = ClassificationTask()
