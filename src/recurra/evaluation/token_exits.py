"""Loss of a language model whose tokens stop early or whose cache is shared; thresholds for that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutput

from recurra.core.errors import ConfigurationError
from recurra.evaluation.scoring import BATCH_POSITIONS, FINAL, score_texts
from recurra.models.cache import PER_LOOP, SHARED, growth_bytes_per_token
from recurra.models.exits.loop import Stop, exit_early
from recurra.models.exits.measures import CONFIDENCE, every_row
from recurra.models.exits.registry import threshold_rule
from recurra.models.exits.rule import Decision, ExitRule
from recurra.models.exits.rules import FixedExit
from recurra.models.exits.thresholds import CalibratedExits, candidate_thresholds
from recurra.models.language_modeling import RecurraForCausalLM
from recurra.models.rows.simulated import SimulatedRows

# Given the recurrences computed and a head's logits ``(tokens, vocabulary)`` of the tokens that have not stopped.
Observe = Callable[[int, Tensor], object]


@dataclass(frozen=True)
class ExitScores:
    """What a split costs under a rule.

    Attributes:
        nats: Of each token, ``(tokens,)``.
        exit_counts: Tokens by the recurrences after which they stopped.
    """

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
    serving: int | None = None,
    exact_states: bool = False,
    batch_positions: int = BATCH_POSITIONS,
    observe: Observe | None = None,
) -> ExitScores:
    """Scores texts as decoding them would, each token by the head at which it stops.

    Where a token has skipped recurrences, later ones read what `recurra.models.cache.RecurraCache` puts there, so the
    loss is that of generation with this rule, were the texts its own. Every token is taken to be decoded: there is no
    prompt. All recurrences are computed to find out; this measures loss, not time.

    Args:
        model: Ours; not one that leaks.
        texts: See `recurra.evaluation.scoring.score_texts`; read in blocks.
        rule: Decides for each token; none stops none early.
        first_read: See there.
        context: See there.
        serving: Recurrence whose keys and values serve the later ones; none means each its own.
        exact_states: Whether later tokens read what skipped recurrences would have kept, had they been computed: what
            the rule alone costs, without what is filled in.
        batch_positions: See there.
        observe: Shown the logits of every head that is read, padding left out.

    Raises:
        ConfigurationError: If the model leaks, or the rule or ``serving`` does not fit it.
    """
    if model.config.leaks:
        raise ConfigurationError("a leaking model decodes nothing: it reads tokens that are not there yet")
    rule = FixedExit(model.config.num_recurrences) if rule is None else rule
    rule.check(model.config, model.config.vocab_size)
    decoder = _SimulatedDecoder(model, rule, serving, exact_states, observe)
    scores = score_texts(decoder, texts, first_read=first_read, context=context, batch_positions=batch_positions)
    return ExitScores(scores[FINAL], decoder.exit_counts)


class _SimulatedDecoder(nn.Module):
    """Called like a causal language model; counts the recurrences after which tokens stopped."""

    def __init__(
        self,
        model: RecurraForCausalLM,
        rule: ExitRule,
        serving: int | None,
        exact_states: bool,
        observe: Observe | None,
    ) -> None:
        super().__init__()
        self.model = model
        self.config = model.config
        self.rule = rule
        self.serving = serving
        self.exact_states = exact_states
        self.observe = observe
        self.exit_counts: Counter[int] = Counter()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, logits_to_keep: int = 0
    ) -> CausalLMOutput:
        body, config = self.model.model, self.config
        layout = SimulatedRows.over(
            config, body.rotary, input_ids, attention_mask, serving=self.serving, exact_states=self.exact_states
        )
        exited = exit_early(
            body.core,
            body.prelude(body.embeddings(input_ids, None, layout), layout),
            layout,
            self.rule,
            self._read_head,
            rows=input_ids.numel(),
            stops=config.exits,
            last=self.rule.last(config),
            present=layout.remaining,
        )
        depths = exited.exited_after.view_as(input_ids)[:, -logits_to_keep:]
        if attention_mask is not None:
            depths = depths[attention_mask[:, -logits_to_keep:].bool()]
        self.exit_counts.update(depths.flatten().tolist())
        return CausalLMOutput(logits=exited.logits.view(*input_ids.shape, -1)[:, -logits_to_keep:])

    def _read_head(self, stop: Stop, remaining: Tensor) -> Tensor:
        body = self.model.model
        states = body.coda(stop.states, stop.layout) if stop.final else stop.states
        logits = self.model.head_logits(body.final_norm(states).flatten(0, 1)[remaining], stop.recurrence)
        if self.observe is not None:
            self.observe(stop.recurrence, logits)
        return logits


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
    batch_positions: int = BATCH_POSITIONS,
) -> CalibratedExits:
    """Chooses the threshold that lets most tokens stop early while the loss grows by at most a share ``bound``.

    The loss is that of decoding, filled-in states included (`recurra.evaluation.token_exits`). It need not grow with
    the tokens that stop: where some go deep and others do not, the deep ones read what was filled in. So every
    threshold of a few is measured, and the one with the fewest recurrences is taken.

    Args:
        model: Ours, with exits.
        texts: Validation texts, see `recurra.evaluation.scoring.score_texts`, and so the next.
        bound: Largest growth of the loss as a share of the full model's, for example 0.01.
        first_read: See there.
        context: See there.
        kind: Name of a rule with a threshold: ``confidence`` or ``entropy``.
        batch_positions: See there.

    Raises:
        ConfigurationError: For an impossible bound or kind, or a model without exits.
    """
    chosen = threshold_rule(kind)
    if not bound >= 0:
        raise ConfigurationError(f"loss bound is {bound:g}; allowed: 0 or above, the share by which it may grow")
    measured: list[Tensor] = []

    def measure(recurrence: int, logits: Tensor) -> None:
        if recurrence < model.config.num_recurrences:
            measured.append(chosen.measure.of(logits).cpu())

    def score(rule: ExitRule, observe: Observe | None = None) -> ExitScores:
        return score_token_exits(
            model,
            texts,
            rule,
            first_read=first_read,
            context=context,
            batch_positions=batch_positions,
            observe=observe,
        )

    full = score(_NeverStops(), measure)
    allowed = full.loss * (1 + bound)
    best = CalibratedExits(None, full.loss, full.loss, full.exit_counts)
    for threshold in candidate_thresholds(torch.cat(measured).numpy(), chosen.measure, _CANDIDATES):
        rule = chosen.make(threshold=threshold)
        scores = score(rule)
        if scores.loss <= allowed and scores.mean_recurrences < best.mean_recurrences:
            best = CalibratedExits(rule, scores.loss, full.loss, scores.exit_counts)
    return best


@dataclass(frozen=True)
class _NeverStops(ExitRule):
    """Has every exit's head read, and stops nothing there."""

    name: ClassVar[str] = "never"

    def decide(self, logits: Any, recurrence: int, *, counted: Any = None, state: Any = None) -> Decision:  # noqa: ARG002
        return Decision(~every_row(logits))

    def describe(self) -> str:
        return "never before the last recurrence"


