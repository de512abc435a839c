"""Runs of words or tokens, compared by a hash of any window in constant time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]

# Odd, so that it has an inverse modulo 2**64 (Knuth's MMIX multiplier).
_BASE = 6364136223846793005
_INVERSE = pow(_BASE, -1, 2**64)


def mixed(numbers: Words) -> Words:
    """The splitmix64 finaliser (Steele et al. 2014): a bijection, so that distinct words stay distinct."""
    words = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


@dataclass(frozen=True, eq=False)
class RollingHash:
    """Hash of any window of a list of words: a polynomial modulo 2**64, made from prefix sums."""

    prefix: Words
    inverse_powers: Words

    @classmethod
    def of(cls, words: Words) -> RollingHash:
        """Prepares the windows of ``words``."""
        prefix = np.zeros(len(words) + 1, dtype=np.uint64)
        np.cumsum(words * _powers(_BASE, len(words)), out=prefix[1:])
        return cls(prefix, _powers(_INVERSE, len(words) + 1))

    def windows(self, starts: Indices, lengths: Indices | int) -> Words:
        """Hashes of the windows ``[start, start + length)``."""
        return (self.prefix[starts + lengths] - self.prefix[starts]) * self.inverse_powers[starts]


def _powers(base: int, count: int) -> Words:
    powers = np.full(count, base, dtype=np.uint64)
    powers[:1] = 1
    return np.cumprod(powers)


def windows_in(starts: Indices, lengths: Indices, length: int) -> tuple[Indices, Indices]:
    """Starts of all windows of ``length`` that lie within one row, and the row of each."""
    counts = np.maximum(lengths - length + 1, 0)
    rows = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return starts[rows] + within, rows
