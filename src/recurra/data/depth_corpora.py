"""Generates corpora from a seed whose answers take as many steps as the text says; no bag of words gives them.

Models are trained up to one difficulty and tested beyond it. The rows of each difficulty are a reported split of their
own beside ``test`` (difficulties of training) and ``beyond``, so that every record and table shows each.

``hops``     ``ab bd ca dc a + +``: from ``a``, each pair leads one step on and each ``+`` asks for one step. The pairs
             are one cycle through all letters in random order, so that no chain returns to its start early.
``parity``   ``of 3 1 4 is``: whether the sum of the digits is even. Training begins with one digit: from five on, no
             model learns anything.
``sum``      the same texts: the last digit of the sum.
``listops``  ``of [sub [add 1 2] 4] is``: the last digit of nested sums and differences, by depth. One part of a list is
             a digit and the other one the next list, in either order.

The words around digits and lists keep a text from being a part of a longer one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from recurra.core.configuration import derive_seed
from recurra.data.dataset import TextDataset, TextSplit, joined

PROTOCOL = "beyond"
LETTERS = "abcdefghi"
DIGITS = "0123456789"


@dataclass(frozen=True)
class DepthCorpus:
    """How the texts of a corpus are made.

    ``draw`` makes a text of a number of steps, and its label. The numbers of a level are tested together. The first
    ``inside`` of the rising ``levels`` are trained on, and so are the numbers in ``easier``, with the number of texts
    that each has: too few to test on. ``train_rows`` is the number of training texts.
    """

    name: str
    description: str
    unit: str
    label_names: Sequence[str]
    draw: Callable[[random.Random, int], tuple[str, int]]
    levels: Sequence[range]
    inside: int = 4
    easier: Mapping[int, int] = field(default_factory=dict)
    train_rows: int = 32_000


def _draw_hops(dice: random.Random, hops: int) -> tuple[str, int]:
    cycle = dice.sample(LETTERS, len(LETTERS))
    facts = [first + second for first, second in zip(cycle, [*cycle[1:], cycle[0]], strict=True)]
    dice.shuffle(facts)
    return " ".join([*facts, cycle[0], *"+" * hops]), LETTERS.index(cycle[hops])


def _draw_digits(dice: random.Random, count: int, modulus: int) -> tuple[str, int]:
    digits = dice.choices(DIGITS, k=count)
    return f"of {' '.join(digits)} is", sum(map(int, digits)) % modulus


def _draw_listops(dice: random.Random, depth: int) -> tuple[str, int]:
    text, value = _nested(dice, depth)
    return f"of {text} is", value % len(DIGITS)


def _nested(dice: random.Random, depth: int) -> tuple[str, int]:
    """A list of a depth, and its value; depth 0 is a digit."""
    if depth == 0:
        return (digit := dice.choice(DIGITS)), int(digit)
    digit = dice.choice(DIGITS)
    parts = [(digit, int(digit)), _nested(dice, depth - 1)]
    dice.shuffle(parts)
    (left_text, left), (right_text, right) = parts
    operation, value = dice.choice((("add", left + right), ("sub", left - right)))
    return f"[{operation} {left_text} {right_text}]", value


_FEW_DIGITS = {count: len(DIGITS) ** count for count in range(1, 5)}
_OF_LENGTH = [range(low, low + (4 if low < 21 else 5)) for low in (5, 9, 13, 17, 21, 26, 31, 36)]
DEPTH_CORPORA = (
    DepthCorpus(
        "hops",
        "Generated chains of facts: where a number of hops leads, 1 to 4 in training and 5 to 8 beyond",
        "hops",
        list(LETTERS),
        _draw_hops,
        [range(hops, hops + 1) for hops in range(1, 9)],
    ),
    DepthCorpus(
        "parity",
        "Generated digits: is their sum even; up to 20 in training and 21 to 40 beyond",
        "digits",
        ["even", "odd"],
        lambda dice, count: _draw_digits(dice, count, 2),
        _OF_LENGTH,
        easier=_FEW_DIGITS,
    ),
    DepthCorpus(
        "sum",
        "Generated digits: the last digit of their sum; up to 20 in training and 21 to 40 beyond",
        "digits",
        list(DIGITS),
        lambda dice, count: _draw_digits(dice, count, 10),
        _OF_LENGTH,
        easier=_FEW_DIGITS,
    ),
    DepthCorpus(
        "listops",
        "Generated nested sums and differences: the last digit; depth 1 to 4 in training and 5 to 8 beyond",
        "depth",
        list(DIGITS),
        _draw_listops,
        [range(depth, depth + 1) for depth in range(3, 9)],
        inside=2,
        easier={1: 200, 2: 8_000},
        train_rows=128_000,
    ),
)


def generate_depth(
    corpus: DepthCorpus,
    seed: int = 0,
    *,
    train_rows: int | None = None,
    validation_rows: int = 1_000,
    rows_per_level: int = 500,
) -> TextDataset:
    """Generates a corpus in which no text occurs twice; training has equally many rows of every number of steps."""
    seen: set[str] = set()
    inside, beyond = corpus.levels[: corpus.inside], corpus.levels[corpus.inside :]
    by_level = {
        level: _rows(corpus, seed, level_name(corpus, level), [level], count=rows_per_level, seen=seen)
        for level in corpus.levels
    }
    splits = [
        _rows(corpus, seed, "train", inside, count=train_rows or corpus.train_rows, seen=seen, easier=corpus.easier),
        _rows(corpus, seed, "validation", inside, count=validation_rows, seen=seen),
        joined("test", [by_level[level] for level in inside]),
        joined("beyond", [by_level[level] for level in beyond]),
        *by_level.values(),
    ]
    return TextDataset(
        name=corpus.name,
        protocol=PROTOCOL,
        label_names=list(corpus.label_names),
        splits={split.name: split for split in splits},
        selection_split="validation",
        reported_splits=[split.name for split in splits[2:]],
        notes=[f"Generated (seed {seed}). The split of each difficulty is a part of test or of beyond."],
    )


def level_name(corpus: DepthCorpus, level: range) -> str:
    """The split of a difficulty."""
    return f"{corpus.unit}-{level[0]}" + (f"-to-{level[-1]}" if len(level) > 1 else "")


def _rows(
    corpus: DepthCorpus,
    seed: int,
    name: str,
    levels: Sequence[range],
    *,
    count: int,
    seen: set[str],
    easier: Mapping[int, int] | None = None,
) -> TextSplit:
    """New rows with every number of steps equally often, or with all texts that it has."""
    dice = random.Random(derive_seed(seed, corpus.name, name))
    steps = [number for level in levels for number in level]
    share = count // (len(steps) + len(easier or ()))
    easier_numbers = [number for number, available in (easier or {}).items() for _ in range(min(available, share))]
    texts, labels = [], []
    for row in range(count):
        number = easier_numbers[row] if row < len(easier_numbers) else steps[row % len(steps)]
        text, label = corpus.draw(dice, number)
        while text in seen:
            text, label = corpus.draw(dice, number)
        seen.add(text)
        texts.append(text)
        labels.append(label)
    ids = [f"{name}-{row:05d}" for row in range(count)]
    return TextSplit(name, texts, np.array(labels, dtype=np.int64), ids)
