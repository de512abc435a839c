"""What a report knows of language models beside what it knows of any model, and what they are judged by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recurra.core.exits_record import ExitsRecord
from recurra.core.language_record import FINAL_HEAD, LanguageEpochRecord, LanguageMetricsRecord
from recurra.tasks.estimates import Estimate
from recurra.tasks.measures import Measure
from recurra.tasks.summary import ModelSummary, TableSummary


@dataclass(frozen=True)
class HeadSummary:
    """One head on one split over seeds: the mean loss, and the perplexities and bits that belong to it.

    Perplexities are means of their logarithms over seeds, as losses are; ``sd``, ``low`` and ``high`` are the loss's
    (Student's t over seeds), none with one seed. ``losses`` are those of each seed, in the order of the model's seeds.
    """

    loss: float
    losses: tuple[float, ...]
    sd: float | None
    low: float | None
    high: float | None
    token_perplexity: float | None
    word_perplexity: float | None
    bits_per_byte: float | None

    @property
    def estimate(self) -> Estimate:
        """The loss with its interval."""
        basis = "none" if self.low is None else "seeds"
        return Estimate(self.loss, self.sd, self.low, self.high, self.losses, basis)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class LanguageModelSummary(ModelSummary):
    """A language model over its seeds.

    Attributes:
        scores: By split and head.
        leaks: Whether the causality audit failed for any seed; its label says so.
        reach_tokens: How far ahead a prediction reads, at most.
        verdict: What the audits say, in a few words.
        feed_forward: What a cycle is made of; none of a model without cycles.
        as_trained: The final head on the selection split in the kept epoch, cut in blocks as in training: there the
            last position of a block predicts nothing, because its token lies outside. An honest model scores the same
            with it; one that reads ahead can read all that is counted, and not the token that is left out.
        history: Epochs of each seed.
        exits: What early exit gave, of the seeds of which it was kept.
    """

    scores: dict[str, dict[str, HeadSummary]]
    leaks: bool
    reach_tokens: int | None
    verdict: str
    tokens_per_s: float
    steps: int
    feed_forward: str | None
    as_trained: HeadSummary
    history: list[list[LanguageEpochRecord]]
    exits: list[ExitsRecord]


@dataclass(frozen=True, kw_only=True)
class LanguageTable(TableSummary):
    """All models on one text, read in one way: ``protocol`` is how the text is cut, ``splits`` counts its parts."""

    models: Sequence[LanguageModelSummary]
    splits: dict[str, dict[str, int]]


def _loss(metrics: LanguageMetricsRecord) -> float:
    return metrics.final.loss


def _loss_of(model: LanguageModelSummary, split: str) -> Estimate | None:
    return model.scores[split][FINAL_HEAD].estimate if split in model.scores else None


LOSS = Measure(
    "loss",
    "Loss",
    "nats a token",
    higher_is_better=False,
    read=_loss,
    of=_loss_of,
    limits=(0.0, None),
    ahead="above (worse than)",
    behind="below (better than)",
)
