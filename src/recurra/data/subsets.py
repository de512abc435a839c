"""Parts of a split: a stratified fraction, and the longest or shortest texts."""

from __future__ import annotations

import hashlib
from typing import Literal

import numpy as np
import numpy.typing as npt

from recurra.core.seeds import derive_seed
from recurra.data.dataset import TextSplit
from recurra.data.stratification import iterative_split, split_key


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
