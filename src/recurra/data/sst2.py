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

import gzip
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from recurra.core.configuration import derive_seed
from recurra.core.errors import DataError
from recurra.data.cleaning import clean_text, clean_texts
from recurra.data.dataset import Group, TextDataset, TextSplit, joined
from recurra.data.parquet import read_parquet_table
from recurra.data.releases import Release
from recurra.data.reviews import LABEL_NAMES
from recurra.data.words import rows_that_give_away

SOURCES_FILE = Path("sst/sst2_phrase_sources.parquet")
SENTENCES_FILE = Path("sst/sentences.parquet")
SST2 = Release(
    name="sst2",
    description="Stanford Sentiment Treebank, two classes: phrases and sentences of film reviews",
    parts=("train", "validation", "test_labeled"),
    columns=("sentence", "label", "idx"),
    public_name="stanfordnlp/sst2",
)
POOLED_TRAIN_SHARE = 0.8
POOLED_VALIDATION_SHARE = 0.1
HELD_OUT_SHARE = 1 / 8
_TREEBANK_SPLIT = {"train": "train", "validation": "dev", "test": "test"}


def read_sst2(data_root: Path | None) -> tuple[dict[str, TextSplit], dict[str, frozenset[int]] | None]:
    """Reads the parts of SST-2 with known labels; and, by row id, the sentences that equal the row."""
    # The test sentences on the hub have hidden labels.
    wanted = ["train", "validation", *(["test_labeled"] if "test_labeled" in SST2.present(data_root) else [])]
    constituent_of, whole_of = _read_sources(data_root) or (None, None)
    parts = {}
    for name, table in SST2.read(data_root, wanted).items():
        part = name.removesuffix("_labeled")
        parts[part] = _part(part, table.to_pydict(), constituent_of)
    return parts, whole_of


def _part(name: str, rows: dict[str, list[Any]], groups: dict[str, Group] | None) -> TextSplit:
    texts, labels = rows["sentence"], rows["label"]
    if not texts or not set(labels) <= {0, 1} or not all(isinstance(text, str) for text in texts):
        raise DataError(
            f"{name} of sst2 is not SST-2: sentence must be text and label 0 or 1, in one row at least; the layout is "
            f"{SST2.layout}"
        )
    ids = [f"{name}-{index}" for index in rows["idx"]]
    if groups is not None and (missing_ids := [identity for identity in ids if identity not in groups]):
        raise DataError(
            f"'{SOURCES_FILE}' has no row '{missing_ids[0]}'; it must describe the same release of SST-2 as sst2/"
        )
    row_groups = None if groups is None else [groups[identity] for identity in ids]
    return TextSplit(name, clean_texts(texts), np.asarray(labels, dtype=np.int64), ids, row_groups)


def _read_sources(data_root: Path | None) -> tuple[dict[str, Group], dict[str, frozenset[int]]] | None:
    """Source sentences of each row, by its id: those of which it is a constituent, and those that equal it.

    Only sentences of the row's own split count: ``the film`` is a constituent of sentences of every split.
    """
    if data_root is None or not all((data_root / file).is_file() for file in (SOURCES_FILE, SENTENCES_FILE)):
        return None
    sentences = read_parquet_table(data_root / SENTENCES_FILE, ("sentence_index", "split")).to_pydict()
    split_of = dict(zip(sentences["sentence_index"], sentences["split"], strict=True))
    names = ("split", "idx", "sentence_indices", "full_sentence_indices")
    rows = read_parquet_table(data_root / SOURCES_FILE, names).to_pydict()
    constituent_of: dict[str, Group] = {}
    whole_of: dict[str, frozenset[int]] = {}
    for part, index, inside, whole in zip(*(rows[name] for name in names), strict=True):
        treebank_split = _TREEBANK_SPLIT[part]
        identity = f"{part}-{index}"
        constituent_of[identity] = tuple(sentence for sentence in inside if split_of.get(sentence) == treebank_split)
        whole_of[identity] = frozenset(sentence for sentence in whole if split_of.get(sentence) == treebank_split)
    return constituent_of, whole_of


def load_sst2(protocol: str, split_seed: int, data_root: Path | None) -> TextDataset:
    """Loads SST-2 under ``official`` or ``pooled``; the seed chooses held-out sentences, or the random split."""
    parts, whole_of = read_sst2(data_root)
    dropped: dict[str, int] = {}
    for name, part in parts.items():
        rows = [row for row, text in enumerate(part.texts) if text]
        if len(rows) < len(part):
            dropped[f"{name}: empty after cleaning"] = len(part) - len(rows)
            parts[name] = part.select(rows)
    if protocol == "pooled":
        return _pooled(parts, split_seed, dropped)
    if whole_of is None:
        raise DataError(
            "sst2 protocol 'official' needs the source sentence of every phrase, and sst/sst2_phrase_sources.parquet "
            "is not there; give --data-root DIR with sst2/ and sst/, or take protocol=pooled"
        )
    train = parts["train"]
    groups = train.groups or []
    # A sentence that is also a part of another one is never held out.
    whole = [row for row, group in enumerate(groups) if set(group) == whole_of[train.ids[row]]]
    order = np.random.default_rng(derive_seed(split_seed, "sst2", "held out")).permutation(len(whole))
    held_out = sorted(whole[position] for position in order[: round(HELD_OUT_SHARE * len(whole))].tolist())
    sentences = {sentence for row in held_out for sentence in groups[row]}
    outside = [row for row, group in enumerate(groups) if sentences.isdisjoint(group)]
    reported = {"held_out": train.select(held_out, name="held_out")}
    reported |= {name: parts[name] for name in ("validation", "test") if name in parts}
    queries = (text for split in reported.values() for text in split.texts)
    leaking = rows_that_give_away(queries, [train.texts[row] for row in outside])
    rows = [row for position, row in enumerate(outside) if position not in leaking]
    notes = [f"{len(held_out)} whole sentences are held out of GLUE train, by source, to choose the checkpoint."]
    if "test" not in parts:
        notes.append("The public test sentences of SST-2 have hidden labels; no test split is reported.")
    return TextDataset(
        name="sst2",
        protocol="official",
        label_names=LABEL_NAMES,
        splits={"train": train.select(rows), **reported},
        selection_split="held_out",
        reported_splits=list(reported),
        dropped={
            **dropped,
            "train: phrase of a held-out sentence": len(train) - len(outside) - len(held_out),
            "train: holds a reported row word for word": len(leaking),
        },
        notes=notes,
    )


