"""The heads of a language model summarised over seeds, and what its audits say."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from recurra.core.formatting import words
from recurra.core.language_record import FINAL_HEAD, HeadRecord, LanguageRunRecord
from recurra.models.names import LANGUAGE_PRESETS
from recurra.tasks.language.measures import LOSS
from recurra.tasks.language.summary import HeadSummary
from recurra.tasks.measures import over_seeds

# Its exponential is still a number.
_LARGEST = 700.0


def summarise_head(heads: Sequence[HeadRecord]) -> HeadSummary:
    """One head over seeds."""
    losses = tuple(head.loss for head in heads)
    interval = over_seeds(losses, LOSS.limits)
    return HeadSummary(
        loss=statistics.fmean(losses),
        losses=losses,
        sd=statistics.stdev(losses) if len(losses) > 1 else None,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        token_perplexity=_geometric([head.token_perplexity for head in heads]),
        word_perplexity=_geometric([head.word_perplexity for head in heads]),
        bits_per_byte=_mean([head.bits_per_byte for head in heads]),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def _geometric(values: Sequence[float | None]) -> float | None:
    known = [math.log(value) for value in values if value is not None]
    return math.exp(statistics.fmean(known)) if known and len(known) == len(values) else None


def as_trained(record: LanguageRunRecord) -> HeadRecord:
    """The final head on the selection split in the kept epoch, cut in blocks as in training."""
    kept = next(epoch for epoch in record.training.history if epoch.epoch == record.training.best_epoch)
    loss = kept.validation_heads[FINAL_HEAD]
    split = record.data.splits[record.data.selection_split]
    by_word = loss * split.tokens / split.words
    lossless = record.data.tokenizer.get("lossless", False)
    return HeadRecord(
        loss=loss,
        token_perplexity=math.exp(loss) if loss < _LARGEST else None,
        word_perplexity=math.exp(by_word) if lossless and by_word < _LARGEST else None,
        bits_per_byte=None,
    )


def reach(records: Sequence[LanguageRunRecord]) -> int | None:
    """How many tokens ahead a prediction of a leaking model reads, at most."""
    found = [
        int(audit.value)
        for record in records
        if record.leaks
        for audit in record.failed_audits()
        if audit.name.startswith("causality.") and audit.value is not None
    ]
    return max(found, default=None)


def verdict(failed: Sequence[str], reach: int | None, *, audited: bool) -> str:
    """What the audits of a model say, in a few words."""
    if reach is not None:
        # Too good is what a leak looks like.
        others = [name for name in failed if not name.startswith(("causality.", "perplexity."))]
        return f"LEAKS: reads {reach} tokens ahead{f'; also failed: {words(others)}' if others else ''}"
    if failed:
        return f"FAILED: {words(list(failed))}"
    return "passed" if audited else "none run"


def cycle(record: LanguageRunRecord) -> str | None:
    """What a cycle is made of, as the record says; one from before shapes were kept names changes and a preset."""
    changes = record.config.get("model_overrides", {})
    _, preset = LANGUAGE_PRESETS.get(changes.get("preset", record.config.get("model")), ("", {}))
    found: str | None = (record.shape or {**preset, **changes}).get("feed_forward")
    return found
