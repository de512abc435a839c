"""Accuracy on the rows contained in a training row, against those that do not: what a leaking split measures.

A row counts as seen if its word sequence, of 3 words or more, stands verbatim inside a training text (the leakage
audit's ``contained``). Shorter rows recur by chance and are in neither group. Seen rows are shorter than others, and
length alone moves accuracy; so the difference is also given at equal length: the Mantel-Haenszel difference of
proportions over strata of equal numbers of words, with the variance of Sato (1989, Biometrics 45, 1323).

This is a measurement, not a test to pass: a difference says how much of an accuracy may be memory, and the leakage
audit says how many rows it concerns.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from recurra.core.record import AuditResult
from recurra.data.dataset import TextSplit
from recurra.evaluation.audits.leakage import MIN_CONTAINED_WORDS, overlap_of
from recurra.evaluation.significance import wilson_interval

# Fewer rows in a group say nothing.
MIN_ROWS = 20

Mask = npt.NDArray[np.bool_]


def audit_seen(train: TextSplit, split: TextSplit, correct: npt.ArrayLike) -> AuditResult:
    """Compares the accuracy on seen and on unseen rows of a split.

    Returns:
        ``seen.<split>`` with the status ``measured``: ``value`` is the difference in accuracy, seen minus unseen;
        ``details`` has both groups, the interval of the difference, and the difference at equal length. ``skipped`` if
        a group has fewer than 20 rows.
    """
    right = np.asarray(correct)
    if right.shape != (len(split),) or right.dtype != np.bool_:
        raise ValueError(f"correct must be {len(split)} truth values; got {right.dtype} of shape {right.shape}")
    name = f"seen.{split.name}"
    judged: Mask = split.word_counts >= MIN_CONTAINED_WORDS
    seen: Mask = (overlap_of(train, split).container >= 0) & judged
    unseen: Mask = judged & ~seen
    if min(seen.sum(), unseen.sum()) < MIN_ROWS:
        reason = (
            f"skipped: {seen.sum():,} rows of {MIN_CONTAINED_WORDS} words or more stand inside a training row, "
            f"{unseen.sum():,} do not; {MIN_ROWS} of both are needed"
        )
        return AuditResult(name=name, status="skipped", summary=reason)
    groups = {"seen": _group(split, right, seen), "unseen": _group(split, right, unseen)}
    difference = groups["seen"]["accuracy"] - groups["unseen"]["accuracy"]
    low, high = difference_interval(
        int(right[seen].sum()), int(seen.sum()), int(right[unseen].sum()), int(unseen.sum())
    )
    equal = difference_at_equal_length(right, seen, unseen, split.word_counts)
    adjusted = ""
    if equal is not None:
        adjusted = f"; at equal length {_signed(equal[0])} ({_signed(equal[1])} to {_signed(equal[2])})"
    return AuditResult(
        name=name,
        status="measured",
        summary=(
            f"accuracy {groups['seen']['accuracy']:.3f} on the {seen.sum():,} rows contained in a training row, "
            f"{groups['unseen']['accuracy']:.3f} on the {unseen.sum():,} that do not: {_signed(difference)} "
            f"(95 % {_signed(low)} to {_signed(high)}){adjusted}"
        ),
        value=difference,
        details={
            **groups,
            "interval": [low, high],
            "at_equal_length": None if equal is None else {"difference": equal[0], "interval": list(equal[1:])},
            "rows_too_short": int((~judged).sum()),
            "least_words": MIN_CONTAINED_WORDS,
        },
    )


def _group(split: TextSplit, right: Mask, rows: Mask) -> dict[str, Any]:
    count, successes = int(rows.sum()), int(right[rows].sum())
    return {
        "rows": count,
        "accuracy": successes / count,
        "interval": list(wilson_interval(successes, count)),
        "words_mean": float(split.word_counts[rows].mean()),
    }


def _signed(value: float) -> str:
    return f"{value:+.3f}"


def difference_interval(successes_a: int, total_a: int, successes_b: int, total_b: int) -> tuple[float, float]:
    """95 % interval of the difference of two independent shares, A minus B (Newcombe 1998, method 10)."""
    share_a, share_b = successes_a / total_a, successes_b / total_b
    (low_a, high_a), (low_b, high_b) = wilson_interval(successes_a, total_a), wilson_interval(successes_b, total_b)
    difference = share_a - share_b
    return (
        difference - math.hypot(share_a - low_a, high_b - share_b),
        difference + math.hypot(high_a - share_a, share_b - low_b),
    )


def difference_at_equal_length(
    right: Mask, seen: Mask, unseen: Mask, words: npt.NDArray[np.int64]
) -> tuple[float, float, float] | None:
    """Mantel-Haenszel difference in accuracy over strata of equal numbers of words, and its 95 % interval."""
    size = int(words.max()) + 1 if len(words) else 1

    def per_length(rows: Mask) -> npt.NDArray[np.float64]:
        return np.bincount(words[rows], minlength=size).astype(np.float64)

    n1, n0 = per_length(seen), per_length(unseen)
    both = (n1 > 0) & (n0 > 0)
    if not both.any():
        return None
    a, c = per_length(seen & right)[both], per_length(unseen & right)[both]
    n1, n0 = n1[both], n0[both]
    total = n1 + n0
    weight = float((n1 * n0 / total).sum())
    difference = float(((a * n0 - c * n1) / total).sum()) / weight
    p = float(((n1**2 * c - n0**2 * a + n1 * n0 * (n0 - n1) / 2) / total**2).sum())
    q = float(((a * (n0 - c) + c * (n1 - a)) / (2 * total)).sum())
    half = float(stats.norm.ppf(0.975)) * math.sqrt(max(difference * p + q, 0.0)) / weight
    return difference, difference - half, difference + half
