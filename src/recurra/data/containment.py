"""Rows that stand word for word inside longer rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recurra.data.encoding import EncodedSplit

_BASE = 0x9E3779B97F4A7C15 | 1  # odd, so that it has an inverse modulo 2**64
_INVERSE = pow(_BASE, -1, 2**64)
# Longer rows are hardly ever parts of others, and every length costs a pass over all tokens.
LONGEST_PART_TOKENS = 64

Words = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]


def rows_not_inside_others(split: EncodedSplit) -> Indices:
    """Finds the rows that say something no other row says: the longest of each family of phrases.

    A row of up to `LONGEST_PART_TOKENS` tokens is left out if its tokens, but for the first and the last (``[CLS]``
    and ``[SEP]``), stand in one run inside a longer row, or if an earlier row equals it. Runs are compared by a 64-bit
    hash.
    """
    prefix, inverse = _prefixes(split.input_ids)
    starts, lengths = split.offsets[:-1] + 1, split.lengths - 2
    keep = np.ones(len(split), dtype=bool)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        if not 0 < length <= LONGEST_PART_TOKENS:
            continue
        own = _hashes(prefix, inverse, starts[rows], length)
        _, first = np.unique(own, return_index=True)
        repeated = np.ones(len(rows), dtype=bool)
        repeated[first] = False
        keep[rows] = ~(repeated | _stand_in(own, prefix, inverse, _windows(starts, lengths, length), length))
    return np.flatnonzero(keep)


def _prefixes(tokens: npt.NDArray[np.int32]) -> tuple[Words, Words]:
    """Sums of the polynomial over all tokens, and the inverse powers that move a window's hash to the origin."""
    prefix = np.zeros(len(tokens) + 1, dtype=np.uint64)
    # Ids are mixed: small neighbouring numbers would collide in a plain polynomial of short windows.
    mixed = (tokens.astype(np.uint64) + np.uint64(1)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(31)
    np.cumsum(mixed * _powers(_BASE, len(tokens)), out=prefix[1:])
    return prefix, _powers(_INVERSE, len(tokens) + 1)


def _powers(base: int, count: int) -> Words:
    powers = np.full(count, base, dtype=np.uint64)
    powers[:1] = 1
    return np.cumprod(powers)


def _hashes(prefix: Words, inverse: Words, starts: Indices, length: int) -> Words:
    return (prefix[starts + length] - prefix[starts]) * inverse[starts]


def _windows(starts: Indices, lengths: Indices, length: int) -> Indices:
    """Starts of all windows of ``length`` tokens that lie inside a longer row."""
    longer = lengths > length
    counts = lengths[longer] - length + 1
    firsts = np.cumsum(counts) - counts
    return np.repeat(starts[longer] - firsts, counts) + np.arange(int(counts.sum()))


def _stand_in(own: Words, prefix: Words, inverse: Words, windows: Indices, length: int) -> npt.NDArray[np.bool_]:
    wanted = np.sort(own)
    hashes = _hashes(prefix, inverse, windows, length)
    place = np.minimum(np.searchsorted(wanted, hashes), len(wanted) - 1)
    contained = np.unique(hashes[wanted[place] == hashes])
    return np.isin(own, contained)
