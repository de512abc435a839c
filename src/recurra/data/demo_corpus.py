"""The demo corpus: short reviews whose sentiment depends on word order, generated from a seed.

Nothing is downloaded: the corpus is a function of the seed, the sizes, and the words and patterns in
``demo_corpus.yaml``. What is held out, how hard it is and how that was measured: ``docs/explanation/demo-corpus.md``.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from recurra.core.configuration import derive_seed, parse_yaml
from recurra.data.cleaning import clean_texts
from recurra.data.dataset import TextDataset, TextSplit

MINIMUM_WORDS, MAXIMUM_WORDS, MAXIMUM_SENTENCES = 8, 40, 3
LABEL_NAMES = ("negative", "positive")
LABEL_NOISE = 0.02
# A test row shares no run of so many words with a row of train or validation.
NGRAM_WORDS = 8

# The share of plain statements in train and validation, in the units of the other shares: without so many, nothing
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
_BOTH_OF_A_PAIR = 0.6

_PLURAL = "*"
_WORD = re.compile(r"[a-z0-9']+")
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

# Invented names are two open syllables and an ending; about a fifth of the pairs of syllables is for the test split.
NAME_SYLLABLES = tuple(consonant + vowel for consonant in "bdfgklmnrstvz" for vowel in "aeiou")
NAME_ENDINGS = ("x", "th", "nd", "rn", "sk", "lm")

T = TypeVar("T")
_Words = tuple[str, ...]


def is_held_out_name(first: int, second: int) -> bool:
    """Whether names of these two syllables (places in `NAME_SYLLABLES`) are for the test split only."""
    return (first * 7 + second * 3) % 5 == 0


@cache
def vocabulary() -> Any:
    """The words and frames of ``demo_corpus.yaml``; what they mean stands there."""
    return parse_yaml((Path(__file__).parent / "demo_corpus.yaml").read_text(encoding="utf-8"))


class _Pattern(NamedTuple):
    """One sentence pattern; ``signs`` are those of its adjectives in a positive review, such as ``-+``."""

    pattern_id: str
    construction: str
    template: str
    signs: str
    held_out: bool
    twin: str | None = None
    operator: str = ""

    def has(self, *slots: str) -> bool:
        return any(f"{{{slot}}}" in self.template for slot in slots)

    @property
    def one_noun(self) -> bool:
        # Both adjectives speak of it.
        return self.has("a2") and not self.has("n2")

    @property
    def two_units(self) -> bool:
        return self.has("a2", "c2", "o2")


@cache
def _patterns() -> tuple[_Pattern, ...]:
    tables = vocabulary()
    operators: Mapping[str, str] = tables["operators"]
    made = []
    for name, frames in tables["frames"].items():
        both = [(frame, False) for frame in frames["all"]] + [(frame, True) for frame in frames["test"]]
        for number, ((template, signs, *twin), held_out) in enumerate(both, start=1):
            made.append(_Pattern(f"{name}.{number}", name, template, signs, held_out, *twin))
    for row, (name, operator) in enumerate(operators.items()):
        for column, (template, signs) in enumerate(tables["operator_frames"]):
            identity = f"{name}.{column + 1}"
            made.append(_Pattern(identity, name, template, signs, row == column, operator=operator))
    template, twin = "{moment}, and {n1} {be1} hardly {a1}{t1}.", "{hardly}, and {n1} {be1} {a1}{t1}."
    made.append(_Pattern("hardly.6", "hardly", template, "--", held_out=False, twin=twin))
    for number, (name, template, signs, twin, in_all_splits) in enumerate(tables["composed"], start=1):
        for key, operator in operators.items():
            identity = f"{name}.composed-{number}.{key}"
            made.append(_Pattern(identity, name, template, signs, key not in in_all_splits, twin, operator))
    return tuple(made)


@dataclass(frozen=True)
class _Unit:
    """A noun phrase, its adjective, and how a clause says the one of the other."""

    phrase: str
    plural: bool
    adjective: str
    style: str

    def clause(self, operator: str = "") -> str:
        predicate = f"{operator} {self.adjective}" if operator else self.adjective
        return self.style.format(n=self.phrase, be="were" if self.plural else "was", p=predicate)


class _Dice:
    """Choices from ``random()`` alone: the other methods of `random.Random` may change between Python versions."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def below(self, bound: int) -> int:
        return int(self._random() * bound)

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def pick_by(self, options: Sequence[T], cumulative: Sequence[float]) -> T:
        """Returns one of the options, by cumulative shares."""
        point = self._random() * cumulative[-1]
        return next(option for option, limit in zip(options, cumulative, strict=True) if point < limit)

    def shuffle(self, items: list[T]) -> None:
        for last in range(len(items) - 1, 0, -1):
            other = self.below(last + 1)
            items[last], items[other] = items[other], items[last]


