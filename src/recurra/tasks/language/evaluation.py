"""Evaluates a finished run of a language model on a split of its corpus or on a text file, and its early exits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from recurra.core.errors import ConfigurationError, DataError
from recurra.core.exits_record import EarlyExitRecord
from recurra.core.record import LanguageMetricsRecord, LanguageRunRecord, read_language_record
from recurra.core.sealed import MODEL_NAME, sealed_model
from recurra.core.terminal import decimal
from recurra.data.configuration import LanguageDataConfig
from recurra.data.language.corpora import RunningText, load_language_dataset, read_text_file
from recurra.data.language.tokenization import encode_for, is_lossless, read_language_tokenizer
from recurra.deployment.generation import decoding
from recurra.evaluation.perplexity import PositionLoss, calibrate_language, measure_text, score_token_exits
from recurra.models.exits.rules import ExitRule, check_has_exits
from recurra.models.exits.thresholds import CalibratedExits
from recurra.models.inference import autocast, check_precision, default_device
from recurra.models.loading import load_language_model
from recurra.tasks.base import require_split
from recurra.tasks.exits import EXITS, FULL
from recurra.tasks.tables import CommandResult, Table

# Windows that are timed: a whole split takes minutes.
MOST_WINDOWS = 32


def windows(tokens: npt.NDArray[Any], context: int) -> list[torch.Tensor]:
    """Windows of a text, ``(context,)`` of token ids each, evenly spread; at most `MOST_WINDOWS`."""
    width = min(context, len(tokens))
    count = max(1, min(MOST_WINDOWS, len(tokens) // width))
    starts = np.linspace(0, len(tokens) - width, count).astype(np.int64)
    return [torch.from_numpy(tokens[start : start + width].astype(np.int64)) for start in starts]


def forward_pass(model: Any, precision: str) -> Callable[[torch.Tensor], None]:
    """A forward pass over a batch ``(batch, tokens)``, all logits computed."""
    device = model.device

    @torch.inference_mode()
    def forward(ids: torch.Tensor) -> None:
        with autocast(precision, device):
            model(input_ids=ids.to(device))

    return forward


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
    """A row a head: nats a token at the first, the middle and the last position, and at all but the last.

    With a stride most windows score only their last tokens: the first position is where these begin, as the title says.
    """
    rows, first = [], 0
    for name, losses in positions.items():
        first = next((index for index, count in enumerate(losses.tokens) if 2 * count > max(losses.tokens)), 0)
        last = len(losses.loss) - 1
        selected = {
            "First": losses.loss[first],
            "Middle": losses.loss[(first + last) // 2],
            "Last": losses.loss[last],
            "All but the last": losses.mean(slice(first, last)),
        }
        rows.append({"Head": name} | {heading: decimal(loss) for heading, loss in selected.items()})
    return Table("positions", f"{title}, from token {first + 1} of a window" if first else title, rows)


def _perplexity(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if value >= 1e5 else f"{value:.2f}"


def evaluate_language_run(
    run: Path,
    *,
    split: str | None = None,
    data: Path | None = None,
    stride: int | None = None,
    data_root: Path | None = None,
    precision: str | None = None,
    by_position: bool = False,
) -> CommandResult:
    """Evaluates every head of a run's language model.

    Args:
        split: A split of the run's corpus; none takes the last that the run reports, usually ``test``.
        stride: Tokens from one window to the next; none gives blocks of the run's context.
        precision: Precision to compute in; none takes the run's.

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
    precision = check_precision(precision or record.environment.precision)
    tokenizer = read_language_tokenizer(run / MODEL_NAME)
    lossless = is_lossless(tokenizer)
    model = load_language_model(sealed_model(run)).to(default_device())
    encoded = encode_for(text, config, tokenizer, None)
    metrics, positions = measure_text(
        model, encoded, config, stride=stride, lossless=lossless, precision=precision, by_position=by_position
    )
    recorded = record.metrics.get(text.name) if data is None else None
    # A record may be of another stride, or of a part of the split.
    if recorded is not None and (recorded.stride, recorded.tokens) != (metrics.stride, metrics.tokens):
        recorded = None
    layout = "blocks" if metrics.stride == metrics.context else f"windows with stride {metrics.stride}"
    lines = [
        f"{metrics.tokens:,} tokens, {metrics.words:,} words, {metrics.bytes:,} bytes; {layout} of {metrics.context} "
        f"tokens, computed in {precision}",
        *([] if lossless else ["the tokenizer loses part of a text: there is no figure by word or byte"]),
        *([] if recorded is None else [f"loss of the final head in the record: {recorded.final.loss:.4f}"]),
        *(["every position: --json"] if positions else []),
    ]
    tables = [head_table(f"{record.label}: {record.run_id}", {text.name: metrics})]
    tables += [position_table(f"{record.label}: loss by position", positions)] if positions else []
    plain = {
        "run_id": record.run_id,
        "label": record.label,
        "source": text.name,
        "fingerprint": text.fingerprint,
        "metrics": metrics.model_dump(mode="json"),
        "recorded": None if recorded is None else recorded.model_dump(mode="json"),
        "precision": precision,
        "lossless": lossless,
        "positions": {name: loss.plain() for name, loss in positions.items()} or None,
    }
    return CommandResult(plain, [*tables, lines])


