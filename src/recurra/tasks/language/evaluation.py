"""Evaluating a finished run of a language model on a split of its corpus or on a text file, and what is shown of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from recurra.core.errors import ConfigurationError, DataError
from recurra.core.record import (
    FINAL_HEAD,
    HeadRecord,
    LanguageMetricsRecord,
    LanguageRunRecord,
    LatencyRecord,
    read_language_record,
)
from recurra.core.sealed import sealed_model
from recurra.core.terminal import decimal
from recurra.data.language.configuration import LINES, LanguageDataConfig
from recurra.data.language.corpora import RunningText, load_language_dataset, read_text_file
from recurra.data.language.preparation import encode_for
from recurra.data.language.tokenization import EncodedText, is_lossless, read_language_tokenizer
from recurra.evaluation.latency import measure_latency, synchroniser
from recurra.evaluation.perplexity import Perplexity, PositionLoss, evaluate_perplexity
from recurra.models.inference import autocast, check_precision, default_device
from recurra.models.loading import load_language_model
from recurra.tasks.base import require_split
from recurra.tasks.tables import CommandResult, Table


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
    return evaluate_perplexity(
        model,
        encoded,
        context=context,
        stride=stride,
        packed=packed,
        precision=precision,
        exits=True,
        by_position=by_position,
    )


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


def head_table(title: str, metrics: Mapping[str, LanguageMetricsRecord]) -> Table:
    """A row for each head on each text: loss in nats a token, perplexities, bits a byte."""
    rows = [
        {
            "Text": source,
            "Head": name,
            "Loss": f"{head.loss:.4f}",
            "Perplexity a token": _perplexity(head.token_perplexity),
            "a word": _perplexity(head.word_perplexity),
            "Bits a byte": decimal(head.bits_per_byte, 3),
        }
        for source, measured in metrics.items()
        for name, head in measured.heads.items()
    ]
    return Table("heads", title, rows)


def position_table(title: str, positions: Mapping[str, PositionLoss]) -> Table:
    """A row a head: nats a token at the first, the middle and the last position, and at all but the last."""
    rows = []
    for name, found in positions.items():
        last = len(found.loss) - 1
        places = {
            "First": found.loss[0],
            "Middle": found.loss[last // 2],
            "Last": found.loss[last],
            "All but the last": found.mean(slice(0, last)),
        }
        rows.append({"Head": name} | {place: decimal(loss) for place, loss in places.items()})
    return Table("positions", title, rows)


def _perplexity(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if value >= 1e5 else f"{value:.2f}"


MODEL_FOLDER = "model"


@dataclass(frozen=True)
class LanguageEvaluation:
    """Quality of a language model on some text.

    Attributes:
        run_id: The run.
        label: The model's name for tables; that of a leaking one says so.
        source: The split, or the file.
        fingerprint: Of the text.
        metrics: What was measured now.
        recorded: What the run's record says of the same split, cut in the same way, if it has it.
        precision: Precision of the matrix products.
        lossless: Whether the tokenizer gives the text back.
        positions: Loss by position in a window of every head, if it was asked for.
    """

    run_id: str
    label: str
    source: str
    fingerprint: str
    metrics: LanguageMetricsRecord
    recorded: LanguageMetricsRecord | None
    precision: str
    lossless: bool
    positions: Mapping[str, PositionLoss] | None = None

    def shown(self) -> CommandResult:
        """Figures of every head, and what else was asked for."""
        metrics = self.metrics
        cut = "blocks" if metrics.stride == metrics.context else f"windows with stride {metrics.stride}"
        lines = [
            f"{metrics.tokens:,} tokens, {metrics.words:,} words, {metrics.bytes:,} bytes; {cut} of {metrics.context} "
            f"tokens, computed in {self.precision}"
        ]
        if not self.lossless:
            lines.append("the tokenizer loses part of a text: there is no figure by word or byte")
        if self.recorded is not None:
            lines.append(f"loss of the final head in the record: {self.recorded.final.loss:.4f}")
        parts: list[Table | list[str]] = [head_table(f"{self.label}: {self.run_id}", {self.source: metrics})]
        if self.positions is not None:
            parts.append(position_table(f"{self.label}: loss by position", self.positions))
            lines.append("every position: --json")
        return CommandResult(self.plain(), [*parts, lines])

    def plain(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        positions = self.positions
        return {
            **vars(self),
            "metrics": self.metrics.model_dump(mode="json"),
            "recorded": None if self.recorded is None else self.recorded.model_dump(mode="json"),
            "positions": None if positions is None else {name: loss.plain() for name, loss in positions.items()},
        }


def evaluate_language_run(
    run: Path,
    *,
    split: str | None = None,
    data: Path | None = None,
    stride: int | None = None,
    data_root: Path | None = None,
    cache_dir: Path | None = None,
    precision: str | None = None,
    by_position: bool = False,
) -> LanguageEvaluation:
    """Evaluates every head of a run's language model.

    Args:
        run: The run folder.
        split: A split of the run's corpus; none takes the last that the run reports, usually ``test``.
        data: A text file instead.
        stride: Tokens from one window to the next; none gives blocks of the run's context.
        data_root: Local copies of public data.
        cache_dir: Cache of tokenised text.
        precision: Precision to compute in; none takes the run's.
        by_position: Also give the loss by position in a window.

    Raises:
        CheckpointError: If the run is not finished or damaged.
        ConfigurationError: If there is no such split, split and file are both named, or the stride cannot be.
        DataError: If the text cannot be used, or is not that of the record any more.
    """
    record = read_language_record(run)
    config = LanguageDataConfig.parse(record.config["data"], source="record")
    if split is not None and data is not None:
        raise ConfigurationError(f"both the split '{split}' and the file '{data}' are given; give one of the two")
    if data is None:
        text = own_split(record, config, split or record.data.reported_splits[-1], data_root)
    else:
        text = RunningText(str(data), read_text_file(data))
    computed = precision or record.environment.precision
    check_precision(computed)
    tokenizer = read_language_tokenizer(run / MODEL_FOLDER)
    lossless = is_lossless(tokenizer)
    model = load_language_model(sealed_model(run)).to(default_device())
    encoded = encode_for(text, config, tokenizer, cache_dir)
    heads = measure_heads(
        model,
        encoded,
        context=config.context,
        stride=stride,
        packed=config.mode != LINES,
        precision=computed,
        by_position=by_position,
    )
    metrics = metrics_record(heads, context=config.context, stride=stride, lossless=lossless)
    positions = {name: head.positions for name, head in heads.items() if head.positions is not None}
    recorded = record.metrics.get(text.name) if data is None else None
    return LanguageEvaluation(
        run_id=record.run_id,
        label=record.label,
        source=text.name,
        fingerprint=text.fingerprint,
        metrics=metrics,
        recorded=recorded if recorded is not None and recorded.stride == metrics.stride else None,
        precision=computed,
        lossless=lossless,
        positions=positions or None,
    )


def own_split(record: LanguageRunRecord, config: LanguageDataConfig, name: str, data_root: Path | None) -> RunningText:
    """Returns a split of a run's own data, as it was recorded.

    Raises:
        ConfigurationError: If the run has no such split.
        DataError: If the data cannot be had, or have changed.
    """
    require_split(record, name)
    found = load_language_dataset(config, data_root, [name]).splits[name]
    recorded = record.data.splits[name].fingerprint
    if found.fingerprint != recorded:
        raise DataError(
            f"split '{name}' of '{config.name}' is not what the run was recorded on (fingerprint {found.fingerprint}, "
            f"recorded {recorded}): the text has changed; restore it, or evaluate a file with --data FILE"
        )
    return found
