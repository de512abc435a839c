"""Training state on disk without pickle: safetensors for tensors, JSON for the rest.

A checkpoint only counts if it has its marker, which is written last, so a kill while saving loses that checkpoint and
nothing else.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from recurra.core.errors import CheckpointError
from recurra.core.files import storage_errors, write_text

MARKER_NAME = "complete.json"
OPTIMIZER_NAME = "optimizer.safetensors"
SCHEDULE_NAME = "schedule.json"
SCALER_NAME = "scaler.json"
EPOCH_NAME = "epoch.json"


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint below ``folder``, or none."""
    complete = [path.parent for path in folder.glob(f"checkpoint-*/{MARKER_NAME}")]
    return max(complete, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def mark_complete(checkpoint: Path, step: int) -> None:
    """Writes the marker of a checkpoint whose other files are all on disk."""
    write_text(checkpoint / MARKER_NAME, json.dumps({"step": step}) + "\n")


def remove_checkpoints_but(folder: Path, steps: set[int]) -> None:
    """Removes all checkpoints but those of ``steps``, also incomplete ones; the marker of each is removed first."""
    kept_names = {f"checkpoint-{step}" for step in steps}
    for path in folder.glob("checkpoint-*"):
        if path.name not in kept_names:
            (path / MARKER_NAME).unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)


def save_optimizer(path: Path, state: Mapping[str, Any]) -> None:
    """Writes an optimiser's ``state_dict``: tensors by ``index.name``, groups and scalars as JSON metadata."""
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, Any] = {}
    for index, entries in state["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{name}"] = value.detach().cpu().contiguous()
            else:
                scalars[f"{index}.{name}"] = value
    metadata = {"param_groups": json.dumps(state["param_groups"]), "scalars": json.dumps(scalars)}
    with storage_errors(path):
        save_file(tensors, path, metadata=metadata)


def load_optimizer(path: Path) -> dict[str, Any]:
    """Reads what `save_optimizer` wrote."""
    try:
        tensors = load_file(path)
        with safe_open(path, framework="pt") as handle:
            metadata = handle.metadata()
        state: dict[int, dict[str, Any]] = {}
        for key, value in [*tensors.items(), *json.loads(metadata["scalars"]).items()]:
            index, _, name = key.partition(".")
            state.setdefault(int(index), {})[name] = value
        return {"state": state, "param_groups": json.loads(metadata["param_groups"])}
    except (SafetensorError, OSError, ValueError, LookupError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"'{path}' is damaged ({error}); delete its checkpoint folder and start again") from error


def save_schedule(path: Path, state: Mapping[str, Any]) -> None:
    """Writes the ``state_dict`` of a schedule or a loss scaler (infinities allowed: plateau schedules start at one)."""
    write_text(path, json.dumps(state) + "\n")


def load_schedule(path: Path) -> dict[str, Any]:
    """Reads what `save_schedule` wrote."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"'{path}' is damaged ({error}); delete its checkpoint folder and start again") from error


def save_random_state(folder: Path, process: int) -> None:
    """Writes the states of Python's, NumPy's and PyTorch's generators, including those of accelerators."""
    path = folder / f"random-{process}.json"
    tensors = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        for index, state in enumerate(torch.cuda.get_rng_state_all()):
            tensors[f"cuda.{index}"] = state
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()
    plain = {
        "python": [version, list(words), gauss],
        "numpy": [kind, np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
    }
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, path.with_suffix(".safetensors"))
    write_text(path, json.dumps(plain) + "\n")


def load_random_state(folder: Path, process: int) -> None:
    """Restores what `save_random_state` wrote."""
    path = folder / f"random-{process}.json"
    try:
        tensors = load_file(path.with_suffix(".safetensors"))
        plain = json.loads(path.read_text(encoding="utf-8"))
        version, words, gauss = plain["python"]
        kind, keys, *rest = plain["numpy"]
        random.setstate((version, tuple(words), gauss))
        np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
        torch.set_rng_state(tensors["cpu"])
    except (SafetensorError, OSError, ValueError, LookupError, TypeError, RuntimeError) as error:
        raise CheckpointError(
            f"random state {process} in '{folder}' cannot be read ({error}); "
            "resume with as many processes as it was started with, or start again"
        ) from error
    if torch.cuda.is_available():
        names = [f"cuda.{device}" for device in range(torch.cuda.device_count())]
        if tensors.keys() == {"cpu", *names}:
            torch.cuda.set_rng_state_all([tensors[name] for name in names])
