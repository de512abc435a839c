"""The models that compete: ours by preset or encoder, and transformers' BERT of equal width and depth."""

from __future__ import annotations

from typing import Any

from transformers import BertConfig, BertForSequenceClassification

from recurra.evaluation.benchmark import bert_of_equal_shape
from recurra.models.adaptation.source import ENCODER_NAMES, PACKAGED, find_encoder
from recurra.models.configuration import RecurraConfig
from recurra.models.inference import default_device, has_bf16
from recurra.models.modeling import RecurraForSequenceClassification
from recurra.models.presets import preset

# The float precision that an expert takes here: emulated bf16 is many times slower than FP32.
FASTEST = "bf16" if has_bf16(default_device()) else "fp32"


def ours(name: str) -> RecurraForSequenceClassification:
    """A preset, or the shape of an encoder at hand, with fresh weights, whose values do not change the time."""
    if name in ENCODER_NAMES:
        return RecurraForSequenceClassification(RecurraConfig(**find_encoder(name).shape()))
    return RecurraForSequenceClassification(preset(name))


def bert(name: str, labels: dict[int, str] | None = None) -> Any:
    """BERT with the preset's width, heads, inner width and as many layers as the preset applies; fresh weights.

    For a packaged encoder it has that encoder's own shape.
    """
    packaged = name in PACKAGED
    config = BertConfig.from_pretrained(find_encoder(name).folder) if packaged else bert_of_equal_shape(preset(name))
    if labels:
        config.id2label, config.label2id = labels, {label: index for index, label in labels.items()}
    return BertForSequenceClassification(config)