@dataclass(frozen=True)
class PolicyCost:
    """A cache policy of a model on a text.

    Attributes:
        policy: ``per-loop`` or ``shared``.
        serving: Recurrence whose keys and values serve the later ones; none for ``per-loop``.
        bytes_per_token: What the cache of one row grows by with a token.
        loss: Nats a token, as decoding with this cache has them.
    """

    policy: str
    serving: int | None
    bytes_per_token: int
    loss: float

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def compare_cache_policies(
    model: RecurraForCausalLM,
    texts: Sequence[npt.NDArray[np.integer[Any]]],
    *,
    first_read: int,
    context: int,
    dtype: torch.dtype = torch.float32,
    batch_positions: int = BATCH_POSITIONS,
) -> list[PolicyCost]:
    """Scores texts under every policy that the model allows, the exact one first.

    Args:
        model: Ours; not one that leaks.
        texts: See `recurra.evaluation.scoring.score_texts`, and so the next two.
        first_read: See there.
        context: See there.
        dtype: Type of the keys and values whose bytes are counted.
        batch_positions: See there.

    Raises:
        ConfigurationError: If the model leaks.
    """
    found = []
    for serving in (None, *range(1, model.config.num_recurrences)):
        scores = score_token_exits(
            model, texts, None, first_read=first_read, context=context, serving=serving, batch_positions=batch_positions
        )
        memory = growth_bytes_per_token(model.config, dtype, serving=serving)
        found.append(PolicyCost(PER_LOOP if serving is None else SHARED, serving, memory, scores.loss))
    return found
