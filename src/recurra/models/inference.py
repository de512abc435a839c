"""Logits of many rows: batches in, one array out, in the order of the rows."""

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
    """Gives torch, in this whole process, ``count`` threads for the time, 0 meaning all cores; yields how many."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or available_cores())
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def check_precision(precision: str) -> str:
    """Returns ``precision`` if it is known and sensible here."""
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
            "precision 'bf16' is not supported by this accelerator; use fp16, whose loss is scaled in training, or fp32"
        )
    return precision


def imitates_bf16(device: torch.device) -> bool:
    """Whether bf16 products are computed here without instructions for them: several times slower than in FP32.

    Of a CPU oneDNN says it: with AVX-512 it has fast ways of its own, with AVX2 it leaves them to plain loops.
    """
    return device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()


def has_bf16(device: torch.device) -> bool:
    """Whether there are instructions for bf16 products here, so that they are faster than in FP32.

    A CPU with AVX-512 alone has none, and yet `imitates_bf16` is no: oneDNN has ways of its own, which gain nothing.
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
    """Computes something of each row, in row order; rows of a batch beyond those numbered are fillers."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    results: list[npt.NDArray[Any]] = []
    try:
        with autocast(precision, device):
            for indices, inputs in batches:
                given = {name: tensor.to(device) for name, tensor in inputs.items()}
                found = [values[: len(indices)].cpu().numpy() for values in compute(**given)]
                if not results:
                    results = [np.empty((rows, *values.shape[1:]), dtype=values.dtype) for values in found]
                for result, values in zip(results, found, strict=True):
                    result[indices] = values
    finally:
        model.train(was_training)
    return results


def predict_logits(model: Any, batches: Batches, rows: int, *, precision: str = "fp32") -> npt.NDArray[np.float32]:
    """Returns logits ``(rows, labels)`` in row order."""
    found = compute_rows(model, batches, rows, lambda **inputs: [model(**inputs).logits.float()], precision=precision)
    return found[0] if found else np.empty((0, int(model.config.num_labels)), dtype=np.float32)
