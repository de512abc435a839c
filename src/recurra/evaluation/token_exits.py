"""Loss of a language model whose tokens stop early, and choice of thresholds for stopping."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutput

from recurra.core.errors import ConfigurationError
from recurra.core.record import FINAL_HEAD
from recurra.evaluation.perplexity import BATCH_POSITIONS, score_texts
from recurra.models.cache import RecurraCache
from recurra.models.exits.rules import CONFIDENCE, ExitMeasure, ExitRule, every_row, threshold_rule
from recurra.models.exits.thresholds import CalibratedExits, candidate_thresholds
from recurra.models.language_modeling import RecurraForCausalLM

# Most logits in memory at once: 412 MB in FP32.
_LOGITS = 2048 * 50_257


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
    if model.config.leaks:
        raise ConfigurationError("a leaking model cannot decode: it reads tokens that do not exist yet")
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

    The loss is that of decoding, including filled-in states (`recurra.evaluation.token_exits`). It need not grow with
    the number of tokens that stop early: tokens that go deeper read the states filled in for others. So every
    candidate threshold is measured.
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