def own_split(record: LanguageRunRecord, config: LanguageDataConfig, name: str, data_root: Path | None) -> RunningText:
    """Returns a split of a run's own data, as it was recorded.

    Raises:
        ConfigurationError: If the run has no such split.
        DataError: If the data cannot be had, or have changed.
    """
    require_split(record, name)
    text = load_language_dataset(config, data_root, [name]).splits[name]
    recorded = record.data.splits[name].fingerprint
    if text.fingerprint != recorded:
        raise DataError(
            f"split '{name}' of '{config.name}' is not what the run was recorded on (fingerprint {text.fingerprint}, "
            f"recorded {recorded}): the text has changed; restore it, or evaluate a file with --data FILE"
        )
    return text


# Tokens of a split that are scored: each threshold is a pass over them.
MOST_TOKENS = 16_384
PROMPT_TOKENS, DECODED_TOKENS = 16, 48
_BATCHES = 3


class LanguageSubject:
    """A language model with exits, and the beginnings of its validation text and of its last reported split.

    Raises:
        CheckpointError: If the run is not finished or damaged.
        ConfigurationError: If its model has no exits, or leaks.
    """

    unit = "Tokens"
    quality = "loss a token"
    timed = "decoding a row's tokens"

    def __init__(self, run: Path, data_root: Path | None) -> None:
        record = read_language_record(run)
        config = LanguageDataConfig.parse(record.config["data"], source="record")
        self.run_id = record.run_id
        self.chosen_on = record.data.selection_split
        self.model = load_language_model(sealed_model(run)).to(default_device())
        self.model.check_generates()
        check_has_exits(self.model.config)
        self.tokenizer = tokenizer = read_language_tokenizer(run / "model")
        self.split = record.data.reported_splits[-1]
        self._selection, self._reported = (
            encode_for(own_split(record, config, name, data_root), config, tokenizer, None).joined[:MOST_TOKENS]
            for name in (self.chosen_on, self.split)
        )
        self._end, self._context = int(tokenizer.eos_token_id), config.context
        self._reading: dict[str, Any] = {"first_read": self._end, "context": self._context}

    def choose(self, keep: float, kind: str) -> CalibratedExits:
        """Chooses a threshold with which the loss grows by a share ``keep`` at most."""
        return calibrate_language(self.model, [self._selection], keep, kind=kind, **self._reading)

    def judge(self, rule: ExitRule, label: str = "") -> EarlyExitRecord:
        """Judges on the reported split."""
        exits = score_token_exits(self.model, [self._reported], rule, **self._reading)
        taken = dict(sorted(exits.exit_counts.items()))
        return EarlyExitRecord(label=label or rule.describe(), loss=exits.loss, taken=taken, timed=[])

    @cached_property
    def full(self) -> float:
        """Loss of the full model on the reported split, in nats a token."""
        return float(score_token_exits(self.model, [self._reported], None, **self._reading).loss)

    def calls(self, rule: ExitRule) -> Mapping[str, Callable[[torch.Tensor], Any]]:
        """Decoding of a fixed number of tokens, as ``recurra generate`` does.

        Tokens are sampled, so that texts are as unsure as the model is: greedy decoding repeats itself and would exit
        earlier.
        """

        def decode(ids: torch.Tensor, **options: Any) -> None:
            torch.manual_seed(0)
            tokens = min(DECODED_TOKENS, self.model.config.max_position_embeddings - ids.shape[1])
            with decoding(self.model):
                self.model.generate(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    do_sample=True,
                    top_k=0,
                    min_new_tokens=tokens,
                    max_new_tokens=tokens,
                    pad_token_id=self._end,
                    **options,
                )

        return {FULL: decode, EXITS: lambda ids: decode(ids, exit_rule=rule)}

    def batches(self, batch_size: int) -> list[torch.Tensor]:
        """Prompts from the reported text, far apart."""
        text: npt.NDArray[np.int64] = self._reported.astype(np.int64)
        width = max(1, min(PROMPT_TOKENS, self._context // 2, len(text)))
        starts = np.linspace(0, len(text) - width, _BATCHES * batch_size).astype(np.int64)
        rows = torch.from_numpy(np.stack([text[start : start + width] for start in starts]))
        return list(rows.to(self.model.device).split(batch_size))
