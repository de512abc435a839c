"""The record of a multi-label run: what is not as in a classifier's."""

from __future__ import annotations

from typing import ClassVar, Literal

from recurra.core.label_record import LabelRunRecord
from recurra.core.record_parts import DecisionRecord, Part


class LabelFiguresRecord(Part):
    """How well one label is found. A ratio without a denominator is 0.

    Attributes:
        precision: Share of the texts given the label that have it.
        recall: Share of the texts with the label that were given it.
        f1: Their harmonic mean.
        support: Texts that have it.
        predicted: Texts that were given it.
    """

    precision: float
    recall: float
    f1: float
    support: int
    predicted: int


class MultiLabelMetricsRecord(Part):
    """Quality on one split.

    Attributes:
        rows: Texts evaluated.
        micro_f1: F1 over all pairs of a text and a label.
        micro_f1_interval: 95 % interval of it over texts (percentile bootstrap).
        macro_f1: Mean of the labels' F1; one that never occurs counts as 0.
        subset_accuracy: Share of texts whose labels are all right.
        hamming_loss: Share of pairs of a text and a label that are wrong.
        loss: Mean binary cross-entropy over texts and labels, in nats; it knows no thresholds.
        labels: By label.
    """

    rows: int
    micro_f1: float
    micro_f1_interval: tuple[float, float]
    macro_f1: float
    subset_accuracy: float
    hamming_loss: float
    loss: float
    labels: dict[str, LabelFiguresRecord]

    def figures(self) -> dict[str, str]:
        """What a model card shows, by heading."""
        low, high = self.micro_f1_interval
        return {
            "micro F1": f"{self.micro_f1:.4f}",
            "95 % interval": f"{low:.4f} to {high:.4f}",
            "macro F1": f"{self.macro_f1:.4f}",
            "all labels right": f"{self.subset_accuracy:.4f}",
            "Hamming loss": f"{self.hamming_loss:.4f}",
            "loss": f"{self.loss:.4f}",
        }


class MultiLabelRunRecord(LabelRunRecord[MultiLabelMetricsRecord]):
    """Everything about one multi-label run. See the parts."""

    figures_note: ClassVar[str] = (
        "Intervals are of micro F1 over rows (bootstrap). This is one training with one seed; another seed would move "
        "the figures.\nMicro F1 counts pairs of a text and a label; macro F1 is the mean over labels."
    )

    schema_version: Literal[3, 4] = 4
    task: Literal["multi-label classification"] = "multi-label classification"
    decision: DecisionRecord
