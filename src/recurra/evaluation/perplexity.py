"""Loss and perplexity of running text, token by token, by position, by head, and with tokens that stop early."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_outputs import CausalLMOutput

from recurra.core.errors import ConfigurationError, RunError
from recurra.core.record import FINAL_HEAD, HeadRecord, LanguageMetricsRecord
from recurra.data.configuration import LINES, LanguageDataConfig
from recurra.data.language.tokenization import EncodedText
from recurra.models.cache import RecurraCache
from recurra.models.exits.rules import CONFIDENCE, ExitMeasure, ExitRule, every_row, threshold_rule
from recurra.models.exits.thresholds import CalibratedExits, candidate_thresholds
from recurra.models.inference import autocast
from recurra.models.language_modeling import RecurraForCausalLM


@dataclass(frozen=True)
class Window:
    """A piece of a text whose tokens are predicted, from ``scored`` on scored; the token before it is read first."""

    text: int
    start: int
    scored: int
    end: int

    @property
    def tokens(self) -> int:
        """Tokens that are read."""
        return self.end - self.start


def scoring_windows(lengths: Sequence[int], context: int, stride: int | None = None) -> Iterator[Window]:
    """Yields windows over texts; a token is scored in the first window that holds it, where it has the most context.

    A stride of ``context`` tokens from one window to the next, the default, gives blocks that do not overlap.
    """
    if context < 1:
        raise ConfigurationError(f"context {context} is impossible; allowed: from 1 token")
    step = context if stride is None else stride
    if not 1 <= step <= context:
        raise ConfigurationError(f"stride {step} is impossible; allowed: 1 to the context, {context}")
    for text, length in enumerate(lengths):
        start = scored = 0
        while scored < length:
            end = min(start + context, length)
            yield Window(text, start, scored, end)
            start, scored = start + step, end


@dataclass(frozen=True)
class PositionLoss:
    """Mean loss at each position of a window.

    The loss of an honest model falls with the position, because it has more to read. A model that reads ahead fails
    where nothing is ahead: at the last position, whose token is not in the window.
    """

    loss: tuple[float | None, ...]
    tokens: tuple[int, ...]

    def mean(self, positions: slice) -> float | None:
        """Mean nats per token over some positions, each token counted once."""
        losses = [
            (nats, count) for nats, count in zip(self.loss[positions], self.tokens[positions], strict=True) if count
        ]
        total = sum(count for _, count in losses)
        return sum((nats or 0.0) * count for nats, count in losses) / total if total else None

    def plain(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return {"loss": list(self.loss), "tokens": list(self.tokens)}


def loss_by_position(nats: npt.NDArray[np.float64], positions: npt.NDArray[np.int64], context: int) -> PositionLoss:
    """Averages nats over the tokens predicted at each position."""
    tokens = np.bincount(positions, minlength=context)
    sums = np.bincount(positions, weights=nats, minlength=context)
    return PositionLoss(
        tuple(float(total / count) if count else None for total, count in zip(sums, tokens, strict=True)),
        tuple(map(int, tokens)),
    )


def head_names(config: Any) -> list[str]:
    """Names of a model's heads: ``exit-N`` after recurrence N, the final one last."""
    return [*(f"exit-{number}" for number in getattr(config, "exits", ())), FINAL_HEAD]


# Positions whose logits are in memory at once for each head: 412 MB in FP32 for GPT-2's vocabulary.
BATCH_POSITIONS = 2048
# The loss needs a second copy of the logits, for this many positions at a time.
_CHUNK_POSITIONS = 256


