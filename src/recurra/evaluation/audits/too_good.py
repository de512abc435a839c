"""The alarm for a perplexity that no honest model of this size has."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from recurra.core.errors import ConfigurationError
from recurra.core.record import AuditResult

# Honest models of about 100 million parameters on WikiText-103: GPT-2 without training on it 37.5, a weight-tied
# DEQ-Transformer 23.2, Transformer-XL 23.6. The published 1.08 of CRT-Deep leaks.
ALARM_WORD_PERPLEXITY = 15.0


def audit_too_good(word_perplexity: float, audit_causality: Callable[[], Sequence[AuditResult]]) -> list[AuditResult]:
    """Raises the alarm below a word perplexity of 15, and then makes the causality audit, wanted or not.

    Args:
        word_perplexity: Perplexity per word, the unit of published WikiText figures, not per token.
        audit_causality: Makes the causality audit of the model; called only if there is an alarm.

    Returns:
        ``perplexity.too-good`` and, after an alarm, what the causality audit found. The alarm itself fails if that
        failed, because the figure must then not be quoted; if it passed, the alarm stands as a measured figure.

    Raises:
        ConfigurationError: For a perplexity that is none: below 1, or not a number.
    """
    if not word_perplexity >= 1:
        raise ConfigurationError(f"a word perplexity of {word_perplexity} is impossible; allowed: from 1")
    name = "perplexity.too-good"
    figure = {"value": word_perplexity if math.isfinite(word_perplexity) else None, "threshold": ALARM_WORD_PERPLEXITY}
    if word_perplexity >= ALARM_WORD_PERPLEXITY:
        summary = f"word perplexity {word_perplexity:.1f}; below {ALARM_WORD_PERPLEXITY:.0f} there would be an alarm"
        return [AuditResult(name=name, status="passed", summary=summary, **figure)]
    found = list(audit_causality())
    leaking = [audit.name for audit in found if audit.status == "failed"]
    alarm = f"ALARM: word perplexity {word_perplexity:.2f} is below {ALARM_WORD_PERPLEXITY:.0f}"
    if leaking:
        summary = f"{alarm}, and the model leaks ({', '.join(leaking)}): do not quote it without that word"
        return [AuditResult(name=name, status="failed", summary=summary, **figure), *found]
    summary = f"{alarm}; the causality audit passed: look for test text in training"
    return [AuditResult(name=name, status="measured", summary=summary, **figure), *found]
