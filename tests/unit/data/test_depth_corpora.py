"""Corpora that need depth: the labels follow from the texts alone, nothing repeats, a bag of words is at chance."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset
from recurra.data.dataset import TextDataset
from recurra.data.depth_corpora import DEPTH_CORPORA, generate_depth

CORPORA = {corpus.name: corpus for corpus in DEPTH_CORPORA}


@cache
def small(name: str, seed: int = 0) -> TextDataset:
    return generate_depth(CORPORA[name], seed, train_rows=2_400, validation_rows=160, rows_per_level=100)


def follow(text: str) -> tuple[str, int]:
    words = text.split()
    where = next(word for word in words if len(word) == 1 and word != "+")
    for _ in range(hops := words.count("+")):
        where = next(word[1] for word in words if len(word) == 2 and word[0] == where)
    return where, hops


def add(text: str) -> tuple[int, int]:
    digits = [int(word) for word in text.split() if word.isdigit()]
    return sum(digits), len(digits)


def reduce(text: str) -> tuple[str, int]:
    """Rewrites innermost lists by their values until none is left."""
    text, depth = text.removeprefix("of ").removesuffix(" is"), 0
    while "[" in text:
        depth += 1

        def value(found: re.Match[str]) -> str:
            first, *others = map(int, found[2].split())
            return str(first + sum(others) if found[1] == "add" else first - sum(others))

        text = re.sub(r"\[(add|sub) ([-\d ]+)\]", value, text)
    return str(int(text) % 10), depth


def answer(name: str, text: str) -> tuple[str, int]:
    if name == "hops":
        return follow(text)
    if name == "listops":
        return reduce(text)
    total, steps = add(text)
    return ("odd" if total % 2 else "even") if name == "parity" else str(total % 10), steps


@pytest.mark.parametrize("name", CORPORA)
def test_labels_and_difficulties_follow_from_the_texts(name: str) -> None:
    corpus, dataset = CORPORA[name], small(name)
    for split in dataset.splits.values():
        levels = corpus.levels[: corpus.inside]
        if split.name == "beyond":
            levels = corpus.levels[corpus.inside :]
        elif split.name.startswith(corpus.unit):
            levels = [level for level in corpus.levels if split.name.split("-")[1] == str(level[0])]
        for text, label in zip(split.texts, split.labels, strict=True):
            expected, steps = answer(name, text)
            assert dataset.label_names[label] == expected
            easier = split.name == "train" and steps in corpus.easier
            assert easier or any(steps in level for level in levels)
    # No text is in two splits, and every difficulty is a part.
    parts = [split for split in dataset.splits.values() if split.name not in ("test", "beyond")]
    texts = [text for split in parts for text in split.texts]
    assert len(set(texts)) == len(texts)
    tested = [text for split in parts if split.name not in ("train", "validation") for text in split.texts]
    assert dataset.splits["test"].texts + dataset.splits["beyond"].texts == tested
    assert dataset.reported_splits[:2] == ["test", "beyond"]
    assert len(dataset.reported_splits) == 2 + len(corpus.levels)


@pytest.mark.parametrize("name", ["parity", "sum"])
def test_training_begins_with_one_digit(name: str) -> None:
    counts = Counter(add(text)[1] for text in small(name).splits["train"].texts)
    assert [counts[steps] for steps in range(1, 5)] == [10, 100, 120, 120] and set(counts) == set(range(1, 21))
    assert max(counts.values()) - min(counts[steps] for steps in range(5, 21)) <= 1


@pytest.mark.parametrize("name", CORPORA)
def test_a_bag_of_words_is_at_chance(name: str) -> None:
    dataset = small(name)
    words = CountVectorizer(token_pattern=r"[^\s\[\]]+", ngram_range=(1, 2))
    train, test = dataset.splits["train"], dataset.splits["test"]
    model = LogisticRegression(C=0.1, max_iter=200).fit(words.fit_transform(train.texts), train.labels)
    right = float(np.mean(model.predict(words.transform(test.texts)) == test.labels))
    # On hops the start is never the answer, which leaves one label fewer.
    chance = 1 / (dataset.num_labels - (name == "hops"))
    assert right < chance + 4 * np.sqrt(chance * (1 - chance) / len(test))


def test_seeds_change_the_rows_and_nothing_else_does() -> None:
    prints = [small.__wrapped__("hops", seed).fingerprint for seed in (0, 0, 1)]
    assert prints[0] == prints[1] != prints[2]
    whole = load_dataset(DataConfig(name="hops"))
    assert {name: len(split) for name, split in whole.splits.items() if "-" not in name} == {
        "train": 32_000, "validation": 1_000, "test": 2_000, "beyond": 2_000
    }  # fmt: skip