@torch.inference_mode()
def score_texts(
    model: Any,
    texts: Sequence[npt.NDArray[np.integer[Any]]],
    *,
    first_read: int,
    context: int,
    stride: int | None = None,
    batch_positions: int = BATCH_POSITIONS,
    precision: str = "fp32",
    exits: bool = False,
) -> dict[str, npt.NDArray[np.float64]]:
    """Nats of each token of all texts, ``(tokens of all texts,)``, by head: ``final``, and with ``exits`` every exit.

    No text reads another one. The first token is scored too; ``first_read``, end-of-text, is read before it.
    """
    _check_fits(model, texts, first_read, context)
    windows = list(scoring_windows([len(text) for text in texts], context, stride))
    text_starts = np.concatenate([[0], np.cumsum([len(text) for text in texts], dtype=np.int64)])
    names = head_names(model.config) if exits else [FINAL_HEAD]
    heads = {name: np.zeros(int(text_starts[-1])) for name in names}
    was_training = model.training
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    parameters = inspect.signature(model.forward).parameters
    options = {name: value for name, value in (("use_cache", False), ("output_exits", exits)) if name in parameters}
    model.eval()
    try:
        with autocast(precision, device):
            for batch in _batches(windows, batch_positions):
                inputs, targets = _assemble(batch, texts, first_read)
                # A causal model reads nothing to the right of a window, so the mask only saves work.
                mask = {"attention_mask": (targets != -1).to(device)} if (targets == -1).any() else {}
                num_positions = inputs.shape[1] - min(window.scored - window.start for window in batch)
                last = {"logits_to_keep": num_positions} if "logits_to_keep" in parameters else {}
                output = model(input_ids=inputs.to(device), **mask, **last, **options)
                head_outputs = [*((getattr(output, "exit_logits", None) or ()) if exits else ()), output.logits]
                for name, logits in zip(heads, head_outputs, strict=True):
                    nats = _nats(logits[:, -num_positions:], targets[:, -num_positions:].to(device))
                    for row, window in enumerate(batch):
                        start, skipped = text_starts[window.text], window.start + inputs.shape[1] - num_positions
                        piece = nats[row, window.scored - skipped : window.end - skipped]
                        heads[name][start + window.scored : start + window.end] = piece
                # Otherwise these logits would stay in memory while the next batch computes its own.
                del output, head_outputs, logits
    finally:
        model.train(was_training)
    for name, nats in heads.items():
        if np.isnan(nats).any():
            raise RunError(f"the model's logits ({name}) are not numbers; check its weights, or use precision=fp32")
    return heads


def _check_fits(model: Any, texts: Sequence[npt.NDArray[np.integer[Any]]], first_read: int, context: int) -> None:
    limit = getattr(model.config, "max_position_embeddings", None)
    if limit and context > limit:
        raise ConfigurationError(f"context {context} is more than the model can read; allowed: 1 to {limit} tokens")
    largest = max([first_read, *(int(text.max()) for text in texts if len(text))])
    if largest >= model.config.vocab_size:
        raise ConfigurationError(
            f"token {largest} is unknown to the model, which has {model.config.vocab_size} tokens; "
            "the tokenizer does not fit it: take the one that the model was trained with"
        )


