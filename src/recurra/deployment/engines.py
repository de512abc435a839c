"""What computes logits: a Transformer on torch, or the linear control."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from recurra.data.encoding import encode_texts
from recurra.data.tokenization import read_tokenizer
from recurra.deployment.batches import FlatRows
from recurra.models.inference import PRECISIONS, check_precision, default_device, predict_logits
from recurra.models.linear import LinearClassifier
from recurra.models.loading import load_classifier_model


class TransformerEngine:
    """Runs a classifier of ours on torch.

    Args:
        model: The classifier; converted in place to ``precision`` once, so that no weight is cast again a batch.
        tokenizer: Its tokenizer.
        precision: ``fp32``, ``bf16`` or ``fp16``.
        max_length: Tokens after which a text is cut.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, *, precision: str, max_length: int
    ) -> None:
        self.precision = check_precision(precision)
        self.model = model.to(device=default_device(), dtype=PRECISIONS[precision]).eval()
        self.tokenizer = tokenizer
        self.max_length = min(max_length, int(model.config.max_position_embeddings))

    @classmethod
    def load(cls, folder: Path, *, precision: str, max_length: int) -> TransformerEngine:
        """Reads model and tokenizer from a model folder."""
        model = load_classifier_model(folder)
        return cls(model, read_tokenizer(folder), precision=precision, max_length=max_length)

    def logits(self, texts: Sequence[str], batch_size: int) -> npt.NDArray[np.float32]:
        """Returns ``(texts, labels)`` for cleaned texts."""
        input_ids, offsets = encode_texts(texts, self.tokenizer, self.max_length)
        rows = FlatRows(input_ids, offsets, self.model.config.pad_token_id or 0)
        if self.model.device.type == "cpu":
            batches = rows.packed(batch_size, few_sizes=self.precision != "fp32")
        else:
            batches = rows.padded(batch_size)
        return predict_logits(self.model, batches, len(texts))


class LinearEngine:
    """Runs the linear control."""

    def __init__(self, model: LinearClassifier) -> None:
        self.model = model

    @classmethod
    def load(cls, folder: Path) -> LinearEngine:
        """Reads the linear model from a model folder."""
        return cls(LinearClassifier.load(folder))

    def logits(self, texts: Sequence[str], batch_size: int) -> npt.NDArray[np.float32]:  # noqa: ARG002 - an Engine's
        """Returns ``(texts, labels)`` for cleaned texts; all at once, which is fastest for a sparse product."""
        return self.model.logits(texts)
