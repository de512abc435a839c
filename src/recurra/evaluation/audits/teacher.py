"""Whether a teacher was trained on rows that its student is measured on: the student may then repeat them."""

from __future__ import annotations

import numpy as np

from recurra.core.record import AuditResult
from recurra.data.dataset import TextDataset, TextSplit
from recurra.evaluation.audits.grading import keep_rows


def audit_teacher(dataset: TextDataset, name: str, trained_on: TextSplit | None) -> list[AuditResult]:
    """Looks for reported rows among those that a teacher was trained on, and the student was not.

    Rows that both were trained on are a matter of the leakage audit.

    Args:
        dataset: The student's data.
        name: The teacher's.
        trained_on: Its training rows; none if they are not known.

    Returns:
        ``teacher.<split>`` for each reported split: ``failed`` if there is such a row, and it may be graded
        (`recurra.evaluation.audits.grading`); ``skipped`` if nobody knows.
    """
    unknown = f"skipped: nobody knows what the teacher {name} was trained on, rows of this split may be among it"
    own = set(dataset.splits["train"].texts)
    others = set() if trained_on is None else set(trained_on.texts) - own
    found = []
    for split in dataset.reported_splits:
        texts = dataset.splits[split].texts
        rows = np.asarray([text in others for text in texts], dtype=bool)
        seen = int(rows.sum())
        told = f"{seen:,} of {len(texts):,} {split} rows are among those that only the teacher {name} learned"
        result = AuditResult(
            name=f"teacher.{split}",
            status="failed" if seen else "passed",
            summary=told,
            value=seen / max(len(texts), 1),
            details=keep_rows(rows) if seen else {},
        )
        if trained_on is None:
            result = AuditResult(name=f"teacher.{split}", status="skipped", summary=unknown)
        found.append(result)
    return found
