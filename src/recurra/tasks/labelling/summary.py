"""What a report knows of models that label texts, whatever their labels are."""

from __future__ import annotations

from dataclasses import dataclass

from recurra.tasks.summary import TableSummary


@dataclass(frozen=True)
class SplitLine:
    """One split as the runs saw it."""

    name: str
    role: str
    rows: int
    fingerprint: str
    label_counts: dict[str, int]
    mean_words: float
    median_words: float
    max_words: int


@dataclass(frozen=True, kw_only=True)
class LabellingTable(TableSummary):
    """A table of such models, with their labels and the rows that cleaning left out, by reason."""

    splits: list[SplitLine]
    label_names: list[str]
    dropped: dict[str, int]
