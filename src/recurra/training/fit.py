"""Training one model under one protocol, from the start or from its last checkpoint."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import random
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers import (
    EvalPrediction,
    PreTrainedModel,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from recurra.core.configuration import derive_seed
from recurra.core.environment import peak_memory_mib, started_by_torchrun, tune_allocator
from recurra.core.errors import RunError
from recurra.core.packed import HISTORY_NAME
from recurra.core.progress import Reporter
from recurra.core.record import EpochRecord, LanguageTrainingRecord, TrainingRecord
from recurra.data.batching import LengthGroupedBatchSampler
from recurra.data.encoding import EncodedSplit
from recurra.models.modeling import RecurraForSequenceClassification
from recurra.training.checkpoint import latest_checkpoint
from recurra.training.distillation import RowLoss, TaughtCollator, TaughtSplit
from recurra.training.protocols import ProtocolConfig
from recurra.training.trainer import (
    ONE_CYCLE,
    Entry,
    HistoryCallback,
    RecurraTrainer,
    TaskProgress,
    WeightAverage,
    read_history,
)
from recurra.training.vocabulary import MaskTokens, drop_tokens, known_vocabulary

_one_training = threading.Lock()
Record = TypeVar("Record", TrainingRecord, LanguageTrainingRecord)


def training_arguments(
    protocol: ProtocolConfig, folder: Path, *, seed: int, precision: str, **changes: Any
) -> TrainingArguments:
    """Translates a protocol into the Trainer's own arguments; ``changes`` are such arguments and come last."""
    # Our trainer creates the one-cycle schedule itself.
    names = {"plateau": "reduce_lr_on_plateau", "constant": "constant_with_warmup", ONE_CYCLE: "constant"}
    plateau = {"factor": protocol.plateau_factor, "patience": protocol.plateau_patience}
    on_accelerator = torch.cuda.is_available()
    arguments: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": protocol.batch_size // protocol.gradient_accumulation,
        "gradient_accumulation_steps": protocol.gradient_accumulation,
        "per_device_eval_batch_size": max(protocol.evaluation_batch_size, 64),
        "num_train_epochs": protocol.max_epochs,
        "learning_rate": protocol.learning_rate,
        "weight_decay": protocol.weight_decay,
        "adam_beta1": protocol.adam_betas[0],
        "adam_beta2": protocol.adam_betas[1],
        "lr_scheduler_type": names.get(protocol.schedule, protocol.schedule),
        "lr_scheduler_kwargs": plateau if protocol.schedule == "plateau" else {},
        "warmup_steps": 0 if protocol.schedule in ("plateau", ONE_CYCLE) else protocol.warmup_ratio,
        "max_grad_norm": protocol.max_grad_norm,
        "activation_checkpointing": protocol.activation_checkpointing,
        "optim": "adamw_torch_fused",
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        "use_cpu": not on_accelerator,
        "dataloader_pin_memory": on_accelerator,
        "remove_unused_columns": False,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "logging_strategy": "epoch",
        "logging_nan_inf_filter": False,
        "load_best_model_at_end": True,
        "metric_for_best_model": f"eval_{protocol.selection}",
        "greater_is_better": protocol.selection == "accuracy",
        "restore_callback_states_from_checkpoint": True,
        "report_to": [],
        "disable_tqdm": True,
        "log_level": "error",
        "seed": derive_seed(seed, "dropout"),
        # A batch that stops early does not use the heads after its exit.
        "ddp_find_unused_parameters": protocol.sampled_recurrences,
        "ddp_backend": "gloo" if started_by_torchrun() and not on_accelerator else None,
    }
    return TrainingArguments(**{**arguments, **changes})


