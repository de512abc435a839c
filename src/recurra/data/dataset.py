"""A labelled corpus in memory: splits with fingerprints, and the record of what it is."""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from recurra.core.configuration import content_hash
from recurra.core.record import DataRecord, LengthSummary, SplitRecord, headline_of

Group = tuple[int | str, ...]

# Fixed bin edges, in words, so that histograms of different splits and corpora can be compared.
_WORD_EDGES = (*range(2, 60, 2), *range(60, 120, 20), *range(120, 240, 40), *range(240, 1001, 80), 2_000, 5_000, 10_000)


@dataclass(frozen=True, eq=False)
class TextSplit:
    """Cleaned rows of one split; no text is empty.

    Labels are indices into the corpus's ``label_names``, int64, ``(rows,)``; or 0 and 1 a label, ``(rows, labels)``.
    """

    name: str
    texts: list[str]
    labels: npt.NDArray[np.int64]
    ids: list[str]
    groups: list[Group] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", np.ascontiguousarray(self.labels, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (16 hexadecimal digits) over texts and labels in their order."""
        digest = hashlib.sha256()
        for text, label in zip(self.texts, self.labels.tolist(), strict=True):
            encoded = text.encode("utf-8", "surrogatepass")
            # The length in front keeps ("ab", "c") and ("a", "bc") apart.
            digest.update(b"%s:%d:" % (str(label).encode(), len(encoded)))
            digest.update(encoded)
        return digest.hexdigest()[:16]

    @cached_property
    def word_counts(self) -> npt.NDArray[np.int64]:
        """Words (separated by white space) of each text, shape ``(rows,)``."""
        return np.fromiter((len(text.split()) for text in self.texts), dtype=np.int64, count=len(self.texts))

    def label_counts(self, num_labels: int) -> npt.NDArray[np.int64]:
        """Rows with each label, shape ``(labels,)``."""
        if self.labels.ndim == 2:
            return np.asarray(self.labels.sum(axis=0), dtype=np.int64)
        return np.bincount(self.labels, minlength=num_labels)

    def select(self, indices: Sequence[int] | npt.NDArray[np.integer[Any]], *, name: str | None = None) -> TextSplit:
        """Returns the rows at ``indices``, in that order."""
        rows = np.asarray(indices, dtype=np.int64)
        positions = rows.tolist()
        return TextSplit(
            name=name or self.name,
            texts=[self.texts[position] for position in positions],
            labels=self.labels[rows],
            ids=[self.ids[position] for position in positions],
            groups=None if self.groups is None else [self.groups[position] for position in positions],
        )

    def record(self, label_names: Sequence[str]) -> SplitRecord:
        """Summarises the split for the run record."""
        counts = self.label_counts(len(label_names)).tolist()
        return SplitRecord(
            fingerprint=self.fingerprint,
            rows=len(self),
            label_counts={name: counts[index] for index, name in enumerate(label_names)},
            words=summarise_lengths(self.word_counts),
        )


def joined(name: str, splits: Sequence[TextSplit]) -> TextSplit:
    """Joins the rows of several splits; rows without groups get an empty one if any split has groups."""
    groups = None
    if any(split.groups is not None for split in splits):
        groups = [group for split in splits for group in (split.groups or [()] * len(split))]
    return TextSplit(
        name=name,
        texts=[text for split in splits for text in split.texts],
        labels=np.concatenate([split.labels for split in splits]),
        ids=[identity for split in splits for identity in split.ids],
        groups=groups,
    )


@dataclass(frozen=True, eq=False)
class TextDataset:
    """A corpus under one protocol.

    ``auxiliary`` rows have labels of another task, for training only. ``unlabelled`` texts are for students of a
    teacher; their labels are 0 and mean nothing.
    """

    name: str
    protocol: str
    label_names: list[str]
    splits: dict[str, TextSplit]
    selection_split: str = "validation"
    reported_splits: list[str] = field(default_factory=lambda: ["validation", "test"])
    dropped: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    auxiliary: TextSplit | None = None
    unlabelled: TextSplit | None = None

    @property
    def headline_split(self) -> str:
        """See `recurra.core.record.headline_of`."""
        return headline_of(self.reported_splits)

    @property
    def num_labels(self) -> int:
        """Number of classes."""
        return len(self.label_names)

    @cached_property
    def fingerprint(self) -> str:
        """Hash over the fingerprints of all splits, their names and the label names."""
        parts = {name: split.fingerprint for name, split in self.splits.items()}
        extra_splits = {"auxiliary": self.auxiliary, "unlabelled": self.unlabelled}
        extra_fingerprints = {name: split.fingerprint for name, split in extra_splits.items() if split is not None}
        return content_hash({"labels": self.label_names, "splits": parts, **extra_fingerprints})

    def with_test_rows(self, *notes: str) -> TextDataset:
        """The same data with the test rows moved into training; only the selection split is left to report."""
        train = joined("train", (self.splits["train"], self.splits["test"]))
        splits = {"train": train, self.selection_split: self.splits[self.selection_split]}
        return replace(self, splits=splits, reported_splits=[self.selection_split], notes=[*self.notes, *notes])

    def record(self, tokenizer: dict[str, Any] | None = None) -> DataRecord:
        """Returns the record of this data."""
        return DataRecord(
            name=self.name,
            protocol=self.protocol,
            fingerprint=self.fingerprint,
            label_names=self.label_names,
            selection_split=self.selection_split,
            reported_splits=self.reported_splits,
            splits={name: split.record(self.label_names) for name, split in self.splits.items()},
            dropped=self.dropped,
            notes=self.notes,
            tokenizer=tokenizer or {},
        )


def summarise_lengths(words: npt.NDArray[np.int64]) -> LengthSummary:
    """Summarises lengths in words."""
    longest = int(words.max())
    last = bisect.bisect_right(_WORD_EDGES, longest)
    edges = [0, *(*_WORD_EDGES, longest + 1)[: last + 1]]
    counts, _ = np.histogram(words, bins=[*edges[:-1], edges[-1] - 0.5])
    return LengthSummary(
        mean=float(words.mean()),
        median=float(np.median(words)),
        p90=float(np.percentile(words, 90)),
        max=longest,
        edges=edges,
        counts=[int(count) for count in counts],
    )
