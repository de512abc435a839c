"""What a timing of a language model takes: forward passes over windows of a text, tokens to logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from recurra.core.record import LatencyRecord
from recurra.evaluation.latency import measure_latency, synchroniser
from recurra.models.inference import autocast

# Windows that are timed: a whole split takes minutes.
MOST_WINDOWS = 32


def windows(tokens: npt.NDArray[Any], context: int) -> list[torch.Tensor]:
    """Windows of a text, ``(context,)`` of token ids each, evenly spread; at most `MOST_WINDOWS`."""
    width = min(context, len(tokens))
    count = max(1, min(MOST_WINDOWS, len(tokens) // width))
    starts = np.linspace(0, len(tokens) - width, count).astype(np.int64)
    return [torch.from_numpy(tokens[start : start + width].astype(np.int64)) for start in starts]


def stacked(inputs: Sequence[torch.Tensor], batch_size: int) -> list[torch.Tensor]:
    """Windows one below the other, ``(batch_size, context)``."""
    return list(torch.stack(list(inputs)).split(batch_size))


def forward_pass(model: Any, precision: str) -> Callable[[torch.Tensor], None]:
    """A forward pass over a batch ``(batch, tokens)``, all logits computed."""
    device = model.device

    @torch.inference_mode()
    def forward(ids: torch.Tensor) -> None:
        with autocast(precision, device):
            model(input_ids=ids.to(device))

    return forward


def time_language_model(
    model: Any, tokens: npt.NDArray[Any], context: int, *, precision: str, batch_sizes: Sequence[int]
) -> dict[str, LatencyRecord]:
    """Times a model by itself; a sample is a window of ``context`` tokens."""
    inputs = windows(tokens, context)
    call, device = forward_pass(model, precision), str(model.device)
    return {
        f"batch_{size}": measure_latency(
            call,
            stacked(inputs, size),
            synchronise=synchroniser(device),
            threads=torch.get_num_threads(),
            precision=precision,
            device=device,
            scope="model",
        )
        for size in sorted(set(batch_sizes))
    }
