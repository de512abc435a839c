"""The demo corpus: short reviews whose sentiment depends on word order, generated from a seed.

Nothing is downloaded and nothing is stored: the corpus is a function of the seed and the sizes. What is held out, how
hard it is and how that was measured: ``docs/explanation/demo-corpus.md``.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple, TypeVar

import numpy as np

from recurra.core.configuration import derive_seed
from recurra.core.errors import ConfigurationError
from recurra.data.cleaning import clean_texts
from recurra.data.dataset import TextDataset, TextSplit
from recurra.data.demo_grammar import CONSTRUCTION_SHARES, OPEN_CONSTRUCTIONS, PATTERNS, Pattern
from recurra.data.demo_settings import (
    COMPANIONS,
    DAYS,
    DOMAINS,
    GROUPS,
    NAME_ENDINGS,
    NAME_SYLLABLES,
    NUMBERS,
    SETTINGS,
    STRONG_DEGREES,
    WEAK_DEGREES,
    WORD_CLASSES,
    Noun,
    WordClass,
    is_held_out_name,
)

MINIMUM_WORDS, MAXIMUM_WORDS, MAXIMUM_SENTENCES = 8, 40, 3

# The share of plain statements in train and validation, in the units of CONSTRUCTION_SHARES: without so many, nothing
# tells a model trained from scratch what the adjectives mean before it has to understand the constructions.
_PLAIN_OUTSIDE_TEST = 0.75
_HELD_OUT_PATTERNS = 0.4
_HELD_OUT_WORDS = 0.4
_SECOND_NOUN_HELD_OUT = 0.25
_RESERVED = 0.3
_TIME = 0.3
_NAMED = 0.25
_MODIFIER = 0.33
_REMARKS = (0.55, 0.92)

_SENTENCE_START = re.compile(r"(?:^|(?<=[.?!] ))[a-z]")
_STYLES = (
    "{n} {be} {p}",
    "{n} {be} {p}",
    "{n} {be} {p}",
    "I found {n} {p}",
    "{n} seemed {p}",
    "{n} struck me as {p}",
    "{n} turned out {p}",
)

T = TypeVar("T")


class Review(NamedTuple):
    """A review, and the sentence or two of it that decide its label."""

    judgement: str
    text: str


@dataclass(frozen=True)
class _Unit:
    phrase: str
    plural: bool
    adjective: str
    style: str

    def clause(self, operator: str = "") -> str:
        predicate = f"{operator} {self.adjective}" if operator else self.adjective
        return self.style.format(n=self.phrase, be="were" if self.plural else "was", p=predicate)


class Dice:
    """Choices from ``random()`` alone: the other methods of `random.Random` may change between Python versions."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        """Is true with this probability."""
        return self._random() < probability

    def pick(self, options: Sequence[T]) -> T:
        """Returns one of the options, each as likely."""
        return options[int(self._random() * len(options))]

    def below(self, bound: int) -> int:
        """Returns a whole number of at least 0 and below ``bound``."""
        return int(self._random() * bound)

    def pick_by(self, options: Sequence[T], cumulative: Sequence[float]) -> T:
        """Returns one of the options, by cumulative shares."""
        point = self._random() * cumulative[-1]
        return next(option for option, limit in zip(options, cumulative, strict=True) if point < limit)

    def shuffle(self, items: list[T]) -> None:
        """Shuffles in place."""
        for last in range(len(items) - 1, 0, -1):
            other = self.below(last + 1)
            items[last], items[other] = items[other], items[last]


class ReviewWriter:
    """Writes the reviews of one split.

    Args:
        seed: Seed of every choice.
        test: Whether held-out patterns and words may be used (of nouns: must).
    """

    def __init__(self, seed: int, *, test: bool) -> None:
        self.dice = Dice(seed)
        self.test = test
        self._constructions = tuple(CONSTRUCTION_SHARES)
        shares = CONSTRUCTION_SHARES if test else {**CONSTRUCTION_SHARES, "plain": _PLAIN_OUTSIDE_TEST}
        self._shares = tuple(accumulate(shares.values()))
        self._patterns = {
            (construction, held_out): [p for p in PATTERNS if p.construction == construction and p.held_out is held_out]
            for construction in self._constructions
            for held_out in (False, True)
        }
        self._classes = {domain: [kind for kind in WORD_CLASSES if kind.domain == domain] for domain in DOMAINS}

    def pattern(self) -> Pattern:
        """Draws a construction by its share, then one of its patterns."""
        construction = self.dice.pick_by(self._constructions, self._shares)
        held_out = self.test and self.dice.chance(_HELD_OUT_PATTERNS)
        return self.dice.pick(self._patterns[construction, held_out])

    def reviews(self, pattern: Pattern, label: int, domain: str) -> list[Review]:
        """Writes a review with the label and, if the pattern has minimal pairs, its twin for the other label."""
        polarity = 1 if label == 1 else -1
        first, second = self._judgements(pattern, domain, polarity)
        slots = self._surroundings(pattern, domain)
        cores = [_fill(pattern.template, (first, second), slots)]
        if pattern.twin is not None:
            cores.append(_fill(pattern.twin, (first, second), slots))
        elif pattern.pairs and pattern.one_noun:
            swapped = (replace(first, adjective=second.adjective), replace(second, adjective=first.adjective))
            cores.append(_fill(pattern.template, swapped, slots))
        elif pattern.pairs:
            cores.append(_fill(pattern.template, (second, first), slots))
        before, after = self._remarks(cores[0], domain)
        return [Review(core, _capitalised(" ".join((*before, core, *after)))) for core in cores]

    def _word(self, lists: tuple[tuple[T, ...], tuple[T, ...]]) -> T:
        return self.dice.pick(lists[1] if self.test and self.dice.chance(_HELD_OUT_WORDS) else lists[0])

    def _judgements(self, pattern: Pattern, domain: str, polarity: int) -> tuple[_Unit, _Unit]:
        kinds = [kind for kind in self._classes[domain] if not (kind.person and pattern.needs_pronoun)]
        kind = self.dice.pick(kinds)
        # One noun of every test row is unknown; of a second one it is left to chance, and so is their order.
        unknown = [self.test, self.test and self.dice.chance(_SECOND_NOUN_HELD_OUT)]
        if pattern.two_units and not pattern.one_noun and self.dice.chance(0.5):
            unknown.reverse()
        noun = self._noun(kind, unknown[0], ())
        phrase = self._phrase(noun, domain)
        adjective = self._adjective(pattern, kind, pattern.signs[0] * polarity, ())
        first = _Unit(phrase, noun.plural, adjective, self.dice.pick(_STYLES))
        if pattern.one_noun:
            other = self._adjective(pattern, kind, pattern.signs[1] * polarity, (adjective,))
            return first, replace(first, adjective=other)
        kind = self.dice.pick(kinds)
        second = self._noun(kind, unknown[1], (noun,))
        other = self._adjective(pattern, kind, pattern.signs[1] * polarity, (adjective,))
        return first, _Unit(self._phrase(second, domain), second.plural, other, self.dice.pick(_STYLES))

    def _noun(self, kind: WordClass, unknown: bool, taken: Iterable[Noun]) -> Noun:
        options = kind.held_out_nouns if unknown else kind.nouns
        return self.dice.pick([noun for noun in options if noun not in taken])

    def _name(self) -> str:
        unknown = self.test and self.dice.chance(_HELD_OUT_WORDS)
        while True:
            first, second = self.dice.below(len(NAME_SYLLABLES)), self.dice.below(len(NAME_SYLLABLES))
            if is_held_out_name(first, second) is unknown:
                name = NAME_SYLLABLES[first] + NAME_SYLLABLES[second] + self.dice.pick(NAME_ENDINGS)
                return name.capitalize()

    def _title(self, domain: str) -> str:
        return self.dice.pick(SETTINGS[domain].titles).format(name=self._name())

    def _companion(self) -> str:
        return self._word(COMPANIONS).format(name=self._name())

    def _phrase(self, noun: Noun, domain: str) -> str:
        point = self.dice.chance(_NAMED), self.dice.chance(_MODIFIER)
        if point[0]:
            return f"the {self._name()} {noun.word}"
        if not point[1]:
            return f"the {noun.word}"
        modifier = self.dice.pick(SETTINGS[domain].modifiers)
        return f"the {noun.word} {modifier}".format(title=self._title(domain), name=self._name())

    def _adjective(self, pattern: Pattern, kind: WordClass, polarity: int, taken: Iterable[str]) -> str:
        allowed = self.test or pattern.construction in OPEN_CONSTRUCTIONS
        options = kind.reserved if allowed and self.dice.chance(_RESERVED) else kind.adjectives
        return self.dice.pick([word for word in options[polarity] if word not in taken])

    def _surroundings(self, pattern: Pattern, domain: str) -> dict[str, str]:
        setting = SETTINGS[domain]
        who = self._companion()
        fact, no_fact = self.dice.pick(setting.facts)
        moment, hardly = self.dice.pick(setting.moments)
        degrees = (*WEAK_DEGREES, *STRONG_DEGREES)
        return {
            "who": who,
            "op": pattern.operator,
            "group": self.dice.pick(GROUPS),
            "fact": fact.format(who=who),
            "nofact": no_fact.format(who=who),
            "moment": moment.format(who=who),
            "hardly": hardly.format(who=who),
            "lo": self.dice.pick(WEAK_DEGREES),
            "hi": self.dice.pick(STRONG_DEGREES),
            "t1": f" {self._word(setting.times)}" if self.dice.chance(_TIME) else "",
            "t2": f" {self._word(setting.times)}" if self.dice.chance(_TIME / 2) else "",
            "g1": f"{self.dice.pick(degrees)} " if self.dice.chance(0.6) else "",
            "g2": f"{self.dice.pick(degrees)} " if self.dice.chance(0.4) else "",
        }

    def _remarks(self, core: str, domain: str) -> tuple[list[str], list[str]]:
        """Neutral sentences before and after the judgement: none, one or two, and at least one beside a short one."""
        setting = SETTINGS[domain]
        words, sentences = len(core.split()), core.count(". ") + 1
        point = self.dice.chance(_REMARKS[0]), self.dice.chance(_REMARKS[1])
        wanted = max(0 if point[0] else 1 if point[1] else 2, 1 if words < MINIMUM_WORDS else 0)
        chosen: list[str] = []
        places: tuple[list[str], list[str]] = ([], [])
        for _ in range(min(wanted, MAXIMUM_SENTENCES - sentences)):
            template = self._word(setting.remarks)
            if template in chosen:
                continue
            remark = template.format(
                who=self._companion(),
                day=self._word(DAYS),
                number=self._word(NUMBERS),
                title=self._title(domain),
            )
            if words + len(remark.split()) <= MAXIMUM_WORDS:
                words += len(remark.split())
                chosen.append(template)
                places[self.dice.below(2)].append(remark)
        return places


def _capitalised(text: str) -> str:
    return _SENTENCE_START.sub(lambda start: start[0].upper(), text)


def _fill(template: str, units: tuple[_Unit, _Unit], slots: Mapping[str, str]) -> str:
    values = dict(slots)
    for number, unit in enumerate(units, start=1):
        values[f"n{number}"] = unit.phrase
        values[f"a{number}"] = unit.adjective
        values[f"be{number}"] = "were" if unit.plural else "was"
        values[f"it{number}"] = "they" if unit.plural else "it"
        values[f"them{number}"] = "them" if unit.plural else "it"
        values[f"c{number}"] = unit.clause()
        values[f"o{number}"] = unit.clause(slots["op"])
    return template.format_map(values)


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
