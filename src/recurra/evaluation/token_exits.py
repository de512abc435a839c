"""Loss of a language model whose tokens stop early; thresholds for that."""

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

# Logits that are held at once: 412 MB in FP32.
_LOGITS = 2048 * 50_257


@dataclass(frozen=True)
class ExitScores:
    """What a split costs under a rule."""

    nats: npt.NDArray[np.float64]
    exit_counts: Counter[int]

    @property
    def loss(self) -> float:
        """Nats a token."""
        return float(self.nats.mean())

    @property
    def mean_recurrences(self) -> float:
        """Recurrences a token."""
        return sum(number * count for number, count in self.exit_counts.items()) / self.exit_counts.total()


def score_token_exits(
    model: RecurraForCausalLM,
    texts: Sequence[npt.NDArray[np.integer[Any]]],
    rule: ExitRule | None,
    *,
    first_read: int,
    context: int,
) -> ExitScores:
    """Scores texts by decoding them: token by token through the cache, each by the head at which it stops.

    Where a token has skipped recurrences, later ones read what `recurra.models.cache.RecurraCache` puts there, so the
    loss is that of generation with this rule, were the texts its own. Every token is decoded: there is no prompt.
    """
    if model.config.leaks:
        raise ConfigurationError("a leaking model decodes nothing: it reads tokens that are not there yet")
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
            real = present[:, index].bool()
            exited = torch.full_like(tokens[:, 0], depth or 0) if output.exited_after is None else output.exited_after
            self.exit_counts.update(exited[real].tolist())
        return CausalLMOutput(logits=torch.cat(logits, dim=1))


# Thresholds that are tried: the model is scored anew with each.
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
    """Chooses the threshold that lets most tokens stop early while the loss grows by at most a share ``bound``.

    The loss is that of decoding, filled-in states included (`recurra.evaluation.token_exits`). It need not grow with
    the tokens that stop: where some go deep and others do not, the deep ones read what was filled in. So every
    threshold of a few is measured, and the one with the fewest recurrences is taken.
    """
    chosen = threshold_rule(kind)
    if not bound >= 0:
        raise ConfigurationError(f"loss bound is {bound:g}; allowed: 0 or above, the share by which it may grow")

    def score(rule: ExitRule) -> ExitScores:
        return score_token_exits(model, texts, rule, first_read=first_read, context=context)

    observed = _NeverStops(chosen.measure)
    full = score(observed)
    allowed = full.loss * (1 + bound)
    best = CalibratedExits(None, full.loss, full.loss, full.exit_counts)
    for threshold in candidate_thresholds(np.concatenate(observed.measured), chosen.measure, _CANDIDATES):
        rule = chosen.make(threshold=threshold)
        scores = score(rule)
        if scores.loss <= allowed and scores.mean_recurrences < best.mean_recurrences:
            best = CalibratedExits(rule, scores.loss, full.loss, scores.exit_counts)
    return best


@dataclass(frozen=True)
class _NeverStops(ExitRule):
    """Measures what every exit's head says, and stops nothing there."""

    measure: ExitMeasure
    measured: list[npt.NDArray[np.float64]] = field(default_factory=list)
    name: ClassVar[str] = "never"

    def decide(self, logits: Any, recurrence: int, *, counted: Any = None, rows: Any = None) -> Any:  # noqa: ARG002
        real = logits if counted is None else logits[counted]
        self.measured.append(self.measure.of(real).double().cpu().numpy().flatten())
        return ~every_row(logits)

    def describe(self) -> str:
        return "never before the last recurrence"
