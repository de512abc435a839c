"""What is trained before the classifier, if data have it: labels of another task."""

from __future__ import annotations

import copy
import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_model
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from recurra.core.configuration import derive_seed
from recurra.core.errors import RunError
from recurra.core.files import read_json
from recurra.core.progress import ProgressTask, Reporter
from recurra.data.encoding import EncodedSplit
from recurra.models.modeling import RecurraForSequenceClassification
from recurra.training.checkpoint import latest_checkpoint
from recurra.training.distillation import RowLoss, TaughtCollator
from recurra.training.trainer import RecurraTrainer, TimedCheckpoints


def _is_done(checkpoint: Path) -> bool:
    state = read_json(checkpoint / "trainer_state.json")
    return bool(state["global_step"] >= state["max_steps"])


class StageProgress(TrainerCallback):
    """Moves the bar, says the loss of every epoch, stops when it is not finite."""

    def __init__(self, task: ProgressTask) -> None:
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
                f"the loss is not finite in epoch {epoch} of auxiliary; lower auxiliary_learning_rate "
                "or raise precision (precision=fp32)"
            )
        self.task.reporter.say(f"  auxiliary epoch {epoch}: loss {json.dumps(round(last['loss'], 4))}")


def classifier_beside(
    classifier: RecurraForSequenceClassification, num_labels: int
) -> RecurraForSequenceClassification:
    """Returns a classifier of ``num_labels`` classes with fresh heads on the very encoder of another."""
    config = copy.deepcopy(classifier.config)
    config.num_labels = num_labels
    # Its own encoder is thrown away: a table of a row or two is made quickly.
    config.vocab_size = 1 + (config.pad_token_id or 0)
    beside = RecurraForSequenceClassification(config)
    beside.model = classifier.model
    return beside


def train_auxiliary(
    classifier: RecurraForSequenceClassification,
    rows: EncodedSplit,
    arguments: TrainingArguments,
    *,
    change_inputs: Callable[[Tensor], Tensor] | None,
    seed: int,
    reporter: Reporter,
) -> bool:
    """Trains the classifier's encoder in place on labels of another task; its own head is not touched.

    It goes on from its last epoch, or takes up what is done; returns whether some of it had been.
    """
    # The Trainer would move the shared encoder alone.
    classifier.to(arguments.device)
    torch.manual_seed(derive_seed(seed, "auxiliary weights"))
    beside = classifier_beside(classifier, int(rows.labels.max()) + 1)
    checkpoint = latest_checkpoint(Path(arguments.output_dir))
    if checkpoint is not None and _is_done(checkpoint):
        load_model(beside, checkpoint / "model.safetensors")
        return True
    batch = arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size
    steps = -(-len(rows) // batch) * int(arguments.num_train_epochs)
    with reporter.task("auxiliary", steps) as task:
        trainer = RecurraTrainer(
            model=beside,
            args=arguments,
            train_dataset=rows,
            collator=TaughtCollator(classifier.config.pad_token_id or 0),
            data_seed=derive_seed(seed, "auxiliary order"),
            row_loss=None if rows.weights is None else RowLoss(exit_loss_weight=beside.config.exit_loss_weight),
            change_inputs=change_inputs,
            callbacks=[StageProgress(task), TimedCheckpoints()],
        )
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    trainer.callback_handler.callbacks.clear()
    del trainer
    gc.collect()
    return checkpoint is not None
