"""Cuts texts that are too long for a model into windows, whose logits are pooled.

A text of more than ``max_length`` tokens is cut into the fewest windows that fit; their lengths differ by one token at
most. Windows do not overlap, so that every token is read once and counts alike, and each begins and ends with the
tokens that the tokenizer adds to a text. A text that needs more windows than allowed is cut after the last of them.

Overlapping windows were no better and cost more (`docs/decisions/0027-windows.md`); Joshi et al. 2019, "BERT for
Coreference Resolution: Baselines and Analysis", found the same.

A text's logits are the mean of its windows' logits. If a text has one label, that is the mean of log-probabilities,
because a constant added to all logits does not change a softmax. In training, each window has the label of its text
(Dai and Callan 2019, "Deeper Text Understanding for IR with Contextual Neural Language Modeling") and an equal share of
its weight. Cross-entropy is convex in the logits, so the training loss is never below the loss of the pooled logits.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from recurra.core.errors import CheckpointError

MOST_WINDOWS = 64

Counts = npt.NDArray[np.int64]


class Reading(TypedDict):
    """How much of a text a model reads: at most ``windows`` windows of at most ``max_length`` tokens."""

    max_length: int
    windows: int


def recorded_reading(config: Mapping[str, Any]) -> Reading:
    """How much a recorded run reads of a text, by its configuration."""
    data = config.get("data")
    values = data if isinstance(data, Mapping) else {}
    length, windows = values.get("max_length"), values.get("windows", 1)
    if not (type(length) is int and type(windows) is int and min(length, windows) > 0):
        raise CheckpointError(
            "the record's configuration does not say how much of a text the model reads ('data' with 'max_length'); "
            "the record was changed: copy the run again"
        )
    return Reading(max_length=length, windows=windows)


def most_tokens(max_length: int, windows: int, added: int) -> int:
    """Tokens of a text that ``windows`` windows hold, with those that a tokenizer adds to the whole text once."""
    return windows * (max_length - added) + added


def window_bounds(tokens: int, room: int) -> list[int]:
    """Starts of the windows of a text, then its end: the fewest that hold it, of equal length to one token."""
    count = max(1, -(-tokens // room))
    return [index * tokens // count for index in range(count + 1)]


def cut_windows(
    input_ids: npt.NDArray[np.int32], offsets: Counts, *, before: int, added: int, max_length: int
) -> tuple[npt.NDArray[np.int32], Counts, Counts]:
    """Cuts tokenised texts into windows; the tokenizer adds ``added`` tokens to each, ``before`` of them in front.

    Returns:
        Tokens ``(tokens,)`` and offsets of the windows, in the texts' order, and windows of each text ``(texts,)``.
    """
    room = max_length - added
    rows: list[npt.NDArray[np.int32]] = []
    counts = np.ones(len(offsets) - 1, dtype=np.int64)
    for index, (start, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        if end - start <= max_length:
            rows.append(input_ids[start:end])
            continue
        first, last = start + before, end - (added - before)
        prefix, suffix = input_ids[start:first], input_ids[last:end]
        bounds = window_bounds(last - first, room)
        counts[index] = len(bounds) - 1
        parts = (input_ids[first + low : first + high] for low, high in itertools.pairwise(bounds))
        rows += [np.concatenate([prefix, part, suffix]) for part in parts]
    lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
    return np.concatenate(rows), np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), counts


def first_windows(counts: Counts) -> Counts:
    """Number of the first window of each text, ``(texts,)``."""
    return np.cumsum(counts) - counts


def pool_windows(values: npt.NDArray[np.float32], counts: Counts | None) -> npt.NDArray[np.float32]:
    """The mean over the windows of each text, in FP64; ``(windows, ...)`` to ``(texts, ...)``."""
    if counts is None:
        return values
    sums = np.add.reduceat(values.astype(np.float64), first_windows(counts), axis=0)
    return (sums / counts.reshape(-1, *[1] * (values.ndim - 1))).astype(np.float32)


def share_weights(counts: Counts | None, weights: npt.NDArray[np.float32] | None) -> npt.NDArray[np.float32] | None:
    """Gives each window an equal share of its text's weight; ``(texts,)`` to ``(windows,)``, with mean 1."""
    if counts is None:
        return weights
    text_weights = np.ones(len(counts)) if weights is None else weights.astype(np.float64)
    window_weights = np.repeat(text_weights / counts, counts)
    return (window_weights * (len(window_weights) / text_weights.sum())).astype(np.float32)
