"""What is trained before the classifier, on other targets: an encoder that is shared, checkpoints of its own."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_model
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from recurra.core.errors import RunError
from recurra.core.files import read_json
from recurra.core.progress import ProgressTask, Reporter
from recurra.training.checkpoint import latest_checkpoint
from recurra.training.trainer import RecurraTrainer


def train_stage(
    name: str,
    model: nn.Module,
    num_rows: int,
    arguments: TrainingArguments,
    make_trainer: Callable[[TrainerCallback], RecurraTrainer],
    *,
    reporter: Reporter,
) -> bool:
    """Trains a stage to its end, or goes on from its last epoch, or takes up what is done.

    Args:
        name: Shown, and the first part of the name of its learning rate's key.
        model: Trained in place.
        num_rows: Rows an epoch.
        arguments: How; their folder is that of the stage's own checkpoints.
        make_trainer: Makes the trainer, which gets the given callback.
        reporter: For progress.

    Returns:
        Whether some of it had been done before.

    Raises:
        RunError: If the loss is not finite.
    """
    checkpoint = latest_checkpoint(Path(arguments.output_dir))
    if checkpoint is not None and _is_done(checkpoint):
        load_model(model, checkpoint / "model.safetensors")
        return True
    batch = arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size
    steps = -(-num_rows // batch) * int(arguments.num_train_epochs)
    with reporter.task(name, steps) as task:
        trainer = make_trainer(StageProgress(name, task))
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    trainer.callback_handler.callbacks.clear()
    del trainer
    gc.collect()
    return checkpoint is not None


def _is_done(checkpoint: Path) -> bool:
    state = read_json(checkpoint / "trainer_state.json")
    return bool(state["global_step"] >= state["max_steps"])


class StageProgress(TrainerCallback):
    """Moves the bar, says the loss of every epoch, stops when it is not finite."""

    def __init__(self, name: str, task: ProgressTask) -> None:
        self.name = name
        self.task = task

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Takes up a resumed state."""
        self.task.advance(state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Moves the bar."""
        self.task.advance(1, note=f"epoch {int(state.epoch or 0) + 1}")

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Says the loss."""
        last = state.log_history[-1]
        if "loss" not in last:
            return
        epoch = round(last["epoch"])
        if not np.isfinite(last["loss"]):
            raise RunError(
                f"the loss is not finite in epoch {epoch} of {self.name}; lower {self.name}_learning_rate "
                "or raise precision (precision=fp32)"
            )
        self.task.reporter.say(f"  {self.name} epoch {epoch}: loss {json.dumps(round(last['loss'], 4))}")
