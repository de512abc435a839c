"""Rows of tokens cut into batches, with numpy alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

# Texts of `TOKENS_A_ROW` tokens a batch, where nobody says otherwise.
DEFAULT_BATCH_SIZE = 64
# A batch has as many tokens as `batch_size` rows of this length.
TOKENS_A_ROW = 32


def budget_batches(lengths: Integers, budget: int) -> Iterator[Integers]:
    """Cuts rows, sorted by length, into batches of at most ``budget`` tokens, but of one row at least."""
    if len(lengths) == 1:
        yield np.zeros(1, dtype=np.int64)
        return
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    start = 0
    while start < len(order):
        before = ends[start] - lengths[order[start]]
        end = max(int(np.searchsorted(ends, before + budget, side="right")), start + 1)
        yield order[start:end]
        start = end


def padded_ids(
    input_ids: npt.NDArray[np.int32], starts: Integers, lengths: Integers, pad: int
) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """Cuts rows out of flat ids and pads them on the right to the longest.

    Args:
        input_ids: Flat ids.
        starts: First token of each row.
        lengths: Tokens of each row.
        pad: Token that fills.

    Returns:
        Ids and whether a token is real, ``(rows, longest)`` each.
    """
    if len(lengths) == 1:
        row = input_ids[starts[0] : starts[0] + lengths[0]][None].astype(np.int64)
        return row, np.ones(row.shape, dtype=np.bool_)
    columns = np.arange(int(lengths.max()))
    keep = columns < lengths[:, None]
    positions = np.minimum(starts[:, None] + columns, len(input_ids) - 1)
    return np.where(keep, input_ids[positions], pad).astype(np.int64), keep