def _batches(windows: Sequence[Window], positions: int) -> Iterator[list[Window]]:
    """Batches of windows of similar length, the longest first."""
    by_length = sorted(windows, key=lambda window: -window.tokens)
    first = 0
    while first < len(by_length):
        rows = max(1, positions // by_length[first].tokens)
        yield by_length[first : first + rows]
        first += rows


def _assemble(
    batch: Sequence[Window], texts: Sequence[npt.NDArray[np.integer[Any]]], first_read: int
) -> tuple[Tensor, Tensor]:
    """Input and target tokens, ``(rows, tokens)`` each; to the right of a window the target is -1."""
    width = max(window.tokens for window in batch)
    inputs = np.full((len(batch), width), first_read, dtype=np.int64)
    targets = np.full((len(batch), width), -1, dtype=np.int64)
    for row, window in enumerate(batch):
        text = texts[window.text]
        targets[row, : window.tokens] = text[window.start : window.end]
        inputs[row, 1 : window.tokens] = text[window.start : window.end - 1]
        if window.start:
            inputs[row, 0] = text[window.start - 1]
    return torch.from_numpy(inputs), torch.from_numpy(targets)


def _nats(logits: Tensor, targets: Tensor) -> npt.NDArray[np.float64]:
    """Cross-entropy of each position, ``(rows, tokens)``, 0 where the target is -1."""
    flat, flat_targets = logits.flatten(0, 1), targets.flatten()
    parts = [
        functional.cross_entropy(
            part.to(torch.promote_types(part.dtype, torch.float32)), part_targets, reduction="none", ignore_index=-1
        )
        for part, part_targets in zip(flat.split(_CHUNK_POSITIONS), flat_targets.split(_CHUNK_POSITIONS), strict=True)
    ]
    return torch.cat(parts).double().cpu().numpy().reshape(targets.shape)


def measure_text(
    model: Any,
    encoded: EncodedText,
    data: LanguageDataConfig,
    *,
    stride: int | None = None,
    lossless: bool,
    precision: str,
    batch_positions: int = BATCH_POSITIONS,
    by_position: bool = False,
) -> tuple[LanguageMetricsRecord, dict[str, PositionLoss]]:
    """Measures every head of a causal language model on a text, each token once, the first one after end-of-text.

    A text may read the texts before it; in mode ``lines`` every text starts without context.
    Perplexity by word and bits by byte compare tokenizers, but only if these are ``lossless``.

    Returns:
        The figures, and with ``by_position`` the loss of each head by position.

    Raises:
        ConfigurationError: For an impossible context or stride.
        RunError: If an output of the model is not a number.
    """
    lines, context = data.mode == LINES, data.context
    texts = [encoded.text(index) for index in range(len(encoded))] if lines else [encoded.joined]
    scores = score_texts(
        model,
        texts,
        first_read=encoded.end_of_text,
        context=context,
        stride=stride,
        batch_positions=batch_positions,
        precision=precision,
        exits=True,
    )
    lengths = [len(text) for text in texts]
    tokens, heads = sum(lengths), dict[str, HeadRecord]()
    for name, token_nats in scores.items():
        nats = math.fsum(token_nats.tolist())
        heads[name] = HeadRecord(
            loss=nats / tokens,
            token_perplexity=_exp(nats / tokens),
            word_perplexity=_exp(nats / encoded.words) if lossless else None,
            bits_per_byte=nats / math.log(2) / encoded.num_bytes if lossless else None,
        )
    metrics = LanguageMetricsRecord(
        tokens=tokens,
        words=encoded.words,
        bytes=encoded.num_bytes,
        context=context,
        stride=context if stride is None else stride,
        heads=heads,
    )
    if not by_position:
        return metrics, {}
    windows = scoring_windows(lengths, context, stride)
    positions = np.concatenate([np.arange(window.scored - window.start, window.tokens) for window in windows])
    return metrics, {name: loss_by_position(nats, positions, context) for name, nats in scores.items()}


def _exp(value: float) -> float | None:
    return math.exp(value) if value < 700 else None


# Most logits in memory at once: 412 MB in FP32.
_LOGITS = BATCH_POSITIONS * 50_257


@dataclass(frozen=True)
class ExitScores:
    """Loss of each token of a split under an exit rule, and tokens by the recurrences they took."""

    nats: npt.NDArray[np.float64]
    exit_counts: Counter[int]

    @property
    def loss(self) -> float:
        """Mean nats per token."""
        return float(self.nats.mean())

    @property
    def mean_recurrences(self) -> float:
        """Mean recurrences per token."""
        return sum(number * count for number, count in self.exit_counts.items()) / self.exit_counts.total()


def score_token_exits(
    model: RecurraForCausalLM,
    texts: Sequence[npt.NDArray[np.integer[Any]]],
    rule: ExitRule | None,
    *,
    first_read: int,
    context: int,
) -> ExitScores:
    """Scores texts by decoding them token by token with the cache; each token is scored by the head where it stops.

    Where a token has skipped recurrences, later tokens read the states that `recurra.models.cache.RecurraCache` fills
    in, so the loss is that of generating these texts with this rule. Every token is decoded: there is no prompt.
    """
    model.check_generates()
    if rule is not None:
        rule.check(model.config, model.config.vocab_size)
    decoder = _Decoder(model, rule)
    positions = max(BATCH_POSITIONS, _LOGITS // model.config.vocab_size)
    scores = score_texts(decoder, texts, first_read=first_read, context=context, batch_positions=positions)
    return ExitScores(scores[FINAL_HEAD], decoder.exit_counts)


class _Decoder(nn.Module):
    """Called like a causal language model; counts the recurrences after which tokens stopped."""

    def __init__(self, model: RecurraForCausalLM, rule: ExitRule | None) -> None:
        super().__init__()
        # `score_texts` gives the model back in the mode of its caller, which is this module.
        self.training = model.training
        self.model = model
        self.config = model.config
        self.rule = rule
        self.exit_counts: Counter[int] = Counter()

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> CausalLMOutput:
        cache = RecurraCache(self.config)
        present = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        depth = self.config.num_recurrences if self.rule is None else self.rule.always_after
        logits = []
        for index, tokens in enumerate(input_ids.split(1, dim=1)):
            output = self.model(tokens, present[:, : index + 1], past_key_values=cache, exit_rule=self.rule)
            logits.append(output.logits)
            is_real = present[:, index].bool()
            exited = torch.full_like(tokens[:, 0], depth or 0) if output.exited_after is None else output.exited_after
            self.exit_counts.update(exited[is_real].tolist())
        return CausalLMOutput(logits=torch.cat(logits, dim=1))


# Number of thresholds to try; the model is scored once with each.
_CANDIDATES = 16


def calibrate_language(
    model: RecurraForCausalLM,
    texts: Sequence[npt.NDArray[np.integer[Any]]],
    bound: float,
    *,
    first_read: int,
    context: int,
    kind: str = CONFIDENCE,
) -> CalibratedExits:
    """Chooses the threshold with the fewest recurrences whose loss grows by at most the share ``bound``.

    The loss is that of `score_token_exits`, including filled-in states. It need not grow with the number of tokens that
    stop early: tokens that go deeper read the states filled in for others. So every candidate threshold is measured.
    """
    rule_kind = threshold_rule(kind)
    if not bound >= 0:
        raise ConfigurationError(f"loss bound is {bound:g}; allowed: 0 or above, the share by which it may grow")

    def score(rule: ExitRule) -> ExitScores:
        return score_token_exits(model, texts, rule, first_read=first_read, context=context)

    observer = _NeverStops(rule_kind.measure)
    full_scores = score(observer)
    most_loss = full_scores.loss * (1 + bound)
    best = CalibratedExits(None, full_scores.loss, full_scores.loss, full_scores.exit_counts)
    for threshold in candidate_thresholds(np.concatenate(observer.measured), rule_kind.measure, _CANDIDATES):
        rule = rule_kind.make(threshold=threshold)
        scores = score(rule)
        if scores.loss <= most_loss and scores.mean_recurrences < best.mean_recurrences:
            best = CalibratedExits(rule, scores.loss, full_scores.loss, scores.exit_counts)
    return best


@dataclass(frozen=True)
class _NeverStops(ExitRule):
    """Records the measure of every exit's logits and never stops a token."""

    measure: ExitMeasure
    measured: list[npt.NDArray[np.float64]] = field(default_factory=list)
    name: ClassVar[str] = "never"

    def decide(self, logits: Any, recurrence: int, *, counted: Any = None, rows: Any = None) -> Any:  # noqa: ARG002
        counted_logits = logits if counted is None else logits[counted]
        self.measured.append(self.measure.of(counted_logits).double().cpu().numpy().flatten())
        return ~every_row(logits)
