"""What runs of every task do with their folder, their processes and their device."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from recurra.core.files import storage_errors
from recurra.training.arguments import started_by_torchrun

MODEL_NAME = "model"
TRAINING_NAME = "training.json"


def save_model_folder(folder: Path, write: Callable[[Path], Any]) -> None:
    """Writes the model folder beside its place and renames it, so that it is whole or absent."""
    target, temporary = folder / MODEL_NAME, folder / f".{MODEL_NAME}.part"
    with storage_errors(target):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        write(temporary)
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)


def speaks_for_all() -> bool:
    """Whether this process writes the folder: the only one, or the first of a distributed training."""
    return not started_by_torchrun() or int(os.environ["RANK"]) == 0


def leave_process_group() -> None:
    """Ends the distributed part in order; a process that just exits can abort the others."""
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def accelerator_name() -> str | None:
    """Name of the accelerator, if there is one."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None
