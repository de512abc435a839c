"""Batches of rows of similar length, because most of the time of a padded batch is lost to padding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Sampler

# Rows are sorted by length only within a window of this many batches, so that a batch still mixes rows at random.
WINDOW_BATCHES = 100

Integers = npt.NDArray[np.integer[Any]]


class LengthGroupedBatchSampler(Sampler[list[int]]):
    """Batches of rows of about equal length, in a new random order each epoch.

    An epoch shuffles all rows, cuts them into windows, sorts each window by length, cuts it into batches and shuffles
    the batches. The longest batch comes first: if it does not fit into memory, that shows at once. The order depends on
    the seed and the epoch alone. A smaller last batch is a random sample and comes last.

    Under a curriculum the first epochs have as many batches, but repeat short rows alone: of all lengths that occur,
    epoch ``e`` from 1 takes the shortest ``e / curriculum_epochs``. Rows of a rare length are repeated a whole number
    of times, so that each length comes at least half as often as the commonest.
    """

    # accelerate reads this attribute of every batch sampler.
    drop_last = False

    def __init__(
        self, lengths: Integers | Sequence[int], batch_size: int, seed: int, *, curriculum_epochs: int = 0
    ) -> None:
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.batch_size = batch_size
        self.seed = seed
        self.curriculum_epochs = curriculum_epochs
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch whose order the next iteration gives."""
        self.epoch = epoch

    def __len__(self) -> int:
        return (len(self.lengths) + self.batch_size - 1) // self.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        generator = np.random.default_rng((self.seed, self.epoch))
        order = self._shuffled(generator, self.epoch)
        full_rows = len(order) - len(order) % self.batch_size
        window = self.batch_size * WINDOW_BATCHES
        for start in range(0, full_rows, window):
            part = order[start : min(start + window, full_rows)]
            # `part` is shuffled and the sort is stable, so rows of equal length meet different rows every epoch.
            order[start : start + len(part)] = part[np.argsort(self.lengths[part], kind="stable")]
        batches = order[:full_rows].reshape(-1, self.batch_size)
        batch_order = generator.permutation(len(batches))
        if len(batches) > 0:
            longest = int(np.argmax(self.lengths[batches[batch_order]].max(axis=1)))
            batch_order[[0, longest]] = batch_order[[longest, 0]]
        for index in batch_order:
            yield batches[index].tolist()
        if full_rows < len(order):
            yield order[full_rows:].tolist()

    def tokens(self, epochs: int) -> int:
        """Tokens of the first epochs, without padding."""
        if not self.curriculum_epochs:
            return epochs * int(self.lengths.sum())
        rows = (self._shuffled(np.random.default_rng((self.seed, epoch)), epoch) for epoch in range(epochs))
        return sum(int(self.lengths[of_epoch].sum()) for of_epoch in rows)

    def _shuffled(self, generator: np.random.Generator, epoch: int) -> npt.NDArray[np.int64]:
        """As many rows as there are, in random order: all of them, or the short ones of the epoch, repeated."""
        rows = len(self.lengths)
        if epoch + 1 >= self.curriculum_epochs:
            return generator.permutation(rows)
        occurring = np.unique(self.lengths)
        admitted = -(-len(occurring) * (epoch + 1) // self.curriculum_epochs)
        short = np.flatnonzero(self.lengths <= occurring[admitted - 1])
        # The shortest texts are few, but longer ones build on what is learnt from them.
        counts = np.bincount(self.lengths[short])
        short = np.repeat(short, counts.max() // counts[self.lengths[short]])
        repeats = -(-rows // len(short))
        return np.concatenate([generator.permutation(short) for _ in range(repeats)])[:rows]


def sorted_batches(lengths: Integers | Sequence[int], batch_size: int) -> list[npt.NDArray[np.int64]]:
    """Cuts rows, sorted by length, into batches for inference; the longest first, so that a lack of memory shows."""
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def padded_length(longest: int) -> int:
    """Padded length of a batch by its longest row: the next multiple of 4, above 32 of 8.

    oneDNN compiles kernels for every length that occurs, half a MiB each and fifteen a layer shape; for all lengths of
    a corpus they outgrow model and optimiser together.
    """
    step = 4 if longest <= 32 else 8
    return -(-longest // step) * step


def pad_rows(
    rows: Sequence[Sequence[int] | Integers], pad_token_id: int, *, longest: int | None = None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Pads rows on the right to `padded_length` of the longest, at most to ``longest``.

    Returns:
        Tokens, and a mask that is false at padding; both ``(rows, tokens)``.
    """
    lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
    width = padded_length(int(lengths.max()))
    inside = np.arange(width if longest is None else min(width, longest)) < lengths[:, None]
    tokens = np.full(inside.shape, pad_token_id, dtype=np.int64)
    # Row-major order of the mask is the order of the concatenation: one copy fills the whole batch.
    tokens[inside] = np.concatenate(rows)
    return tokens, inside


class Collator:
    """Pads rows on the right to `padded_length` of the longest of their batch."""

    def __init__(self, pad_token_id: int) -> None:
        self.pad_token_id = pad_token_id

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Returns ``input_ids`` and ``attention_mask`` (int64, ``(batch, tokens)``), and ``labels`` if rows have them.

        Labels are int64, ``(batch,)``, or float32 of 0 and 1, ``(batch, labels)``.
        """
        tokens, inside = pad_rows([row["input_ids"] for row in rows], self.pad_token_id)
        batch = {"input_ids": torch.from_numpy(tokens), "attention_mask": torch.from_numpy(inside.astype(np.int64))}
        if "labels" in rows[0]:
            labels = np.stack([row["labels"] for row in rows])
            # As transformers expects: a label index is an integer; 0 and 1 a label are targets of a logistic loss.
            batch["labels"] = torch.from_numpy(labels.astype(np.int64 if labels.ndim == 1 else np.float32))
        return batch


IGNORED = -100


class LanguageCollator:
    """Pads rows on the right; labels are the tokens themselves, or `IGNORED` where nothing is to be predicted.

    Padding and the first token of a row are ignored. A model shifts the labels and never predicts the first token, but
    the Trainer would count it when it weighs the batches of an accumulated step. Padding is found by the rows' lengths,
    so its token may be end-of-text.
    """

    def __init__(self, pad_token_id: int, context: int) -> None:
        self.pad_token_id = pad_token_id
        self.context = context

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Returns ``input_ids`` and ``labels``, int64, ``(batch, tokens)``, and with padding ``attention_mask``."""
        tokens, inside = pad_rows([row["input_ids"] for row in rows], self.pad_token_id, longest=self.context)
        labels = np.where(inside, tokens, IGNORED)
        labels[:, 0] = IGNORED
        batch = {"input_ids": torch.from_numpy(tokens), "labels": torch.from_numpy(labels)}
        if not inside.all():
            batch["attention_mask"] = torch.from_numpy(inside.astype(np.int64))
        return batch
