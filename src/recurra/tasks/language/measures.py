"""What language models are judged by: loss of the final head, and by it perplexities and bits a byte."""

from __future__ import annotations

from recurra.core.language_record import FINAL_HEAD, LanguageMetricsRecord
from recurra.tasks.estimates import Estimate
from recurra.tasks.language.summary import LanguageModelSummary
from recurra.tasks.measures import Measure


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
