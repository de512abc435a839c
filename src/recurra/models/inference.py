"""Logits of many rows: batches in, one array out, in the order of the rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from recurra.core.environment import available_cores
from recurra.core.errors import ConfigurationError, unknown
from recurra.models.exits import ExitRule

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def default_device() -> torch.device:
    """The accelerator if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[int]:
    """Gives torch's operators ``count`` threads for the time, 0 meaning all cores; yields how many they have.

    The number belongs to the whole process: a function that left it changed would slow whatever its caller runs beside.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count or available_cores())
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def check_precision(precision: str) -> str:
    """Returns ``precision`` if it is known and sensible here.

    Raises:
        ConfigurationError: For an unknown name, FP16 on a CPU (its matrix products are 50 times slower than FP32's), or
            bf16 on an accelerator that has none and would only imitate it.
    """
    if precision not in PRECISIONS:
        raise ConfigurationError(unknown("precision", precision, PRECISIONS))
    if precision == "fp16" and not torch.cuda.is_available():
        raise ConfigurationError(
            "precision 'fp16' needs an accelerator: a CPU computes it far slower; use bf16 or fp32"
        )
    if (
        precision == "bf16"
        and torch.cuda.is_available()
        and not torch.cuda.is_bf16_supported(including_emulation=False)
    ):
        raise ConfigurationError(
            "precision 'bf16' is not to be had on this accelerator; use fp16, whose loss is scaled in training, or fp32"
        )
    return precision


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Runs matrix products in ``precision``, the rest in FP32."""
    if precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=PRECISIONS[precision])


@torch.inference_mode()
def predict_logits(
    model: Any,
    batches: Iterable[tuple[npt.NDArray[np.int64], Mapping[str, torch.Tensor]]],
    rows: int,
    *,
    precision: str = "fp32",
    exit_rule: ExitRule | None = None,
) -> npt.NDArray[np.float32]:
    """Returns logits ``(rows, labels)`` in row order.

    Args:
        model: A classifier; put into evaluation mode for the call.
        batches: Pairs of the batch's row numbers and the model's inputs; rows beyond those numbered are fillers.
        rows: Number of rows in all.
        precision: Precision of the matrix products.
        exit_rule: If given, rows stop early, see `recurra.models.exits`.
    """
    asked = {} if exit_rule is None else {"exit_rule": exit_rule}
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    result: npt.NDArray[np.float32] | None = None
    try:
        with autocast(precision, device):
            for indices, inputs in batches:
                given = {name: tensor.to(device) for name, tensor in inputs.items()}
                logits = model(**given, **asked).logits[: len(indices)]
                if result is None:
                    result = np.empty((rows, logits.shape[-1]), dtype=np.float32)
                result[indices] = logits.float().cpu().numpy()
    finally:
        model.train(was_training)
    if result is None:
        return np.empty((0, int(model.config.num_labels)), dtype=np.float32)
    return result
