"""A moving average of the weights: steadier than the last step's, and often a better classifier."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model, save_model
from torch import Tensor
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from recurra.core.files import storage_errors

# What a checkpoint keeps beside the averaged weights, to go on from.
UNAVERAGED_NAME = "unaveraged.safetensors"


def decay_at(step: int, decay: float) -> float:
    """Share of the old average that step ``step`` (from 1) keeps: rises to ``decay``, so that the start is forgotten.

    ``min(decay, (1 + step) / (10 + step))``, the rule of TensorFlow's ``ExponentialMovingAverage``.
    """
    return min(decay, (1 + step) / (10 + step))


class WeightAverage(TrainerCallback):
    """Averages the weights after every optimiser step: ``average = d * average + (1 - d) * weights``.

    ``d`` is `decay_at` the step. The average begins as the weights that training begins with.

    Args:
        model: Its parameters are averaged; the same objects must stay in it.
        decay: Largest ``d``.
    """

    def __init__(self, model: PreTrainedModel, decay: float) -> None:
        self.model = model
        self.decay = decay
        self._weights = list(model.parameters())
        self._averages: list[Tensor] = [weight.detach().clone() for weight in self._weights]

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Takes the step's weights in."""
        share = 1 - decay_at(state.global_step, self.decay)
        with torch.no_grad():
            for average, weight in zip(self._averages, self._weights, strict=True):
                average.lerp_(weight, share)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Puts the averages in the model's place for the time."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        for index, weight in enumerate(self._weights):
            self._averages[index], weight.data = weight.data, self._averages[index]

    def save_weights(self, checkpoint: Path) -> None:
        """Writes the weights that training goes on with, beside the averages that a checkpoint holds as its model."""
        with storage_errors(checkpoint):
            save_model(self.model, str(checkpoint / UNAVERAGED_NAME))

    def restore(self, checkpoint: Path) -> None:
        """Takes the averages from the model, into which the checkpoint was loaded, and gives it its own weights."""
        self._averages = [weight.detach().clone() for weight in self._weights]
        load_model(self.model, checkpoint / UNAVERAGED_NAME)