class _ReviewWriter:
    """Writes the reviews of one split."""

    def __init__(self, seed: int, *, test: bool) -> None:
        self.dice = _Dice(seed)
        self.test = test
        self._tables = vocabulary()
        shares: Mapping[str, float] = self._tables["shares"]
        self._constructions = tuple(shares)
        self._shares = tuple(accumulate((shares if test else {**shares, "plain": _PLAIN_OUTSIDE_TEST}).values()))
        self._patterns: dict[tuple[str, bool], list[_Pattern]] = {}
        for pattern in _patterns():
            self._patterns.setdefault((pattern.construction, pattern.held_out), []).append(pattern)

    def pattern(self) -> _Pattern:
        """Draws a construction by its share, then one of its patterns."""
        construction = self.dice.pick_by(self._constructions, self._shares)
        held_out = self.test and self.dice.chance(_HELD_OUT_PATTERNS)
        return self.dice.pick(self._patterns[construction, held_out])

    def reviews(self, pattern: _Pattern, label: int, domain: str) -> list[tuple[str, str]]:
        """A review with the label and, if the pattern has pairs, its twin: of each the judgement and the whole text."""
        first, second = self._judgements(pattern, domain, positive=label == 1)
        slots = self._surroundings(pattern, domain)
        cores = [_fill(pattern.template, (first, second), slots)]
        if pattern.twin is not None:
            cores.append(_fill(pattern.twin, (first, second), slots))
        elif pattern.two_units and pattern.signs[0] != pattern.signs[1]:
            swapped = (second, first)
            if pattern.one_noun:
                swapped = replace(first, adjective=second.adjective), replace(second, adjective=first.adjective)
            cores.append(_fill(pattern.template, swapped, slots))
        before, after = self._remarks(cores[0], domain)
        return [(core, _capitalised(" ".join((*before, core, *after)))) for core in cores]

    def _word(self, lists: Mapping[str, Sequence[str]]) -> str:
        return self.dice.pick(lists["test" if self.test and self.dice.chance(_HELD_OUT_WORDS) else "all"])

    def _judgements(self, pattern: _Pattern, domain: str, *, positive: bool) -> tuple[_Unit, _Unit]:
        kinds = [kind for kind in self._tables["word_classes"] if kind["domain"] == domain]
        if pattern.has("it1", "them1"):
            # No "it" takes up people.
            kinds = [kind for kind in kinds if kind["adjectives_of"] != "people"]
        kind = self.dice.pick(kinds)
        # One noun of every test row is unknown; of a second one it is left to chance, and so is their order.
        unknown = [self.test, self.test and self.dice.chance(_SECOND_NOUN_HELD_OUT)]
        if pattern.two_units and not pattern.one_noun and self.dice.chance(0.5):
            unknown.reverse()
        good = [(sign == "+") is positive for sign in pattern.signs]
        noun = self._noun(kind, unknown[0])
        phrase = self._phrase(noun, domain)
        adjective = self._adjective(pattern, kind, good[0])
        first = _Unit(phrase, noun.endswith(_PLURAL), adjective, self.dice.pick(_STYLES))
        if pattern.one_noun:
            return first, replace(first, adjective=self._adjective(pattern, kind, good[1], adjective))
        kind = self.dice.pick(kinds)
        noun = self._noun(kind, unknown[1], noun)
        adjective = self._adjective(pattern, kind, good[1], adjective)
        phrase = self._phrase(noun, domain)
        return first, _Unit(phrase, noun.endswith(_PLURAL), adjective, self.dice.pick(_STYLES))

    def _noun(self, kind: Mapping[str, Any], unknown: bool, taken: str = "") -> str:
        return self.dice.pick([noun for noun in kind["test_nouns" if unknown else "nouns"] if noun != taken])

    def _adjective(self, pattern: _Pattern, kind: Mapping[str, Any], good: bool, taken: str = "") -> str:
        allowed = self.test or pattern.construction in self._tables["open_constructions"]
        reserved = allowed and self.dice.chance(_RESERVED)
        name = f"{'reserved_' if reserved else ''}{'good' if good else 'bad'}"
        words = f"{kind[name]} {self._tables['shared_adjectives'][kind['adjectives_of']][name]}"
        return self.dice.pick([word for word in words.split() if word != taken])

    def _name(self) -> str:
        unknown = self.test and self.dice.chance(_HELD_OUT_WORDS)
        while True:
            first, second = self.dice.below(len(NAME_SYLLABLES)), self.dice.below(len(NAME_SYLLABLES))
            if is_held_out_name(first, second) is unknown:
                name = NAME_SYLLABLES[first] + NAME_SYLLABLES[second] + self.dice.pick(NAME_ENDINGS)
                return name.capitalize()

    def _title(self, domain: str) -> str:
        title: str = self.dice.pick(self._tables["domains"][domain]["titles"])
        return title.format(name=self._name())

    def _companion(self) -> str:
        return self._word(self._tables["companions"]).format(name=self._name())

    def _phrase(self, noun: str, domain: str) -> str:
        noun = noun.removesuffix(_PLURAL)
        named, modified = self.dice.chance(_NAMED), self.dice.chance(_MODIFIER)
        if named:
            return f"the {self._name()} {noun}"
        if not modified:
            return f"the {noun}"
        modifier = self.dice.pick(self._tables["domains"][domain]["modifiers"])
        return f"the {noun} {modifier}".format(title=self._title(domain), name=self._name())

    def _surroundings(self, pattern: _Pattern, domain: str) -> dict[str, str]:
        tables, setting, dice = self._tables, self._tables["domains"][domain], self.dice
        who = self._companion()
        fact, no_fact = dice.pick(setting["facts"])
        moment, hardly = dice.pick(setting["moments"])
        degrees = [*tables["weak_degrees"], *tables["strong_degrees"]]
        return {
            "who": who,
            "op": pattern.operator,
            "group": dice.pick(tables["groups"]),
            "fact": fact.format(who=who),
            "nofact": no_fact.format(who=who),
            "moment": moment.format(who=who),
            "hardly": hardly.format(who=who),
            "lo": dice.pick(tables["weak_degrees"]),
            "hi": dice.pick(tables["strong_degrees"]),
            "t1": f" {self._word(setting['times'])}" if dice.chance(_TIME) else "",
            "t2": f" {self._word(setting['times'])}" if dice.chance(_TIME / 2) else "",
            "g1": f"{dice.pick(degrees)} " if dice.chance(0.6) else "",
            "g2": f"{dice.pick(degrees)} " if dice.chance(0.4) else "",
        }

    def _remarks(self, core: str, domain: str) -> tuple[list[str], list[str]]:
        """Neutral sentences before and after the judgement: none, one or two, and at least one beside a short one."""
        words, sentences = len(core.split()), core.count(". ") + 1
        none, at_most_one = self.dice.chance(_REMARKS[0]), self.dice.chance(_REMARKS[1])
        wanted = max(0 if none else 1 if at_most_one else 2, 1 if words < MINIMUM_WORDS else 0)
        chosen: list[str] = []
        places: tuple[list[str], list[str]] = ([], [])
        for _ in range(min(wanted, MAXIMUM_SENTENCES - sentences)):
            template = self._word(self._tables["domains"][domain]["remarks"])
            if template in chosen:
                continue
            remark = template.format(
                who=self._companion(),
                day=self._word(self._tables["days"]),
                number=self._word(self._tables["numbers"]),
                title=self._title(domain),
            )
            if words + len(remark.split()) <= MAXIMUM_WORDS:
                words += len(remark.split())
                chosen.append(template)
                places[self.dice.below(2)].append(remark)
        return places


