"""A language model whose tokens leave early, or whose cache is shared, as something that can be scored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutput

from recurra.core.errors import ConfigurationError
from recurra.evaluation.scoring import BATCH_POSITIONS, FINAL, score_texts
from recurra.models.borrowed_layout import Borrowed
from recurra.models.exit_rules import ExitRule
from recurra.models.exits import leaves
from recurra.models.language_modeling import RecurraForCausalLM


@dataclass(frozen=True)
class ExitScores:
    """What a split costs under a rule.

    Attributes:
        nats: Of each token, ``(tokens,)``.
        taken: Tokens by the recurrences that they took.
    """

    nats: npt.NDArray[np.float64]
    taken: Counter[int]

    @property
    def loss(self) -> float:
        """Nats a token."""
        return float(self.nats.mean())

    @property
    def mean_recurrences(self) -> float:
        """Recurrences a token."""
        return sum(number * count for number, count in self.taken.items()) / self.taken.total()


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
) -> ExitScores:
    """Scores texts as decoding them would, each token by the head at which it leaves.

    Where a token has skipped recurrences, later ones read what `recurra.models.cache.RecurraCache` puts there, so the
    loss is that of generation with this rule, were the texts its own. Every token is taken to be decoded: there is no
    prompt. All recurrences are computed to find out; this measures loss, not time.

    Args:
        model: Ours; not one that leaks.
        texts: See `recurra.evaluation.scoring.score_texts`; read in blocks.
        rule: Decides for each token; none lets none leave.
        first_read: See there.
        context: See there.
        serving: Recurrence whose keys and values serve the later ones; none means each its own.
        exact_states: Whether later tokens read what skipped recurrences would have kept, had they been computed: what
            the rule alone costs, without what is filled in.
        batch_positions: See there.

    Raises:
        ConfigurationError: If the model leaks, or the rule or ``serving`` does not fit it.
    """
    reader = _Reader(model, rule, serving, exact_states)
    scores = score_texts(reader, texts, first_read=first_read, context=context, batch_positions=batch_positions)
    return ExitScores(scores[FINAL], reader.taken)


class _Reader(nn.Module):
    """Called like a causal language model; keeps count of the recurrences that tokens took."""

    def __init__(
        self, model: RecurraForCausalLM, rule: ExitRule | None, serving: int | None, exact_states: bool
    ) -> None:
        super().__init__()
        if model.config.leaks:
            raise ConfigurationError("a leaking model decodes nothing: it reads tokens that are not there yet")
        if rule is not None:
            rule.check(model.config, model.config.vocab_size)
        self.model = model
        self.config = model.config
        self.rule = rule
        self.serving = serving
        self.exact_states = exact_states
        self.taken: Counter[int] = Counter()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, logits_to_keep: int = 0
    ) -> CausalLMOutput:
        body, config = self.model.model, self.config
        layout = Borrowed.over(config, body.rotary, input_ids, attention_mask, self.serving)
        states = body.prelude(body.embeddings(input_ids, None, layout), layout)
        there = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        kept = torch.zeros_like(there)
        kept[:, -logits_to_keep:] = True
        logits = torch.empty(0)
        first = states
        for done in range(1, config.num_recurrences + 1):
            now = body.core.step(states, first, done - 1, layout)
            states = now.where(~layout.left[:, :, None], states)
            final = done == config.num_recurrences
            if not final and (self.rule is None or done not in config.exits or not self.rule.asks(done)):
                continue
            told = states if not final else body.coda(states, layout)
            said = self.model.head_logits(body.final_norm(told)[there], done)
            leaving = (
                torch.ones(len(said), dtype=torch.bool) if final or self.rule is None else leaves(self.rule, said, done)
            )
            gone = torch.zeros_like(there)
            gone[there] = leaving
            if not logits.numel():
                logits = said.new_zeros(*input_ids.shape, config.vocab_size)
            logits[gone] = said[leaving]
            self.taken[done] += int((gone & kept).sum())
            there = there & ~gone
            if not self.exact_states:
                layout.left.logical_or_(gone)
            if not there.any():
                break
        return CausalLMOutput(logits=logits[:, -logits_to_keep:])
