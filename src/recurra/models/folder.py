"""Checks a model folder before anything is built from it: regular files, bounded sizes, weights that fit.

A configuration decides how much memory is allocated, so its numbers are first compared with bounds and with the header
of the weights. A configuration that needs more numbers than its weights hold is refused before it costs memory.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from recurra.core.errors import CheckpointError
from recurra.core.files import read_json

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
# A configuration of ours takes a few kilobytes; with 100,000 label names it takes a few megabytes.
_MOST_CONFIG_BYTES = 16 * 2**20
# Far above any model that is trained with this package, and far below sizes that alone would take gigabytes.
MOST = {
    "num_labels": 100_000,
    "vocab_size": 4_000_000,
    "hidden_size": 65_536,
    "embedding_size": 65_536,
    "intermediate_size": 1_048_576,
    "num_attention_heads": 4096,
    "num_prelude_layers": 1024,
    "num_core_layers": 1024,
    "num_coda_layers": 1024,
    "num_recurrences": 4096,
    "exits": 4096,
    "num_cycles": 1024,
    "embedding_cycles": 1024,
    "kernel_size": 4096,
    "low_rank": 65_536,
    "max_position_embeddings": 16_777_216,
    "type_vocab_size": 65_536,
}


def read_model_configuration(folder: Path) -> dict[str, Any]:
    """Returns the values of a model folder's ``config.json``."""
    path = folder / CONFIG_NAME
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"'{path}' is no regular file; copy the model folder again")
        if status.st_size > _MOST_CONFIG_BYTES:
            raise CheckpointError(
                f"'{path}' has {status.st_size:,} bytes; at most {_MOST_CONFIG_BYTES:,} are read: not a file of such a "
                "model"
            )
        values = read_json(path)
    except FileNotFoundError as error:
        message = f"'{folder}' is not a model folder: no {CONFIG_NAME}; give a Hugging Face folder"
        raise CheckpointError(message) from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"'{path}' is not valid JSON ({error}); copy the model folder again") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"'{path}' holds no mapping; copy the model folder again")
    return values


def check_sizes(folder: Path, values: Mapping[str, Any], weights: str = WEIGHTS_NAME) -> None:
    """Checks the sizes of a configuration of ours against bounds, and its tables against the weights beside it."""
    path = folder / CONFIG_NAME
    names = values.get("id2label")
    sizes = {**values, "num_labels": max(len(names) if isinstance(names, dict) else 0, _whole(values, "num_labels"))}
    sizes["exits"] = len(exits) if isinstance(exits := values.get("exits"), list) else 0
    for key, most in MOST.items():
        size = _whole(sizes, key)
        if size > most:
            raise CheckpointError(f"'{path}': '{key}' is {size:,}; at most {most:,} is allowed: not a model of ours")
    wanted_elements = least_elements(sizes)
    held_elements = weight_elements(folder / weights)
    if held_elements is not None and wanted_elements > 2 * held_elements:
        raise CheckpointError(
            f"'{path}' asks for tables of {wanted_elements:,} numbers, and '{weights}' holds {held_elements:,} in all: "
            "not a checkpoint of this configuration; copy or train it again"
        )


def least_elements(sizes: Mapping[str, Any]) -> int:
    """Least count of numbers in a model of these sizes: in its tables and layers that no other key can remove."""
    width = _whole(sizes, "hidden_size", 1)
    embedding = _whole(sizes, "embedding_size") or width
    layers = sum(_whole(sizes, f"num_{part}_layers") for part in ("prelude", "core", "coda"))
    tables = _whole(sizes, "vocab_size", 1) * embedding
    heads = 0 if sizes.get("causal") else _whole(sizes, "num_labels") * width
    # Each cycle has at least one bias.
    cycles = layers * _whole(sizes, "num_cycles") + _whole(sizes, "embedding_cycles")
    # Each layer of a recurrence has at least a bias of its own, and an update with the width's inputs and outputs.
    per_application = 2 * width * _whole(sizes, "low_rank") + (width if sizes.get("recurrence_norms") is True else 0)
    recurrences = _whole(sizes, "num_recurrences") * _whole(sizes, "num_core_layers")
    return int(tables + heads + layers * 4 * width * width + cycles * width + recurrences * per_application)


def weight_elements(path: Path) -> int | None:
    """Count of numbers in a safetensors file, by its header; None if it is missing or cannot be read."""
    try:
        with safe_open(path, framework="np") as handle:
            return sum(prod(handle.get_slice(name).get_shape()) for name in handle.keys())  # noqa: SIM118 - no mapping
    except (OSError, SafetensorError):
        return None


def _whole(values: Mapping[str, Any], key: str, otherwise: int = 0) -> int:
    value = values.get(key)
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else otherwise
