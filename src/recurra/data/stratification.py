"""Splitting rows with any number of labels so that each label keeps its share: iterative stratification."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[np.int64]


def iterative_split(units: Sequence[Sequence[int]], keys: Sequence[bytes], labels: Labels, shares: Mapping[str, float],
) -> list[str]:  # fmt: skip
    """Assigns units to splits label by label, the rarest first (Sechidis, Tsoumakas and Vlahavas 2011).

    Of the units that are left, those with the rarest label are given out in the order of their keys, each to the split
    that wants the most rows of that label; of equals, to the one that wants the most rows at all, then to the first.
    Units without any label come last, and go where most rows are wanted. Unlike there, ties are broken by content and
    not by chance, and a unit may be several rows that must stay together.

    Args:
        units: Row numbers of each unit.
        keys: Of each unit, unique: the order within a label.
        labels: 0 and 1, ``(rows, labels)``.
        shares: Share of each split, with the one that gets the rest first; they add up to 1.

    Returns:
        The split of each unit.
    """
    names = list(shares)
    portions = np.array([shares[name] for name in names])
    counts = np.stack([labels[list(rows)].sum(axis=0) for rows in units]) if units else np.zeros((0, labels.shape[1]))
    sizes = np.array([len(rows) for rows in units])
    wanted = portions[:, None] * counts.sum(axis=0)
    room = portions * sizes.sum()
    chosen = np.full(len(units), -1)
    order = np.array(sorted(range(len(units)), key=lambda unit: keys[unit]), dtype=np.int64)

    def give(unit: int, wishes: npt.NDArray[np.float64]) -> None:
        # Rounded, so that what was wanted equally stays equal after subtractions.
        split = int(np.lexsort((np.arange(len(names)), -room.round(9), -wishes.round(9)))[0])
        chosen[unit] = split
        wanted[split] -= counts[unit]
        room[split] -= sizes[unit]

    left = counts.sum(axis=0).astype(np.float64)
    while (left > 0).any():
        label = int(np.argmin(np.where(left > 0, left, np.inf)))
        for unit in order[(chosen[order] < 0) & (counts[order, label] > 0)].tolist():
            give(unit, wanted[:, label])
            left -= counts[unit]
    for unit in order[chosen[order] < 0].tolist():
        give(unit, room)
    return [names[split] for split in chosen.tolist()]


def split_key(seed: int, texts: Sequence[str], rows: Sequence[int]) -> bytes:
    """The order of a unit under a seed: by a hash of its texts, whatever the order of the rows."""
    return min(hashlib.sha256(f"{seed}/{texts[row]}".encode("utf-8", "surrogatepass")).digest() for row in rows)
