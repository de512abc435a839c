"""Rows of one source on their way to splits: repeats taken out and counted, classes balanced, cut by label."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from recurra.core.errors import DataError
from recurra.core.seeds import derive_seed
from recurra.data.dataset import TextSplit
from recurra.data.subsets import apportion

VALIDATION_SHARE = TEST_SHARE = 0.1
# Fewer rows cannot give every class a row in each of three splits.
MINIMUM_ROWS_A_CLASS = 3
# A row of fewer words is found inside other rows by chance and gives nothing away.
CONTAINED_WORDS = 3

_NOT_WORD = re.compile(r"[\W_]+")
# The same for ASCII, where it is ten times as quick.
_ASCII_NOT_WORD = {code: " " for code in range(128) if not chr(code).isalnum()}

Rows = npt.NDArray[np.int64]


def text_identity(text: str) -> str:
    """What makes two texts the same: the words without case, punctuation and spacing.

    A text of punctuation alone is kept as it is.
    """
    if text.isascii():
        return " ".join(text.lower().translate(_ASCII_NOT_WORD).split()) or text.strip()
    return _NOT_WORD.sub(" ", text.casefold()).strip() or text.strip()


def checked_rows(columns: Mapping[str, Sequence[Any]], source: str, layout: str) -> None:
    """Refuses rows that are no texts with the labels 0 (negative) and 1 (positive).

    Args:
        columns: ``text`` and ``label``.
        source: Where they come from, for the message.
        layout: What should be there.

    Raises:
        DataError: If there are no rows, or other ones.
    """
    if not columns["text"]:
        raise DataError(f"'{source}' has no rows; fetch it again")
    if not set(columns["label"]) <= {0, 1} or not all(isinstance(text, str) for text in columns["text"]):
        raise DataError(f"'{source}': text must be text and label 0 or 1; the layout is {layout}")


def without_repeats(pool: TextSplit, parts: Sequence[str]) -> tuple[TextSplit, dict[str, int]]:
    """Leaves one row of each text (`text_identity`), and none of a text that stands with several labels.

    Args:
        pool: Rows in a fixed order; the first of equal ones stays.
        parts: For each row the part of the release, or the source, that it comes from.

    Returns:
        The rows that stay, in order, and how many were left out, by reason.
    """
    first: dict[str, int] = {}
    repeats: list[tuple[int, int]] = []
    opposed: set[int] = set()
    for row, text in enumerate(pool.texts):
        original = first.setdefault(text_identity(text), row)
        if original != row:
            repeats.append((row, original))
            if pool.labels[row] != pool.labels[original]:
                opposed.add(original)
    counts: Counter[str] = Counter()
    gone = set(opposed)
    for row, original in repeats:
        gone.add(row)
        if original in opposed:
            counts["text stands with several labels"] += 1
        elif parts[row] == parts[original]:
            counts[f"{parts[row]}: repeats another of its rows"] += 1
        else:
            counts[f"{parts[row]}: repeats a row of {parts[original]}"] += 1
    if opposed:
        counts["text stands with several labels"] += len(opposed)
    return pool.select([row for row in range(len(pool)) if row not in gone]), dict(counts)


def without_empty(pool: TextSplit) -> tuple[TextSplit, dict[str, int]]:
    """Leaves out rows without text after cleaning, and counts them."""
    filled = [row for row, text in enumerate(pool.texts) if text]
    if len(filled) == len(pool):
        return pool, {}
    return pool.select(filled), {"empty after cleaning": len(pool) - len(filled)}


def balanced(pool: TextSplit, seed: int) -> tuple[TextSplit, dict[str, int]]:
    """Draws the same number of rows of each class, as many as the rarest has; the rows keep their order."""
    by_label = [np.flatnonzero(pool.labels == label) for label in np.unique(pool.labels)]
    size = min(map(len, by_label))
    drawn = [
        np.random.default_rng(derive_seed(seed, "balance", label)).permutation(rows)[:size]
        for label, rows in enumerate(by_label)
    ]
    kept = pool.select(np.sort(np.concatenate(drawn)))
    return kept, {"beyond the rarer class": len(pool) - len(kept)} if len(kept) < len(pool) else {}


def cut_by_label(pool: TextSplit, seed: int, *, source: str) -> dict[str, TextSplit]:
    """Cuts rows at random into train, validation and test (80/10/10), every class in its proportion.

    Args:
        pool: Rows without repeats; they keep their order within a split.
        seed: Seed of the cut.
        source: For the message.

    Raises:
        DataError: If a class has fewer than three rows.
    """
    labels, counts = np.unique(pool.labels, return_counts=True)
    if counts.min() < MINIMUM_ROWS_A_CLASS:
        raise DataError(
            f"{source}: a class has {counts.min()} different texts, at least {MINIMUM_ROWS_A_CLASS} are needed to cut "
            "train, validation and test; give the whole release"
        )
    held_out = {name: apportion(counts, share) for name, share in _SHARES.items()}
    chosen: dict[str, list[Rows]] = {"train": [], **{name: [] for name in held_out}}
    for position, label in enumerate(labels.tolist()):
        rows = np.random.default_rng(derive_seed(seed, "cut", label)).permutation(np.flatnonzero(pool.labels == label))
        start = 0
        for name, sizes in held_out.items():
            chosen[name].append(rows[start : start + sizes[position]])
            start += int(sizes[position])
        chosen["train"].append(rows[start:])
    return {name: pool.select(np.sort(np.concatenate(rows)), name=name) for name, rows in chosen.items()}


_SHARES = {"validation": VALIDATION_SHARE, "test": TEST_SHARE}


def add_counts(*parts: Mapping[str, int]) -> dict[str, int]:
    """Adds counts of left-out rows, in the order in which the reasons first occur."""
    total: dict[str, int] = {}
    for part in parts:
        for reason, count in part.items():
            total[reason] = total.get(reason, 0) + count
    return total


def joined(name: str, pools: Iterable[TextSplit]) -> TextSplit:
    """Puts rows of several sources one after the other; rows without groups get an empty one if others have any."""
    pools = list(pools)
    groups = None
    if any(pool.groups is not None for pool in pools):
        groups = [group for pool in pools for group in (pool.groups or [()] * len(pool))]
    return TextSplit(
        name=name,
        texts=[text for pool in pools for text in pool.texts],
        labels=np.concatenate([pool.labels for pool in pools]),
        ids=[identity for pool in pools for identity in pool.ids],
        groups=groups,
    )


def rows_that_give_away(queries: Iterable[str], rows: Sequence[str]) -> set[int]:
    """Finds the rows that equal a query or hold it as a run of words, case and punctuation aside.

    Args:
        queries: Texts that must not be seen in training.
        rows: Training texts.

    Returns:
        Positions in ``rows``. Queries of fewer than three words count only if the row equals them.
    """
    equal: set[tuple[str, ...]] = set()
    by_start: defaultdict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)
    for query in queries:
        words = _words(query)
        equal.add(words)
        if len(words) >= CONTAINED_WORDS:
            by_start[words[:CONTAINED_WORDS]].add(words)
    found = set()
    for position, row in enumerate(rows):
        words = _words(row)
        starts = range(len(words) - CONTAINED_WORDS + 1)
        if words in equal or any(
            words[start : start + len(query)] == query
            for start in starts
            for query in by_start.get(words[start : start + CONTAINED_WORDS], ())
        ):
            found.add(position)
    return found


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\w+", text.lower()))