class StageProgress(TaskProgress):
    """Reports the loss of every auxiliary epoch, and stops when it is not finite."""

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Reports the loss of the epoch."""
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
    """Returns a classifier of ``num_labels`` classes with new heads that shares the encoder of another."""
    config = copy.deepcopy(classifier.config)
    config.num_labels = num_labels
    if getattr(classifier, "narrows_vocabulary", True):
        # Its own encoder is thrown away, so a token table of a row or two is enough.
        config.vocab_size = 1 + (config.pad_token_id or 0)
    auxiliary_classifier = type(classifier)(config)
    auxiliary_classifier.model = classifier.model
    return auxiliary_classifier


def train_auxiliary(
    classifier: RecurraForSequenceClassification,
    rows: EncodedSplit,
    protocol: ProtocolConfig,
    folder: Path,
    *,
    seed: int,
    precision: str,
    change_inputs: Callable[[Tensor], Tensor] | None,
    reporter: Reporter,
) -> bool:
    """Trains the classifier's encoder in place on labels of another task; its own head does not change.

    Training resumes from its last epoch, or restores a finished stage; returns whether there was a checkpoint. Nothing
    is evaluated, and the weights of the last epoch are used.
    """
    auxiliary_protocol = protocol.model_copy(
        update={
            "max_epochs": protocol.auxiliary_epochs,
            "learning_rate": protocol.auxiliary_learning_rate or protocol.learning_rate,
            "schedule": {"plateau": "constant", ONE_CYCLE: "cosine"}.get(protocol.schedule, protocol.schedule),
            "label_smoothing": 0.0,
            "early_stopping_patience": 0,
            "curriculum_epochs": 0,
            "sampled_recurrences": False,
        }
    )
    arguments = training_arguments(
        auxiliary_protocol, folder / "auxiliary", seed=derive_seed(seed, "auxiliary"), precision=precision,
        eval_strategy="no", load_best_model_at_end=False, metric_for_best_model=None, greater_is_better=None,
    )  # fmt: skip
    # The Trainer would only move the shared encoder.
    classifier.to(arguments.device)
    torch.manual_seed(derive_seed(seed, "auxiliary weights"))
    auxiliary_classifier = classifier_beside(classifier, int(rows.labels.max()) + 1)
    return RecurraTrainer(
        auxiliary_classifier, rows, auxiliary_protocol, arguments, reporter,
        stage="auxiliary", progress=StageProgress(), data_seed=derive_seed(seed, "auxiliary order"),
        collator=TaughtCollator(classifier.config.pad_token_id or 0), change_inputs=change_inputs,
        loss=None if rows.weights is None else RowLoss(exit_loss_weight=auxiliary_classifier.config.exit_loss_weight),
    ).fit()[1]  # fmt: skip


CHECKPOINTS_NAME = "checkpoints"


def train_transformer(
    model: PreTrainedModel,
    train: EncodedSplit,
    selection: EncodedSplit,
    protocol: ProtocolConfig,
    *,
    folder: Path,
    seed: int,
    precision: str,
    reporter: Reporter,
    mask_tokens: MaskTokens | None = None,
    auxiliary: EncodedSplit | None = None,
) -> TrainingRecord:
    """Trains ``model`` in place; at the end it has the weights of the best epoch.

    If the folder holds a complete checkpoint, training resumes from it. In FP32 on one machine the result is then
    bit for bit the same as without the interruption.
    """
    tune_allocator()
    checkpoints = folder / CHECKPOINTS_NAME
    row_loss = RowLoss(
        protocol.label_smoothing,
        model.config.exit_loss_weight,
        protocol.exit_distillation,
        protocol.distillation_temperature,
        protocol.distillation_weight,
        protocol.state_weight,
    )
    # The Trainer's own label smoothing only considers the last head.
    by_row = train.weights is not None or protocol.exit_distillation or protocol.label_smoothing
    # A batch of short rows does not use the weights that belong to later recurrences alone.
    varies_depth = getattr(model.config, "tokens_without_recurrence", None) is not None
    changes = {"ddp_find_unused_parameters": protocol.sampled_recurrences or varies_depth}
    arguments = training_arguments(protocol, checkpoints, seed=seed, precision=precision, **changes)
    # First of all, so that weight averages and the whole token table are made on the model's device.
    model.to(arguments.device)
    trained = [train] if auxiliary is None else [train, auxiliary]
    with known_vocabulary(model, selection, trained, mask_tokens) as (splits, tokens):
        selection_rows, train_rows, *auxiliary_rows = splits
        resumed = False
        change_inputs = None
        if tokens is not None:
            change_inputs = functools.partial(drop_tokens, share=protocol.token_dropout, tokens=tokens)
        if latest_checkpoint(checkpoints) is None and auxiliary_rows:
            resumed = train_auxiliary(
                model, auxiliary_rows[0], protocol, checkpoints,
                seed=seed, precision=precision, change_inputs=change_inputs, reporter=reporter,
            )  # fmt: skip
        state, continued = RecurraTrainer(
            model, train_rows, protocol, arguments, reporter,
            progress=HistoryCallback(
                folder / HISTORY_NAME, _measured, lambda entry: f"accuracy {entry['validation_accuracy']:.4f}"
            ),
            data_seed=derive_seed(seed, "order"), eval_dataset=selection_rows, compute_metrics=_accuracy,
            collator=TaughtCollator(model.config.pad_token_id or 0), change_inputs=change_inputs,
            loss=row_loss if by_row or isinstance(train, TaughtSplit) else None,
            average=WeightAverage(model, protocol.weight_averaging) if protocol.weight_averaging else None,
        ).fit()  # fmt: skip
    history, resumed = [EpochRecord(**entry) for entry in read_history(state, _measured)], resumed or continued
    # With a curriculum an epoch reads short rows several times.
    order = LengthGroupedBatchSampler(
        train.lengths, protocol.batch_size, derive_seed(seed, "order"), curriculum_epochs=protocol.curriculum_epochs
    )
    tokens_per_epoch = order.tokens(len(history)) // len(history)
    # The earliest of equally good epochs, as the Trainer chooses.
    if protocol.selection == "accuracy":
        best = max(history, key=lambda epoch: epoch.validation_accuracy)
    else:
        best = min(history, key=lambda epoch: epoch.validation_loss)
    return training_record(
        TrainingRecord, state, protocol, history, best=best, tokens=tokens_per_epoch, resumed=resumed
    )


def remove_checkpoints(folder: Path) -> None:
    """Removes the training checkpoints of a finished run."""
    shutil.rmtree(folder / CHECKPOINTS_NAME, ignore_errors=True)


def _measured(line: Entry) -> Entry:
    return {"validation_accuracy": line["eval_accuracy"]}


def _accuracy(prediction: EvalPrediction) -> dict[str, float]:
    logits = prediction.predictions[0] if isinstance(prediction.predictions, tuple) else prediction.predictions
    if np.ndim(prediction.label_ids) == 2:
        # Share of rows whose labels are all right at threshold 0.5; thresholds are tuned after training.
        return {"accuracy": float(np.mean(((logits >= 0) == prediction.label_ids).all(axis=-1)))}
    return {"accuracy": float(np.mean(np.argmax(logits, axis=-1) == prediction.label_ids))}


def training_record(
    kind: type[Record],
    state: TrainerState,
    protocol: ProtocolConfig,
    history: Sequence[Any],
    *,
    best: Any,
    tokens: int,
    resumed: bool,
) -> Record:
    """The record of a training, from its epochs, the best epoch, and the tokens that one epoch reads."""
    wall_s = sum(epoch.wall_s for epoch in history)
    return kind(
        protocol=protocol.name,
        epochs=len(history),
        steps=state.global_step,
        best_epoch=best.epoch,
        wall_s=wall_s,
        tokens_per_s=tokens * len(history) / wall_s,
        peak_memory_mib=peak_memory_mib(),
        resumed=int(resumed),
        history=list(history),
    )


@contextlib.contextmanager
def isolated_random_state() -> Iterator[None]:
    """Restores the process's random generators afterwards, because a training seeds all of them.

    One training at a time has them, and the state that accelerate keeps for the process; other threads wait.
    """
    with _one_training:
        python_state, numpy_state = random.getstate(), np.random.get_state()
        with torch.random.fork_rng():
            try:
                yield
            finally:
                random.setstate(python_state)
                np.random.set_state(numpy_state)
