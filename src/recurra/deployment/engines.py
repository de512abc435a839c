"""What computes logits: a Transformer on torch, or the linear control."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from recurra.data.batching import sorted_batches
from recurra.data.encoding import encode_texts
from recurra.data.tokenization import read_tokenizer
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
        batches = self._batches(input_ids, offsets, batch_size)
        return predict_logits(self.model, batches, len(texts))

    def _batches(
        self, input_ids: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64], batch_size: int
    ) -> Iterator[tuple[npt.NDArray[np.int64], Mapping[str, torch.Tensor]]]:
        lengths = np.diff(offsets)
        for rows in sorted_batches(lengths, batch_size):
            yield rows, pad_rows(input_ids, offsets[rows], lengths[rows], self.model.config.pad_token_id or 0)


def pad_rows(
    input_ids: npt.NDArray[np.int32], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], pad: int
) -> dict[str, torch.Tensor]:
    """Cuts rows out of flat ids and pads them on the right to the longest; without padding there is no mask."""
    width = int(lengths.max())
    columns = np.arange(width)
    keep = columns < lengths[:, None]
    positions = np.minimum(starts[:, None] + columns, len(input_ids) - 1)
    padded = np.where(keep, input_ids[positions], pad).astype(np.int64)
    inputs = {"input_ids": torch.from_numpy(padded)}
    if not keep.all():
        inputs["attention_mask"] = torch.from_numpy(keep)
    return inputs


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