def _pooled(parts: dict[str, TextSplit], seed: int, dropped: dict[str, int]) -> TextDataset:
    pool = joined("pool", (parts["train"], parts["validation"]))
    order = np.random.default_rng(derive_seed(seed, "sst2", "pooled")).permutation(len(pool))
    first = int(POOLED_TRAIN_SHARE * len(pool))
    second = first + int(POOLED_VALIDATION_SHARE * len(pool))
    return TextDataset(
        name="sst2",
        protocol="pooled",
        label_names=LABEL_NAMES,
        splits={
            name: pool.select(rows, name=name)
            for name, rows in zip(("train", "validation", "test"), np.split(order, [first, second]), strict=True)
        },
        dropped=dropped,
        notes=[
            "Protocol 'pooled' is the published one and leaks: phrases of one sentence lie on both sides of the split."
        ],
    )


# The five-class labels of every phrase of the Stanford Sentiment Treebank's training sentences.
#
# SST-2 keeps two classes of five and leaves the neutral phrases out. The treebank's trees have all five (Socher et al.
# 2013, section 3), which also tell strong from weak and neutral phrases, for twice as many phrases. They are labels of
# another task, from 0 (very negative) to 4 (very positive), and are never reported.
TREES_FILE = Path("sst/trees/train.txt.gz")
_TOKEN = re.compile(r"\(|\)|[^\s()]+")
_ESCAPES = {"-LRB-": "(", "-RRB-": ")"}

Phrase = tuple[int, int, int]


def read_tree(line: str) -> tuple[list[str], list[Phrase]]:
    """Reads a tree such as ``(3 (2 It) (4 (2 's) (4 lovely)))``: words, and (first word, end, label) of each node."""
    words: list[str] = []
    phrases: list[Phrase] = []
    open_nodes: list[tuple[int, int]] = []
    tokens = iter(_TOKEN.findall(line))
    for token in tokens:
        if token == "(":
            open_nodes.append((len(words), int(next(tokens, ""))))
        elif token == ")":
            first, label = open_nodes.pop()
            phrases.append((first, len(words), label))
        else:
            words.append(_ESCAPES.get(token, token.replace("\\/", "/").replace("\\*", "*")))
    return words, phrases


def read_phrases(data_root: Path | None, held_out: set[int | str]) -> dict[str, int]:
    """Reads the labelled phrases of the training sentences, each text once, without those of held-out sentences."""
    if data_root is None or not (data_root / TREES_FILE).is_file():
        raise DataError(
            f"auxiliary=treebank needs {TREES_FILE} in the data root, and it is not there; "
            "give --data-root DIR with sst/trees/, or leave auxiliary out"
        )
    columns = read_parquet_table(data_root / SENTENCES_FILE, ("sentence_index", "split", "tree_idx")).to_pydict()
    rows = zip(columns["sentence_index"], columns["split"], columns["tree_idx"], strict=True)
    sentence_of = {tree: sentence for sentence, split, tree in rows if split == "train"}
    try:
        with gzip.open(data_root / TREES_FILE, "rt", encoding="utf-8") as lines:
            trees = [read_tree(line) for line in lines]
    except (OSError, EOFError, zlib.error, ValueError, IndexError) as error:
        raise DataError(f"'{data_root / TREES_FILE}' cannot be read ({error}); fetch it again") from error
    labels: dict[str, int] = {}
    hidden: set[str] = set()
    for number, (words, phrases) in enumerate(trees):
        texts = [clean_text(" ".join(words[first:end])) for first, end, _ in phrases]
        if sentence_of[number] in held_out:
            hidden.update(texts)
        for text, (_, _, label) in zip(texts, phrases, strict=True):
            labels.setdefault(text, label)
    return {text: label for text, label in labels.items() if text and text not in hidden}


def with_treebank_labels(dataset: TextDataset, data_root: Path | None) -> TextDataset:
    """Adds the treebank's five-class phrases to ``official`` SST-2, without those that training must not see."""
    held_out = {sentence for group in dataset.splits["held_out"].groups or () for sentence in group}
    labels = read_phrases(data_root, held_out)
    texts = list(labels)
    queries = (text for name in dataset.reported_splits for text in dataset.splits[name].texts)
    leaking = rows_that_give_away(queries, texts)
    rows = [row for row in range(len(texts)) if row not in leaking]
    phrases = TextSplit(
        name="auxiliary",
        texts=[texts[row] for row in rows],
        labels=np.array([labels[texts[row]] for row in rows], dtype=np.int64),
        ids=[f"phrase-{row}" for row in rows],
    )
    note = f"The treebank's five-class labels of {len(rows):,} phrases of the training sentences are there to train on."
    return replace(dataset, auxiliary=phrases, notes=[*dataset.notes, note])