def _capitalised(text: str) -> str:
    return _SENTENCE_START.sub(lambda start: start[0].upper(), text)


def _fill(template: str, units: Iterable[_Unit], slots: Mapping[str, str]) -> str:
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


@dataclass(frozen=True)
class DemoRow:
    """One review and where it comes from.

    Rows that share a ``pair`` are a minimal pair: the same words, opposite labels. Labels that are noise are
    ``flipped``.
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
    """Generates the rows of ``train``, ``validation`` and ``test``; the same seed and sizes give the same rows.

    Labels are balanced in each split. No judgement occurs twice, no row stands inside a row of an earlier split, and a
    test row shares no `NGRAM_WORDS` words in a row with any row of train or validation.
    """
    sizes = {"train": train_rows, "validation": validation_rows, "test": test_rows}
    judgements: set[str] = set()
    runs: set[_Words] = set()
    splits = {name: _split_rows(name, rows, seed, judgements, runs) for name, rows in sizes.items()}
    splits["train"] = _with_noise(splits["train"], _Dice(derive_seed(seed, "demo", "noise")))
    return splits


def _split_rows(name: str, size: int, seed: int, judgements: set[str], runs: set[_Words]) -> list[DemoRow]:
    """Rows of one split that are new beside the judgements so far, and the runs of words of earlier splits."""
    writer = _ReviewWriter(derive_seed(seed, "demo", name), test=name == "test")
    dice = writer.dice
    domains = tuple(vocabulary()["domains"])
    rows: list[DemoRow] = []
    next_label: dict[str, int] = {}
    pair = 0

    def is_new(judgement: str, text: str) -> bool:
        words = _words(text)
        if not MINIMUM_WORDS <= len(words) <= MAXIMUM_WORDS or judgement in judgements:
            return False
        written = (run in runs for run in _runs(words))
        return not (any(written) if name == "test" else all(written))

    while len(rows) < size:
        pattern = writer.pattern()
        domain = dice.pick(domains)
        # Labels take turns within each pattern, so that no pattern leans to one label.
        label = next_label.get(pattern.pattern_id, len(next_label) % 2)
        reviews = writer.reviews(pattern, label, domain)
        if size - len(rows) < 2 or not dice.chance(_BOTH_OF_A_PAIR):
            del reviews[1:]
        if not all(is_new(judgement, text) for judgement, text in reviews):
            continue
        for place, (judgement, text) in enumerate(reviews):
            judgements.add(judgement)
            origin = domain, pattern.construction, pattern.pattern_id, pattern.held_out, pair
            rows.append(DemoRow(text, (label + place) % 2, *origin))
        next_label[pattern.pattern_id] = (label + len(reviews)) % 2
        pair += 1
    for row in rows:
        runs.update(_runs(_words(row.text)))
    dice.shuffle(rows)
    return rows


def _words(text: str) -> _Words:
    return tuple(_WORD.findall(text.lower()))


def _runs(words: _Words) -> Iterator[_Words]:
    return (words[start : start + NGRAM_WORDS] for start in range(len(words) - NGRAM_WORDS + 1))


def _with_noise(rows: list[DemoRow], dice: _Dice) -> list[DemoRow]:
    for label in (0, 1):
        places = [place for place, row in enumerate(rows) if row.label == label and not row.flipped]
        dice.shuffle(places)
        for place in places[: round(len(rows) * LABEL_NOISE / 2)]:
            rows[place] = replace(rows[place], label=1 - label, flipped=True)
    return rows


def generate_demo(
    seed: int = 0, train_rows: int = 8000, validation_rows: int = 1000, test_rows: int = 1500
) -> TextDataset:
    """Generates the demo corpus: `demo_rows`, cleaned, with the number of the minimal pair as each row's group."""
    return TextDataset(
        name="demo",
        protocol="held-out",
        label_names=list(LABEL_NAMES),
        splits={
            name: TextSplit(
                name=name,
                texts=clean_texts([row.text for row in rows]),
                labels=np.array([row.label for row in rows], dtype=np.int64),
                ids=[f"{name}-{number:05d}" for number in range(len(rows))],
                groups=[(f"{name}-pair-{row.pair}",) for row in rows],
            )
            for name, rows in demo_rows(seed, train_rows, validation_rows, test_rows).items()
        },
        notes=[
            f"Generated (seed {seed}): not real reviews; use it to compare models, do not quote it as a result.",
            f"{LABEL_NOISE:.0%} of the train labels are wrong on purpose; validation and test labels are all right.",
            "Every test row has a noun that train lacks, more than two in five a sentence pattern that train lacks.",
        ],
    )
