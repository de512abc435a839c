"""The demo corpus: short reviews whose sentiment depends on word order, generated from a seed.

Nothing is downloaded and nothing is stored: the corpus is a function of the seed and the sizes. What is held out, how
hard it is and how that was measured: ``docs/explanation/demo-corpus.md``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from recurra.core.errors import ConfigurationError
from recurra.core.seeds import derive_seed
from recurra.data.cleaning import clean_texts
from recurra.data.dataset import TextDataset, TextSplit
from recurra.data.demo_grammar import Pattern
from recurra.data.demo_sentences import MAXIMUM_WORDS, MINIMUM_WORDS, Dice, Review, ReviewWriter
from recurra.data.demo_settings import DOMAINS

LABEL_NAMES = ("negative", "positive")
LABEL_NOISE = 0.02
NGRAM_WORDS = 8
MAXIMUM_ROWS = 50_000

_BOTH_OF_A_PAIR = 0.6
_WORD = re.compile(r"[a-z0-9']+")

_Words = tuple[str, ...]


@dataclass(frozen=True)
class DemoRow:
    """One review and where it comes from.

    Attributes:
        text: The review as written, before cleaning.
        label: 1 is positive, 0 negative; in train a share of `LABEL_NOISE` is wrong.
        domain: ``restaurants``, ``films`` or ``gadgets``.
        construction: What decides the label, for example ``contrast-but``.
        pattern_id: The sentence pattern.
        held_out_pattern: Whether train and validation have no row of this pattern.
        pair: Number within the split; two rows that share it are a minimal pair: the same words, opposite labels.
        flipped: Whether the label was turned over as noise (train only).
    """

    text: str
    label: int
    domain: str
    construction: str
    pattern_id: str
    held_out_pattern: bool
    pair: int
    flipped: bool = False


def demo_rows(
    seed: int = 0, train_rows: int = 8000, validation_rows: int = 1000, test_rows: int = 1500
) -> dict[str, list[DemoRow]]:
    """Generates the rows of the splits ``train``, ``validation`` and ``test``.

    Labels are balanced in each split. No judgement occurs twice, no row stands inside a row of an earlier split, and a
    test row shares no `NGRAM_WORDS` words in a row with any row of train or validation.

    Args:
        seed: The same seed and sizes give the same rows, everywhere.
        train_rows: Rows of train, 1 to `MAXIMUM_ROWS`; the other two alike.
        validation_rows: Rows of validation.
        test_rows: Rows of test.

    Raises:
        ConfigurationError: For a size outside the range.
    """
    sizes = {"train": train_rows, "validation": validation_rows, "test": test_rows}
    for name, rows in sizes.items():
        if not 1 <= rows <= MAXIMUM_ROWS:
            raise ConfigurationError(
                f"demo corpus: {name}_rows is {rows}; allowed: 1 to {MAXIMUM_ROWS}; choose a size in that range"
            )
    earlier = _Earlier()
    splits = {name: _split_rows(name, rows, seed, earlier) for name, rows in sizes.items()}
    splits["train"] = _with_noise(splits["train"], Dice(derive_seed(seed, "demo", "noise")))
    return splits


def generate_demo(
    seed: int = 0, train_rows: int = 8000, validation_rows: int = 1000, test_rows: int = 1500
) -> TextDataset:
    """Generates the demo corpus: `demo_rows`, cleaned, with the number of the minimal pair as each row's group.

    Raises:
        ConfigurationError: For a size outside the range.
    """
    rows = demo_rows(seed, train_rows, validation_rows, test_rows)
    return TextDataset(
        name="demo",
        protocol="held-out",
        label_names=list(LABEL_NAMES),
        splits={name: _text_split(name, part) for name, part in rows.items()},
        selection_split="validation",
        reported_splits=["validation", "test"],
        notes=[
            f"Generated (seed {seed}): not real reviews; use it to compare models, do not quote it as a result.",
            f"{LABEL_NOISE:.0%} of the train labels are wrong on purpose; validation and test labels are all right.",
            "Every test row has a noun that train lacks, more than two in five a sentence pattern that train lacks.",
        ],
    )


class _Earlier:
    """What was written before: judgements, and runs of `NGRAM_WORDS` words of the splits that are complete."""

    def __init__(self) -> None:
        self.judgements: set[str] = set()
        self.runs: set[_Words] = set()

    def allows(self, review: Review, *, strict: bool) -> bool:
        """Whether the review is new: its judgement is, and no run (``strict``) or not every run was written before."""
        words = _words(review.text)
        if not MINIMUM_WORDS <= len(words) <= MAXIMUM_WORDS or review.judgement in self.judgements:
            return False
        written = (run in self.runs for run in _runs(words))
        return not (any(written) if strict else all(written))


def _words(text: str) -> _Words:
    return tuple(_WORD.findall(text.lower()))


def _runs(words: _Words) -> Iterator[_Words]:
    return (words[start : start + NGRAM_WORDS] for start in range(len(words) - NGRAM_WORDS + 1))


def _split_rows(name: str, size: int, seed: int, earlier: _Earlier) -> list[DemoRow]:
    writer = ReviewWriter(derive_seed(seed, "demo", name), test=name == "test")
    dice = writer.dice
    rows: list[DemoRow] = []
    next_label: dict[str, int] = {}
    pair = 0
    while len(rows) < size:
        pattern = writer.pattern()
        domain = dice.pick(DOMAINS)
        # Labels take turns within each pattern, so that no pattern leans to one label.
        label = next_label.get(pattern.pattern_id, len(next_label) % 2)
        reviews = writer.reviews(pattern, label, domain)
        if size - len(rows) < 2 or not dice.chance(_BOTH_OF_A_PAIR):
            del reviews[1:]
        if not all(earlier.allows(review, strict=name == "test") for review in reviews):
            continue
        for place, review in enumerate(reviews):
            earlier.judgements.add(review.judgement)
            rows.append(_row(review.text, (label + place) % 2, domain, pattern, pair))
        next_label[pattern.pattern_id] = (label + len(reviews)) % 2
        pair += 1
    for row in rows:
        earlier.runs.update(_runs(_words(row.text)))
    dice.shuffle(rows)
    return rows


def _row(text: str, label: int, domain: str, pattern: Pattern, pair: int) -> DemoRow:
    return DemoRow(text, label, domain, pattern.construction, pattern.pattern_id, pattern.held_out, pair)


def _with_noise(rows: list[DemoRow], dice: Dice) -> list[DemoRow]:
    """Turns the label of a share of the rows over, as many of each label."""
    for label in (0, 1):
        places = [place for place, row in enumerate(rows) if row.label == label and not row.flipped]
        dice.shuffle(places)
        for place in places[: round(len(rows) * LABEL_NOISE / 2)]:
            rows[place] = replace(rows[place], label=1 - label, flipped=True)
    return rows


def _text_split(name: str, rows: list[DemoRow]) -> TextSplit:
    return TextSplit(
        name=name,
        texts=clean_texts([row.text for row in rows]),
        labels=np.array([row.label for row in rows], dtype=np.int64),
        ids=[f"{name}-{number:05d}" for number in range(len(rows))],
        groups=[(f"{name}-pair-{row.pair}",) for row in rows],
    )
