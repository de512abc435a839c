"""The audits that every trained language model goes through by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from recurra.core.language_record import LanguageMetricsRecord, is_of_causality
from recurra.core.record import AuditResult
from recurra.data.language.dataset import LanguageDataset
from recurra.evaluation.audits.registry import Subject, run_audits
from recurra.models.language_modeling import RecurraForCausalLM


def language_audits(model: Any, seed: int) -> list[AuditResult]:
    """Audits a causal language model: causality of every head and padding; of ours also the cache."""
    audits = run_audits(Subject.LANGUAGE_MODEL, model, seed=seed)
    if isinstance(model, RecurraForCausalLM):
        audits += run_audits(Subject.OUR_LANGUAGE_MODEL, model, seed=seed)
    return audits


def audit_trained(
    model: Any,
    metrics: Mapping[str, LanguageMetricsRecord],
    dataset: LanguageDataset,
    min_characters: int,
    *,
    seed: int = 0,
) -> list[AuditResult]:
    """Audits a trained model: causality of every head, padding, cache, too good to be true; and what was seen before.

    Args:
        model: Ours.
        metrics: What it reached by split; the lowest word perplexity of all heads is judged.
        dataset: What it was trained on.
        min_characters: Lines of more characters are looked for in train.
        seed: Chooses the probes' tokens.
    """
    audits = language_audits(model, seed)
    words = [head.word_perplexity for split in metrics.values() for head in split.heads.values()]
    known = [value for value in words if value is not None and math.isfinite(value)]
    if known:
        # The alarm asks for the causality audit, which has been made.
        causality = [audit for audit in audits if is_of_causality(audit.name)]
        audits += [
            audit for audit in run_audits(Subject.PERPLEXITY, min(known), lambda: causality) if audit not in causality
        ]
    return [*audits, *_seen_lines(dataset, metrics, min_characters)]


def _seen_lines(
    dataset: LanguageDataset, metrics: Mapping[str, LanguageMetricsRecord], min_characters: int
) -> list[AuditResult]:
    """How many long lines of each split stand in train as well."""
    found = []
    for name, split in dataset.record(min_characters)["splits"].items():
        if name in metrics and split["seen_lines"] is not None:
            seen, lines = split["seen_lines"], split["long_lines"]
            summary = f"{seen:,} of {lines:,} lines of more than {min_characters} characters stand in train as well"
            share = seen / lines if lines else 0.0
            details = {"seen_lines": seen, "long_lines": lines}
            found.append(
                AuditResult(name=f"seen.lines.{name}", status="measured", summary=summary, value=share, details=details)
            )
    return found
