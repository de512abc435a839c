"""Writes the reviews of the demo corpus: draws a pattern's words and fills its slots.

Only ``random.Random.random`` is drawn from, whose sequence Python guarantees for a seed; so the text is the same on
every platform and Python version.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple, TypeVar

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
