"""Words and characters beside a frozen encoder: the scores of a linear model and of the encoder's mean state, added."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from recurra.deployment.engines.computation import Depth
from recurra.deployment.engines.trained import TransformerEngine
from recurra.models.controls import STATES_TOKENS
from recurra.models.controls.linear import LinearModel
from recurra.models.heads import pool


class JoinedEngine(TransformerEngine):
    """Adds the scores of a linear model to those of a classifier on mean token states.

    The mean and the classifier on it are computed in FP32, as they were for the fit.
    """

    words: LinearModel

    @classmethod
    def of(cls, engine: TransformerEngine, words: LinearModel) -> Self:
        """An engine of the encoder with its classifier, and a linear model beside it."""
        joined = cls(
            engine.model, engine.tokenizer, precision=engine.precision, max_length=engine.max_length, windows=1
        )
        joined.computation, joined.words = engine.computation, words
        joined.model.classifier.float()
        joined.depth = Depth((), 1, words.num_labels)
        return joined

    @classmethod
    def load(cls, folder: Path, *, precision: str | None = None, preferred: str | None = None, **_: Any) -> Self:
        """Reads encoder, tokenizer and linear model from a model folder."""
        encoder = TransformerEngine.load(folder, max_length=STATES_TOKENS, precision=precision, preferred=preferred)
        return cls.of(encoder, LinearModel.load(folder))

    def parts(self, texts: Sequence[str], batch_size: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Scores that come of words and characters, and of the encoder, ``(texts, labels)`` each."""
        words = self.words.logits(texts)
        if not len(texts):
            return words, words

        def compute(**inputs: Any) -> list[torch.Tensor]:
            states = self.model.model(**inputs, return_dict=True).last_hidden_state.float()
            pooled = pool(states, "mean", inputs.get("attention_mask"), inputs.get("row_lengths"))
            return [self.model.classifier(pooled)]

        return words, self._compute(texts, batch_size, compute)[0]

    def logits(self, texts: Sequence[str], batch_size: int) -> npt.NDArray[np.float32]:
        """Returns ``(texts, labels)`` for cleaned texts."""
        return np.add(*self.parts(texts, batch_size))

    def logits_by_recurrence(self, texts: Sequence[str], batch_size: int) -> dict[int, npt.NDArray[np.float32]]:
        """There is one pass to look at: words are read at once."""
        return {1: self.logits(texts, batch_size)}
