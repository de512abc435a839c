"""A protocol as the Trainer's own arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from transformers import TrainingArguments

from recurra.core.environment import started_by_torchrun
from recurra.core.seeds import derive_seed
from recurra.training.protocols import ProtocolConfig

ONE_CYCLE = "onecycle"


def stage_arguments(
    name: Literal["pretraining", "auxiliary"], protocol: ProtocolConfig, folder: Path, *, seed: int, precision: str
) -> TrainingArguments:
    """The Trainer's arguments for a stage before the classifier: nothing is evaluated, and the last epoch is kept.

    Args:
        name: The stage, whose epochs and learning rate the protocol has.
        protocol: How to train.
        folder: Folder of the run's checkpoints; the stage's own go to a folder in it.
        seed: Seed of the run.
        precision: As in `train_transformer`.
    """
    plain = vars(protocol)
    changed = protocol.model_copy(
        update={
            "max_epochs": plain[f"{name}_epochs"],
            "learning_rate": plain[f"{name}_learning_rate"] or protocol.learning_rate,
            "schedule": {"plateau": "constant", ONE_CYCLE: "cosine"}.get(protocol.schedule, protocol.schedule),
            "label_smoothing": 0.0,
        }
    )
    return training_arguments(
        changed, folder / name, seed=derive_seed(seed, name), precision=precision,
        eval_strategy="no", load_best_model_at_end=False, metric_for_best_model=None, greater_is_better=None,
    )  # fmt: skip


def training_arguments(
    protocol: ProtocolConfig, folder: Path, *, seed: int, precision: str, **changes: Any
) -> TrainingArguments:
    """Translates a protocol into the Trainer's own arguments; ``changes`` are such arguments and come last."""
    schedules: dict[str, tuple[str, dict[str, Any]]] = {
        "plateau": (
            "reduce_lr_on_plateau",
            {"factor": protocol.plateau_factor, "patience": protocol.plateau_patience},
        ),
        "cosine": ("cosine", {}),
        "linear": ("linear", {}),
        "constant": ("constant_with_warmup", {}),
        # Made by our trainer.
        ONE_CYCLE: ("constant", {}),
    }
    schedule, schedule_arguments = schedules[protocol.schedule]
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
        "lr_scheduler_type": schedule,
        "lr_scheduler_kwargs": schedule_arguments,
        "warmup_steps": 0 if protocol.schedule in ("plateau", ONE_CYCLE) else protocol.warmup_ratio,
        "max_grad_norm": protocol.max_grad_norm,
        "label_smoothing_factor": protocol.label_smoothing,
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
        "ddp_find_unused_parameters": False,
        "ddp_backend": "gloo" if started_by_torchrun() and not on_accelerator else None,
    }
    return TrainingArguments(**{**arguments, **changes})
