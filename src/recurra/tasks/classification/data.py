"""Audits of a classifier's data."""

from __future__ import annotations

from recurra.core.record import AuditResult
from recurra.data.dataset import TextDataset
from recurra.evaluation.audits.registry import Subject, run_audits


def data_audits(dataset: TextDataset) -> list[AuditResult]:
    """Every audit of a data set: leakage, shortcuts."""
    return run_audits(Subject.LABELLED_DATA, dataset)
