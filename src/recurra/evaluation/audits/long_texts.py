"""Long texts: how much of each split no model reads, because it comes after ``max_length`` tokens or the last window.

At most 2,000 rows of a split are counted (`recurra.data.lengths`). From 1 % of the rows the result is a note, never a
failure: the figures are right for what was read, and may be better if more is read.
"""

from __future__ import annotations

from typing import Any

from recurra.core.record import AuditResult
from recurra.data.dataset import TextDataset
from recurra.data.encoding import added_tokens
from recurra.data.lengths import (
    NOTE_SHARE,
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
    """Measures the share of cut texts and tokens of every split."""
    audits, added = [], added_tokens(tokenizer)
    for name, texts in samples_of(dataset).items():
        lengths = token_lengths(texts, tokenizer)
        cut = cut_texts(lengths, most_tokens(max_length, windows, added))
        summary = f"{describe_limit(max_length, windows)} cuts {cut}"
        if len(dataset.splits[name]) > cut.counted:
            summary += f" (of {cut.counted:,} rows of {len(dataset.splits[name]):,})"
        noted = cut.rows >= NOTE_SHARE
        if noted:
            summary += f"; {read_more(lengths, max_length, longest, windows=windows, added=added)}"
        audits.append(
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
    return audits
