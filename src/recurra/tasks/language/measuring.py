"""Perplexities of a language model on the splits of a corpus or on a file, head by head."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from recurra.core.language_record import FINAL_HEAD, HeadRecord, LanguageMetricsRecord
from recurra.core.record import LatencyRecord
from recurra.data.language.encoding import EncodedText
from recurra.evaluation.latency import measure_latency, synchroniser
from recurra.evaluation.perplexity import Perplexity, evaluate_perplexity
from recurra.models.inference import autocast

if TYPE_CHECKING:
    from recurra.models.configuration import RecurraConfig


def head_names(config: RecurraConfig) -> list[str]:
    """Names of all heads, ``exit-N`` after recurrence N, the final one last."""
    return [*(f"exit-{number}" for number in config.exits), FINAL_HEAD]


def measure_text(
    model: Any,
    encoded: EncodedText,
    *,
    context: int,
    stride: int | None,
    packed: bool,
    lossless: bool,
    precision: str,
) -> LanguageMetricsRecord:
    """Measures every head of a model on a text, each token once.

    Args:
        model: Ours.
        encoded: The text.
        context: Tokens that are read at once.
        stride: Tokens from one window to the next; none gives blocks that do not overlap.
        packed: Whether a text may read the texts before it.
        lossless: Whether the tokens give the text back: if not, words and bytes are not what was predicted.
        precision: Precision of the matrix products.

    Raises:
        ConfigurationError: For a context or stride that cannot be.
        RunError: If the model gives what is not a number.
    """
    heads = measure_heads(model, encoded, context=context, stride=stride, packed=packed, precision=precision)
    return metrics_record(heads, context=context, stride=stride, lossless=lossless)


def measure_heads(
    model: Any,
    encoded: EncodedText,
    *,
    context: int,
    stride: int | None,
    packed: bool,
    precision: str,
    by_position: bool = False,
) -> dict[str, Perplexity]:
    """Measures every head as `measure_text` does, by name; ``by_position`` also gives the loss by position.

    Raises:
        ConfigurationError: For a context or stride that cannot be.
        RunError: If the model gives what is not a number.
    """
    found = evaluate_perplexity(
        model,
        encoded,
        context=context,
        stride=stride,
        packed=packed,
        precision=precision,
        exits=True,
        by_position=by_position,
    )
    return _by_recurrence(found, model.config)


def metrics_record(
    heads: Mapping[str, Perplexity], *, context: int, stride: int | None, lossless: bool
) -> LanguageMetricsRecord:
    """Returns what a record says of measured heads, as `measure_text` does."""
    final = heads[FINAL_HEAD]
    return LanguageMetricsRecord(
        tokens=final.tokens,
        words=final.words,
        bytes=final.num_bytes,
        context=context,
        stride=context if stride is None else stride,
        heads={name: _head_record(value, lossless=lossless) for name, value in heads.items()},
    )


def _by_recurrence(found: Mapping[str, Perplexity], config: RecurraConfig) -> dict[str, Perplexity]:
    """The evaluation counts exits from 1 on; ours are called by the recurrence that they stand after."""
    return dict(zip(head_names(config), found.values(), strict=True))


def _head_record(value: Perplexity, *, lossless: bool) -> HeadRecord:
    return HeadRecord(
        loss=value.loss,
        token_perplexity=_finite(value.token_perplexity),
        word_perplexity=_finite(value.word_perplexity) if lossless else None,
        bits_per_byte=value.bits_per_byte if lossless else None,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


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
