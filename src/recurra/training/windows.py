"""Evaluation of whole texts in training: batches of all windows of some texts, whose logits are pooled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recurra.data.batching import Collator
from recurra.data.encoding import EncodedSplit

# Windows of each text in such a batch, ``(texts,)``.
TEXT_WINDOWS = "text_windows"


@dataclass(frozen=True, eq=False)
class WholeTexts:
    """Texts with all of their windows; a map-style dataset for a torch ``DataLoader``.

    Attributes:
        rows: Windows of texts.
    """

    rows: EncodedSplit

    def __len__(self) -> int:
        return len(self.rows.windows_of_texts)

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each text, ``(texts,)``."""
        sums: npt.NDArray[np.int64] = np.add.reduceat(self.rows.lengths, self.rows.text_rows)
        return sums

    def texts_a_batch(self, rows: int) -> int:
        """Texts of a batch of at most so many rows, if each had as many as the one with most; at least 1."""
        return max(1, rows // int(self.rows.windows_of_texts.max()))

    def __getitem__(self, index: int) -> list[dict[str, Any]]:
        first, count = int(self.rows.text_rows[index]), int(self.rows.windows_of_texts[index])
        return self.rows.__getitems__(range(first, first + count))


class WholeTextsCollator:
    """Makes a batch of all windows of some texts.

    Args:
        pad_token_id: Token that fills.
    """

    def __init__(self, pad_token_id: int) -> None:
        self._collate = Collator(pad_token_id)

    def __call__(self, texts: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Tensor]:
        """Returns ``labels`` of the texts (first, for the Trainer counts by them), ``text_windows``, and all inputs."""
        batch = self._collate([row for windows in texts for row in windows])
        counts = torch.tensor([len(windows) for windows in texts])
        return {"labels": batch.pop("labels")[counts.cumsum(0) - 1], TEXT_WINDOWS: counts, **batch}


def pool_logits(logits: Tensor, counts: Tensor) -> Tensor:
    """The mean over the windows of each text, ``(texts, labels)`` in FP32; see `recurra.data.windows`.

    Args:
        logits: Of windows, those of a text together, ``(windows, labels)``.
        counts: Windows of each text, ``(texts,)``.
    """
    texts = torch.arange(len(counts), device=logits.device).repeat_interleave(counts)
    sums = torch.zeros(len(counts), logits.shape[1], device=logits.device).index_add(0, texts, logits.float())
    return sums / counts[:, None]
