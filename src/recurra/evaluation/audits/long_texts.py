"""Long texts: how much of each split no model reads, because it stands behind ``max_length`` tokens or its windows.

Counted on at most 2,000 rows of a split (`recurra.data.lengths`). A note from 1 % of the rows, never a failure: the
figures are right for what was read, and may be better if more is.
"""

from __future__ import annotations

from typing import Any

from recurra.core.record import AuditResult
from recurra.data.dataset import TextDataset
from recurra.data.lengths import (
    NOTE_SHARE,
    added_tokens,
    choose_max_length,
    cut_texts,
    describe_limit,
    read_more,
    samples_of,
    token_lengths,
    windows_needed,
)
from recurra.data.windows import most_tokens


def audit_long_texts(
    dataset: TextDataset, tokenizer: Any, max_length: int, longest: int, windows: int = 1
) -> list[AuditResult]:
    """Measures what is cut of every split."""
    found, added = [], added_tokens(tokenizer)
    for name, texts in samples_of(dataset).items():
        lengths = token_lengths(texts, tokenizer)
        cut = cut_texts(lengths, most_tokens(max_length, windows, added))
        summary = f"{describe_limit(max_length, windows)} cuts {cut}"
        if len(dataset.splits[name]) > cut.counted:
            summary += f" (of {cut.counted:,} rows of {len(dataset.splits[name]):,})"
        noted = cut.rows >= NOTE_SHARE
        if noted:
            summary += f"; {read_more(lengths, max_length, longest, windows=windows, added=added)}"
        found.append(
            AuditResult(
                name=f"long-texts.{name}",
                status="note" if noted else "passed",
                summary=summary,
                value=cut.rows,
                threshold=NOTE_SHARE,
                details={
                    "tokens_cut": cut.tokens,
                    "rows_counted": cut.counted,
                    "max_length": max_length,
                    "windows": windows,
                    "longest": longest,
                    "holds_95_percent": choose_max_length(lengths, longest),
                    "windows_needed": windows_needed(lengths, max_length, added),
                },
            )
        )
    return found
