"""SST-2 under two protocols: ``official`` and ``pooled``.

The rows of SST-2's training part are phrases cut from 8,345 sentences of the Stanford Sentiment Treebank (Socher et al.
2013). A random split of rows puts phrases of one sentence on both sides, so a model can score by memory.

* ``pooled`` does that on purpose, since the published comparison did: GLUE train and validation are pooled and cut at
  random into 54,576 / 6,822 / 6,823 rows.
* ``official`` trains on GLUE train and reports on GLUE validation and on the labelled test sentences. The checkpoint is
  chosen on whole sentences held out of train together with every phrase that is a constituent of one of them.
  GLUE train also has a handful of rows that equal a reported sentence but for punctuation, or hold it word for word
  (``no more .``); they are taken out of train and counted in ``dropped``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from recurra.core.errors import DataError
from recurra.core.seeds import derive_seed
from recurra.data.cleaning import clean_texts
from recurra.data.dataset import Group, TextDataset, TextSplit
from recurra.data.pools import rows_that_give_away
from recurra.data.sst2_source import SentenceSources, read_glue_parts, read_sentence_sources
from recurra.data.treebank import PHRASE_LABELS, read_phrases

LABEL_NAMES = ["negative", "positive"]
POOLED_TRAIN_SHARE = 0.8
POOLED_VALIDATION_SHARE = 0.1
HELD_OUT_SHARE = 1 / 8


def load_sst2(protocol: str, split_seed: int, data_root: Path | None) -> TextDataset:
    """Loads SST-2.

    Args:
        protocol: ``official`` or ``pooled``.
        split_seed: Chooses the held-out sentences, or the random split.
        data_root: Folder with ``sst2/`` and ``sst/``, or None for the public name.

    Raises:
        DataError: If a local file is damaged, or ``official`` lacks the source sentences.
        UnavailableError: If there is no local copy and the hub cannot be reached.
    """
    parts, notes = read_glue_parts(data_root)
    sources = read_sentence_sources(data_root)
    splits = {
        name: TextSplit(
            name=name,
            texts=clean_texts(rows.texts),
            labels=np.asarray(rows.labels, dtype=np.int64),
            ids=[f"{name}-{index}" for index in rows.indices],
            groups=None if sources is None else sources.groups(name, rows.indices),
        )
        for name, rows in parts.items()
    }
    dropped = {}
    for name, split in splits.items():
        filled = [index for index, text in enumerate(split.texts) if text]
        if len(filled) < len(split):
            dropped[f"{name}: empty after cleaning"] = len(split) - len(filled)
            splits[name] = split.select(filled)
    if protocol == "pooled":
        return _pooled(splits, split_seed, dropped, notes)
    if sources is None:
        raise DataError(
            "sst2 protocol 'official' needs the source sentence of every phrase, and sst/sst2_phrase_sources.parquet "
            "is not there; give --data-root DIR with sst2/ and sst/, or take protocol=pooled"
        )
    return _official(splits, sources, split_seed, dropped, notes)


def _pooled(splits: dict[str, TextSplit], seed: int, dropped: dict[str, int], notes: list[str]) -> TextDataset:
    train, validation = splits["train"], splits["validation"]
    pool = TextSplit(
        name="pool",
        texts=train.texts + validation.texts,
        labels=np.concatenate([train.labels, validation.labels]),
        ids=train.ids + validation.ids,
        groups=None if train.groups is None or validation.groups is None else train.groups + validation.groups,
    )
    order = np.random.default_rng(derive_seed(seed, "sst2", "pooled")).permutation(len(pool))
    first = int(POOLED_TRAIN_SHARE * len(pool))
    second = first + int(POOLED_VALIDATION_SHARE * len(pool))
    return TextDataset(
        name="sst2",
        protocol="pooled",
        label_names=LABEL_NAMES,
        splits={
            "train": pool.select(order[:first], name="train"),
            "validation": pool.select(order[first:second], name="validation"),
            "test": pool.select(order[second:], name="test"),
        },
        selection_split="validation",
        reported_splits=["validation", "test"],
        dropped=dropped,
        notes=[
            "Protocol 'pooled' is the published one and leaks: phrases of one sentence lie on both sides of the split.",
            *(note for note in notes if "test split" not in note),
        ],
    )


def _official(
    splits: dict[str, TextSplit], sources: SentenceSources, seed: int, dropped: dict[str, int], notes: list[str]
) -> TextDataset:
    train = splits["train"]
    held_out = _choose_sentences(train, sources, seed)
    sentences = {sentence for row in held_out for sentence in _groups(train)[row]}
    outside = [row for row, group in enumerate(_groups(train)) if sentences.isdisjoint(group)]
    reported = {"held_out": train.select(held_out, name="held_out")}
    reported |= {name: splits[name] for name in ("validation", "test") if name in splits}
    queries = (text for split in reported.values() for text in split.texts)
    leaking = rows_that_give_away(queries, [train.texts[row] for row in outside])
    kept = [row for position, row in enumerate(outside) if position not in leaking]
    return TextDataset(
        name="sst2",
        protocol="official",
        label_names=LABEL_NAMES,
        splits={"train": train.select(kept), **reported},
        selection_split="held_out",
        reported_splits=list(reported),
        dropped={
            **dropped,
            "train: phrase of a held-out sentence": len(train) - len(outside) - len(held_out),
            "train: holds a reported row word for word": len(leaking),
        },
        notes=[
            f"{len(held_out)} whole sentences are held out of GLUE train, by source, to choose the checkpoint.",
            *notes,
        ],
    )


def with_treebank_labels(dataset: TextDataset, data_root: Path | None) -> TextDataset:
    """Adds the treebank's five-class phrases to ``official`` SST-2, under the same rules as its training rows.

    No phrase of a held-out sentence is among them, and none that equals a reported row or holds it word for word.

    Args:
        dataset: SST-2 under ``official``.
        data_root: Folder with ``sst/``.

    Raises:
        DataError: If the trees are missing or damaged.
    """
    held_out = {sentence for group in _groups(dataset.splits["held_out"]) for sentence in group}
    texts, labels = read_phrases(data_root, held_out)
    queries = (text for name in dataset.reported_splits for text in dataset.splits[name].texts)
    leaking = rows_that_give_away(queries, texts)
    kept = [row for row in range(len(texts)) if row not in leaking]
    phrases = TextSplit(
        name="auxiliary",
        texts=[texts[row] for row in kept],
        labels=np.asarray(labels, dtype=np.int64)[kept],
        ids=[f"phrase-{row}" for row in kept],
    )
    note = f"The treebank's five-class labels of {len(kept):,} phrases of the training sentences are there to train on."
    return replace(dataset, auxiliary=phrases, auxiliary_label_names=list(PHRASE_LABELS), notes=[*dataset.notes, note])


def _groups(split: TextSplit) -> list[Group]:
    if split.groups is None:
        raise ValueError(f"split '{split.name}' has no source sentences")
    return split.groups


def _choose_sentences(train: TextSplit, sources: SentenceSources, seed: int) -> list[int]:
    """Rows of train that are whole sentences, chosen by seed; a sentence that is also a part of another never is."""
    groups = _groups(train)
    candidates = [
        row
        for row, (identity, group) in enumerate(zip(train.ids, groups, strict=True))
        if set(group) == sources.whole(identity)
    ]
    order = np.random.default_rng(derive_seed(seed, "sst2", "held out")).permutation(len(candidates))
    count = round(HELD_OUT_SHARE * len(candidates))
    return sorted(candidates[position] for position in order[:count].tolist())
