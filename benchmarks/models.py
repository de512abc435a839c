"""The models that compete: ours by preset, and transformers' BERT of equal width and depth."""

from __future__ import annotations

from typing import Any

from transformers import BertForSequenceClassification

from recurra.evaluation.benchmark import bert_of_equal_shape
from recurra.models.modeling import RecurraForSequenceClassification
from recurra.models.presets import preset


def ours(name: str) -> RecurraForSequenceClassification:
    """A preset with fresh weights."""
    return RecurraForSequenceClassification(preset(name))


def bert(name: str, labels: dict[int, str] | None = None) -> Any:
    """BERT with the preset's width, heads, inner width and as many layers as the preset applies; fresh weights."""
    config = bert_of_equal_shape(preset(name))
    if labels:
        config.id2label, config.label2id = labels, {label: index for index, label in labels.items()}
    return BertForSequenceClassification(config)
