"""Runs a classifier of transformers that is not ours: as a teacher, never with its code or a pickle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from transformers import AutoModelForSequenceClassification

from recurra.core.errors import CheckpointError
from recurra.data.cleaning import clean_texts
from recurra.data.encoding import encode_texts
from recurra.data.tokenization import tokenizer_from_folder
from recurra.deployment.engines.packing import FlatRows
from recurra.models.folder import WEIGHTS_NAME, read_model_configuration
from recurra.models.inference import default_device, predict_logits
from recurra.models.loading import read_pretrained

_LONGEST = 512
_BATCH_SIZE = 64


class ForeignClassifier:
    """A classifier of any architecture of transformers.

    Args:
        model: In evaluation mode.
        tokenizer: Its own.
        precision: Of the matrix products.
    """

    def __init__(self, model: Any, tokenizer: Any, precision: str) -> None:
        self.model, self.tokenizer, self.precision = model, tokenizer, precision
        names: dict[int, str] = model.config.id2label
        self.classes_ = np.array([str(names[index]) for index in sorted(names)], dtype=str)
        limit = int(getattr(model.config, "max_position_embeddings", _LONGEST))
        # RoBERTa's table has rows that no token reaches.
        self.max_length = min(limit, _LONGEST)

    @classmethod
    def load(cls, folder: Path, *, precision: str) -> Self:
        """Reads a folder.

        Raises:
            CheckpointError: If it cannot be loaded without its own code, or is not whole.
        """
        read_model_configuration(folder)
        if not (folder / WEIGHTS_NAME).is_file():
            raise CheckpointError(
                f"'{folder}' holds no {WEIGHTS_NAME}; pickled weights can run code when they are read and are refused"
            )
        model, details = read_pretrained(
            AutoModelForSequenceClassification, folder, "is no classifier that can be loaded without its own code"
        )
        if missing := sorted(details["missing_keys"]):
            raise CheckpointError(
                f"'{folder}' lacks weight '{missing[0]}': an encoder without a trained classifier teaches nothing; "
                "fine-tune it first"
            )
        return cls(model.to(default_device()).eval(), tokenizer_from_folder(folder), precision)

    def logits(self, texts: Sequence[str], *, clean: bool = True) -> npt.NDArray[np.float32]:
        """Returns ``(texts, labels)``."""
        rows = clean_texts(texts) if clean else list(texts)
        input_ids, offsets = encode_texts(rows, self.tokenizer, self.max_length)
        pad = self.tokenizer.pad_token_id
        flat = FlatRows(input_ids, offsets, int(pad or 0))
        return predict_logits(self.model, flat.padded(_BATCH_SIZE), len(rows), precision=self.precision)
