"""Parts of a split: a stratified fraction, with any number of labels a row, and the longest or shortest texts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from recurra.core.seeds import derive_seed
from recurra.data.dataset import TextSplit

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


def stratified_fraction(split: TextSplit, fraction: float, seed: int) -> TextSplit:
    """Returns a random share of the rows with every label in its proportion.

    The rows keep their order. With one seed a smaller fraction is a subset of a larger one up to one row a label
    (rounding), so 10 % and 50 % differ by what is added, not by luck. Every label keeps at least one row.

    Args:
        split: Where to take from.
        fraction: Share of the rows, above 0 and up to 1; 1 returns the split itself.
        seed: Seed of the choice.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction {fraction} must be above 0 and at most 1")
    if fraction == 1:
        return split
    if split.labels.ndim == 2:
        return split.select(_iterative_fraction(split, fraction, seed))
    present, counts = np.unique(split.labels, return_counts=True)
    sizes = apportion(counts, fraction)
    chosen = []
    for label, size in zip(present.tolist(), sizes.tolist(), strict=True):
        rows = np.flatnonzero(split.labels == label)
        generator = np.random.default_rng(derive_seed(seed, "fraction", label))
        chosen.append(generator.permutation(rows)[:size])
    return split.select(np.sort(np.concatenate(chosen)))


def rows_of_each_label(split: TextSplit, most: int, seed: int) -> TextSplit:
    """Returns a random choice of rows with at most so many of each label.

    The rows keep their order. With one seed the rows of a smaller number are among those of a larger one, and of
    `stratified_fraction`'s.

    Args:
        split: Where to take from; one label a row.
        most: Rows of each label.
        seed: Seed of the choice.
    """
    chosen = [
        np.random.default_rng(derive_seed(seed, "fraction", label)).permutation(np.flatnonzero(split.labels == label))
        for label in np.unique(split.labels).tolist()
    ]
    return split.select(np.sort(np.concatenate([rows[:most] for rows in chosen])))


def _iterative_fraction(split: TextSplit, fraction: float, seed: int) -> npt.NDArray[np.int64]:
    units = [[row] for row in range(len(split))]
    # The identity as well: equal texts would have equal keys.
    keys = [split_key(seed, split.texts, unit) + split.ids[unit[0]].encode("utf-8", "surrogatepass") for unit in units]
    places = iterative_split(units, keys, split.labels, {"rest": 1 - fraction, "kept": fraction})
    return np.array([row for row, place in enumerate(places) if place == "kept"], dtype=np.int64)


def apportion(
    counts: np.ndarray[tuple[int], np.dtype[np.int64]], fraction: float
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Rows a label by largest remainders: they sum to the rounded share of all rows, as far as one each allows.

    Args:
        counts: Rows of each label, shape ``(labels,)``.
        fraction: Share of the rows, above 0 and up to 1.
    """
    exact = counts * fraction
    sizes = np.floor(exact).astype(np.int64)
    short = round(float(counts.sum()) * fraction) - int(sizes.sum())
    by_remainder = np.argsort(-(exact - sizes), kind="stable")
    sizes[by_remainder[: max(short, 0)]] += 1
    return np.maximum(sizes, 1)


def length_tail(split: TextSplit, which: Literal["longest", "shortest"], fraction: float) -> TextSplit:
    """Returns the longest or shortest share of the rows, by words, in their order.

    Ties at the edge are broken by a hash of the text: by content, not by place, since files are often sorted by label.

    Args:
        split: Where to take from.
        which: The tail to keep.
        fraction: Share of the rows, above 0 and up to 1; at least one row is kept.
    """
    if which not in ("longest", "shortest"):
        raise ValueError(f"tail '{which}' must be 'longest' or 'shortest'")
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction {fraction} must be above 0 and at most 1")
    keep = max(1, round(len(split) * fraction))
    words = split.word_counts if which == "shortest" else -split.word_counts
    ties = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8] for text in split.texts]
    order = np.lexsort((np.frombuffer(b"".join(ties), dtype=">u8"), words))
    return split.select(np.sort(order[:keep]))
