"""Computes logits of many rows from batches, as one array in the order of the rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from recurra.core.environment import available_cores
from recurra.core.errors import ConfigurationError, unknown

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


Batches = Iterable[tuple[npt.NDArray[np.int64], Mapping[str, torch.Tensor]]]


def default_device() -> torch.device:
    """The accelerator if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[int]:
    """Gives torch ``count`` threads in this process within the context (0 means all cores); yields their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or available_cores())
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def check_precision(precision: str) -> str:
    """Returns ``precision`` if it is known and this machine supports it."""
    if precision not in PRECISIONS:
        raise ConfigurationError(unknown("precision", precision, PRECISIONS))
    on_accelerator = torch.cuda.is_available()
    if precision == "fp16" and not on_accelerator:
        raise ConfigurationError(
            "precision 'fp16' needs an accelerator: a CPU computes it far slower; use bf16 or fp32"
        )
    if precision == "bf16" and on_accelerator and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise ConfigurationError(
            "precision 'bf16' is not supported by this accelerator; use fp16, whose loss is scaled in training, or fp32"
        )
    return precision


def imitates_bf16(device: torch.device) -> bool:
    """Whether this device computes bf16 products without instructions for them, several times slower than in FP32.

    On a CPU, oneDNN tells: with AVX-512 it has fast methods of its own, with AVX2 it leaves bf16 to plain loops.
    """
    return device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()


def has_bf16(device: torch.device) -> bool:
    """Whether this device has instructions for bf16 products, which make them faster than in FP32.

    A CPU with AVX-512 alone has none, yet `imitates_bf16` is false: oneDNN's own methods are as fast as FP32.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Runs matrix products in ``precision``, the rest in FP32."""
    if precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=PRECISIONS[precision])


@torch.inference_mode()
def compute_rows(
    model: Any, batches: Batches, rows: int, compute: Callable[..., Sequence[torch.Tensor]], *, precision: str = "fp32"
) -> list[npt.NDArray[Any]]:
    """Applies ``compute`` to all batches, in row order; rows of a batch without an index are fillers."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    results: list[npt.NDArray[Any]] = []
    try:
        with autocast(precision, device):
            for indices, inputs in batches:
                device_inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
                batch_values = [values[: len(indices)].cpu().numpy() for values in compute(**device_inputs)]
                if not results:
                    results = [np.empty((rows, *values.shape[1:]), dtype=values.dtype) for values in batch_values]
                for result, values in zip(results, batch_values, strict=True):
                    result[indices] = values
    finally:
        model.train(was_training)
    return results


def predict_logits(model: Any, batches: Batches, rows: int, *, precision: str = "fp32") -> npt.NDArray[np.float32]:
    """Returns logits ``(rows, labels)`` in row order."""
    results = compute_rows(model, batches, rows, lambda **inputs: [model(**inputs).logits.float()], precision=precision)
    return results[0] if results else np.empty((0, int(model.config.num_labels)), dtype=np.float32)
