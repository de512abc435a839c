"""Long texts: how much of each split no model reads, because it stands behind ``max_length`` tokens.

Counted on at most 2,000 rows of a split (`recurra.data.lengths`). A note from 1 % of the rows, never a failure: the
figures are right for what was read, and may be better if more is.
"""

from __future__ import annotations

from typing import Any

from recurra.core.record import AuditResult
from recurra.data.dataset import TextDataset
from recurra.data.lengths import NOTE_SHARE, choose_max_length, cut_texts, read_more, samples_of, token_lengths


def audit_long_texts(dataset: TextDataset, tokenizer: Any, max_length: int, longest: int) -> list[AuditResult]:
    """Measures what is cut of every split.

    Args:
        dataset: The corpus under its protocol.
        tokenizer: The model's, or one of the tokenizers library itself.
        max_length: Tokens after which a text is cut.
        longest: Longest input of the model, in tokens.

    Returns:
        ``long-texts.<split>`` for each split with rows: ``value`` is the share of rows that are cut; ``details`` have
        the share of tokens, the rows counted, both lengths, and the one that would hold 95 % of the rows.
    """
    found = []
    for name, texts in samples_of(dataset).items():
        lengths = token_lengths(texts, tokenizer)
        cut = cut_texts(lengths, max_length)
        summary = f"max_length {max_length} cuts {cut}"
        if len(dataset.splits[name]) > cut.counted:
            summary += f" (of {cut.counted:,} rows of {len(dataset.splits[name]):,})"
        noted = cut.rows >= NOTE_SHARE
        found.append(
            AuditResult(
                name=f"long-texts.{name}",
                status="note" if noted else "passed",
                summary=f"{summary}; {read_more(lengths, max_length, longest)}" if noted else summary,
                value=cut.rows,
                threshold=NOTE_SHARE,
                details={
                    "tokens_cut": cut.tokens,
                    "rows_counted": cut.counted,
                    "max_length": max_length,
                    "longest": longest,
                    "holds_95_percent": choose_max_length(lengths, longest),
                },
            )
        )
    return found
