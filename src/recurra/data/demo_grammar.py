"""Sentence patterns of the demo corpus: what each construction does to the polarity of its adjectives.

A pattern is a template with slots for two units (a noun and an adjective) and says which polarity each adjective has
**in a positive review**; in a negative one both are turned over. So the label follows from the construction and the
adjectives together, and never from the adjectives alone. A minimal pair is made in one of two ways:

* the two adjectives are of opposite polarity: the units change places ("the soup was bland, but the owner was polite"
  and "the owner was polite, but the soup was bland");
* the pattern has a ``twin``, a second template of the same words ("we had booked, and the soup was not bland" and "we
  had not booked, and the soup was bland").

Slots: ``{n1}`` noun phrase, ``{be1}`` was/were, ``{a1}`` adjective, ``{c1}`` a whole clause of unit 1, ``{o1}`` the
same with the operator, ``{op}`` the operator, ``{it1}`` and ``{them1}`` pronouns, ``{t1}`` ``{t2}`` an optional time,
``{g1}`` ``{g2}`` an optional degree, ``{lo}`` ``{hi}`` a weak and a strong degree, ``{fact}`` ``{nofact}`` a neutral
clause without and with "not", ``{moment}`` ``{hardly}`` one without and with "hardly", ``{who}`` a companion,
``{group}`` people behind "nobody" and "everybody".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Signs = tuple[int, int]

_SAME: Signs = (1, 1)
_TURNED: Signs = (-1, -1)
_SECOND: Signs = (-1, 1)
_FIRST: Signs = (1, -1)

# By construction: what turns the adjective behind it over.
OPERATORS: Mapping[str, str] = {
    "far-from": "far from",
    "anything-but": "anything but",
    "hardly": "hardly",
    "by-no-means": "by no means",
    "not-at-all": "not at all",
}


@dataclass(frozen=True)
class Pattern:
    """One sentence pattern.

    Attributes:
        pattern_id: ``construction.number``; operator patterns add the operator.
        construction: For analysis, for example ``contrast-but``.
        template: Sentence with slots (see the module).
        signs: Polarity of the two adjectives in a positive review.
        held_out: Whether only the test split uses it.
        twin: Template of the same words and the opposite label, if the units cannot just change places.
        operator: What fills ``{op}``.
    """

    pattern_id: str
    construction: str
    template: str
    signs: Signs
    held_out: bool
    twin: str | None = None
    operator: str = ""

    @property
    def one_noun(self) -> bool:
        """Whether both adjectives speak of the same noun."""
        return "{a2}" in self.template and "{n2}" not in self.template

    @property
    def needs_pronoun(self) -> bool:
        """Whether a pronoun takes the noun up."""
        return "{it1}" in self.template or "{them1}" in self.template

    @property
    def pairs(self) -> bool:
        """Whether it has minimal pairs."""
        return self.twin is not None or (self.two_units and self.signs[0] != self.signs[1])

    @property
    def two_units(self) -> bool:
        """Whether it speaks of a second adjective."""
        return any(slot in self.template for slot in ("{a2}", "{c2}", "{o2}"))


# By construction: share of the rows, then (template, signs[, twin]) of all splits and of the test split only.
_Frame = tuple[str, Signs] | tuple[str, Signs, str]

CONSTRUCTION_SHARES: Mapping[str, float] = {
    "plain": 0.12,
    "negation": 0.13,
    "double-negation": 0.03,
    "far-from": 0.04,
    "anything-but": 0.04,
    "hardly": 0.04,
    "by-no-means": 0.03,
    "not-at-all": 0.03,
    "contrast-but": 0.14,
    "contrast-although": 0.12,
    "not-only": 0.06,
    "not-but": 0.06,
    "comparison": 0.04,
    "expectation": 0.05,
    "opinion": 0.04,
    "change": 0.03,
    "degree": 0.03,
}

# Where train uses reserved adjectives; negation, operators and contrast with them are for the test split.
OPEN_CONSTRUCTIONS = frozenset({"plain", "not-only", "not-but", "comparison", "expectation", "opinion", "change"})

_FRAMES: Mapping[str, tuple[tuple[_Frame, ...], tuple[_Frame, ...]]] = {
    "plain": (
        (
            ("{n1} {be1} {g1}{a1}{t1}.", _SAME),
            ("{c1}{t1}, and {c2}.", _SAME),
            ("{n1} {be1} {g1}{a1} and {n2} {be2} {g2}{a2}{t1}.", _SAME),
            ("we all agreed that {n1} {be1} {g1}{a1}{t1}.", _SAME),
            ("I found {n1} {g1}{a1}, and {n2} {g2}{a2} as well.", _SAME),
            ("{n1} {be1} {a1} and {a2}{t1}.", _SAME),
        ),
        (
            ("in a word, {n1} {be1} {a1}{t1}.", _SAME),
            ("what I remember most is how {a1} {n1} {be1}{t1}.", _SAME),
        ),
    ),
    "negation": (
        (
            ("{fact}, and {n1} {be1} not {a1}{t1}.", _TURNED, "{nofact}, and {n1} {be1} {a1}{t1}."),
            ("I would not say that {n1} {be1} {a1}{t1}, and {fact}.", _TURNED,
             "I would say that {n1} {be1} {a1}{t1}, and {nofact}."),
            ("{fact}, and I would not call {n1} {a1}{t1}.", _TURNED, "{nofact}, and I would call {n1} {a1}{t1}."),
            ("I could not describe {n1} as {a1}{t1}, and {fact}.", _TURNED,
             "I could describe {n1} as {a1}{t1}, and {nofact}."),
            ("it is not true that {n1} {be1} {a1}{t1}, and {fact}.", _TURNED,
             "it is true that {n1} {be1} {a1}{t1}, and {nofact}."),
            ("{n1} {be1} not {a1}{t1}, and {n2} {be2} {a2}.", _SECOND),
            ("{n1} {be1} {a1}{t1}, and {n2} {be2} not {a2}.", _FIRST),
            ("nobody {group} found {n1} {a1}{t1}, and everybody found {n2} {a2}.", _SECOND),
            ("everybody {group} found {n1} {a1}{t1}, and nobody found {n2} {a2}.", _FIRST),
            ("I never once found {n1} {a1}{t1}, and I always found {n2} {a2}.", _SECOND),
            ("at no point did {n1} seem {a1}, and at every point {n2} seemed {a2}.", _SECOND),
        ),
        (
            ("nobody {group} would call {n1} {a1}{t1}, and everybody would call {n2} {a2}.", _SECOND),
            ("{n1} never once seemed {a1}{t1}, and {n2} always seemed {a2}.", _SECOND),
            ("I would say that {n1} {be1} not {a1}{t1}, and {fact}.", _TURNED,
             "I would say that {n1} {be1} {a1}{t1}, and {nofact}."),
            ("it would not be true to call {n1} {a1}{t1}, and {fact}.", _TURNED,
             "it would be true to call {n1} {a1}{t1}, and {nofact}."),
            ("I could describe {n1} as {a1}{t1}, and I could not describe {n2} as {a2}.", _FIRST),
        ),
    ),
    "contrast-but": (
        (
            ("{c1}{t1}, but {c2}{t2}.", _SECOND),
            ("{c1}{t1}. But {c2}{t2}.", _SECOND),
            ("{c1}{t1}, yet {c2}.", _SECOND),
            ("{c1}{t1}. {c2}, though.", _SECOND),
            ("{c1}{t1}. However, {c2}{t2}.", _SECOND),
            ("{c1}{t1}; still, {c2}.", _SECOND),
        ),
        (
            ("{n1} {be1} {a1}{t1}; {n2}, however, {be2} {a2}.", _SECOND),
            ("I agree that {n1} {be1} {a1}{t1}, but {n2} {be2} {a2}.", _SECOND),
            ("{n1} {be1}, as {who} says, {a1}, but {n2} {be2} {a2}{t1}.", _SECOND),
        ),
    ),
    "contrast-although": (
        (
            ("although {c1}{t1}, {c2}{t2}.", _SECOND),
            ("{c1}{t1}, although {c2}.", _FIRST),
            ("even though {c1}{t1}, {c2}.", _SECOND),
            ("{c1}{t1}, even though {c2}.", _FIRST),
            ("despite {n1} being {a1}{t1}, I found {n2} {a2}.", _SECOND),
            ("{c1}{t1}, though {c2}.", _FIRST),
        ),
        (
            ("I found {n1} {a1}{t1}, despite {n2} being {a2}.", _FIRST),
            ("{n1}, although {a1}{t1}, {be1} {a2}.", _SECOND),
            ("{n1} {be1} {a1}{t1}, although {a2}.", _FIRST),
            ("though {c1}{t1}, {c2}.", _SECOND),
        ),
    ),
    "not-only": (
        (
            ("{n1} {be1} not only {a1} but also {a2}{t1}.", _SAME),
            ("not only {be1} {n1} {a1}{t1}, but {n2} {be2} also {a2}.", _SAME),
            ("not only did {n1} seem {a1}{t1}, but {n2} also seemed {a2}.", _SAME),
        ),
        (
            ("I found {n1} not only {a1} but also {a2}{t1}.", _SAME),
            ("{n1} struck me as not only {a1} but also {a2}{t1}.", _SAME),
        ),
    ),
    "not-but": (
        (
            ("{n1} {be1} not {a1} but {a2}{t1}.", _SECOND),
            ("{n1} {be1} {a1}, not {a2}{t1}.", _FIRST),
            ("I would call {n1} not {a1} but {a2}.", _SECOND),
            ("I would call {n1} {a1}, not {a2}.", _FIRST),
            ("{n1} {be1} {a1} rather than {a2}{t1}.", _FIRST),
        ),
        (
            ("not {a1} but {a2} is what I would call {n1}.", _SECOND),
            ("{a1}, not {a2}, is what I would call {n1}.", _FIRST),
            ("I would call {n1} {a1} rather than {a2}.", _FIRST),
        ),
    ),
    "comparison": (
        (
            ("{n1} {be1} more {a1} than {a2}{t1}.", _FIRST),
            ("{n1} {be1} less {a1} than {a2}{t1}.", _SECOND),
            ("I found {n1} more {a1} than {a2}{t1}.", _FIRST),
            ("I found {n1} less {a1} than {a2}{t1}.", _SECOND),
        ),
        (
            ("I would call {n1} less {a1} than {a2}.", _SECOND),
            ("{n1} seemed more {a1} than {a2}{t1}.", _FIRST),
        ),
    ),
    "expectation": (
        (
            ("I expected {n1} to be {a1}; {it1} {be1} {a2}{t1}.", _SECOND),
            ("I had expected {n1} to be {a1}, and {it1} turned out to be {a2}.", _SECOND),
            ("{n1} {be1} {a1}{t1}; I had expected {them1} to be {a2}.", _FIRST),
            ("from what I had read, {n1} would be {a1}. {it1} {be1} {a2}{t1}.", _SECOND),
        ),
        (
            ("{n1}, which I had expected to be {a1}, {be1} {a2}{t1}.", _SECOND),
            ("{n1} {be1} {a1} where I had expected {them1} to be {a2}.", _FIRST),
        ),
    ),
    "opinion": (
        (
            ("{who} found {n1} {a1}; I found {them1} {a2}{t1}.", _SECOND),
            ("I found {n1} {a1}{t1}; {who} found {them1} {a2}.", _FIRST),
            ("{who} says that {n1} {be1} {a1}, and I say that {it1} {be1} {a2}.", _SECOND),
            ("to me {n1} seemed {a1}; to {who} {it1} seemed {a2}.", _FIRST),
        ),
        (
            ("what {who} found {a1} about {n1}, I found {a2}.", _SECOND),
            ("to {who} {n1} seemed {a1}; to me {it1} seemed {a2}.", _SECOND),
        ),
    ),
    "change": (
        (
            ("{n1} seemed {a1} at first and {a2} in the end.", _SECOND),
            ("at first {n1} {be1} {a1}; in the end {it1} {be1} {a2}.", _SECOND),
            ("in the end I found {n1} {a1}; at first I had found {them1} {a2}.", _FIRST),
        ),
        (("I found {n1} {a1} at first and {a2} in the end.", _SECOND),),
    ),
    "degree": (
        (
            ("{n1} {be1} {lo} {a1} and {n2} {be2} {hi} {a2}{t1}.", _SECOND),
            ("{n1} {be1} {hi} {a1} and {n2} {be2} {lo} {a2}{t1}.", _FIRST),
            ("I found {n1} {lo} {a1} and {n2} {hi} {a2}{t1}.", _SECOND),
            ("I found {n1} {hi} {a1} and {n2} {lo} {a2}{t1}.", _FIRST),
        ),
        (
            ("{n1} {be1} {lo} {a1} and {hi} {a2}{t1}.", _SECOND),
            ("{n1} {be1} {hi} {a1} and {lo} {a2}{t1}.", _FIRST),
        ),
    ),
}  # fmt: skip

# Frames that every operator fills; of frame i, one operator is kept for the test split (see `_operator_patterns`).
_OPERATOR_FRAMES: tuple[_Frame, ...] = (
    ("{n1} {be1} {op} {a1}{t1}, and {n2} {be2} {a2}.", _SECOND),
    ("{n1} {be1} {a1}{t1}, and {n2} {be2} {op} {a2}.", _FIRST),
    ("I found {n1} {op} {a1} and {n2} {a2}{t1}.", _SECOND),
    ("I found {n1} {a1} and {n2} {op} {a2}{t1}.", _FIRST),
    ("{o1}{t1}.", _TURNED),
)

# Compositions: construction, template, signs, twin, operators in all splits; the other operators are for test only.
_COMPOSED: tuple[tuple[str, str, Signs, str | None, tuple[str, ...]], ...] = (
    ("contrast-but", "{o1}{t1}, but {c2}.", _SAME, "{c1}{t1}, but {o2}.", ("far-from", "hardly", "not-at-all")),
    ("contrast-but", "{o1}{t1}, but {o2}.", _FIRST, None, ("by-no-means", "hardly")),
    ("contrast-although", "although {o1}{t1}, {c2}.", _SAME, "although {c1}{t1}, {o2}.",
     ("hardly", "by-no-means", "far-from")),
    ("contrast-although", "{c1}{t1}, although {o2}.", _SAME, "{o1}{t1}, although {c2}.",
     ("anything-but", "not-at-all")),
    ("not-only", "{n1} {be1} not only {op} {a1} but also {a2}{t1}.", _SECOND, None, ("far-from", "anything-but")),
    ("double-negation", "I would not say that {n1} {be1} {op} {a1}{t1}, and {fact}.", _SAME,
     "I would say that {n1} {be1} {op} {a1}{t1}, and {nofact}.", ("far-from", "not-at-all")),
    ("double-negation", "it is not true that {n1} {be1} {op} {a1}{t1}, and {fact}.", _SAME,
     "it is true that {n1} {be1} {op} {a1}{t1}, and {nofact}.", ("far-from", "anything-but", "by-no-means")),
    ("double-negation", "nobody {group} found {n1} {op} {a1}, and everybody found {n2} {a2}.", _SAME,
     "everybody {group} found {n1} {op} {a1}, and nobody found {n2} {a2}.", ("far-from", "anything-but")),
)  # fmt: skip


def _frame_patterns() -> list[Pattern]:
    made = []
    for construction, groups in _FRAMES.items():
        number = 0
        for held_out, frames in zip((False, True), groups, strict=True):
            for frame in frames:
                number += 1
                twin = frame[2] if len(frame) == 3 else None
                made.append(Pattern(f"{construction}.{number}", construction, frame[0], frame[1], held_out, twin))
    return made


def _operator_patterns() -> list[Pattern]:
    made = []
    for row, (construction, operator) in enumerate(OPERATORS.items()):
        for column, frame in enumerate(_OPERATOR_FRAMES):
            identity = f"{construction}.{column + 1}"
            made.append(Pattern(identity, construction, frame[0], frame[1], held_out=row == column, operator=operator))
    made.append(
        Pattern(
            "hardly.6", "hardly", "{moment}, and {n1} {be1} hardly {a1}{t1}.", _TURNED, held_out=False,
            twin="{hardly}, and {n1} {be1} {a1}{t1}.",
        )
    )  # fmt: skip
    return made


def _composed_patterns() -> list[Pattern]:
    made = []
    for number, (construction, template, signs, twin, in_all_splits) in enumerate(_COMPOSED, start=1):
        for key, operator in OPERATORS.items():
            identity = f"{construction}.composed-{number}.{key}"
            made.append(Pattern(identity, construction, template, signs, key not in in_all_splits, twin, operator))
    return made


PATTERNS: tuple[Pattern, ...] = (*_frame_patterns(), *_operator_patterns(), *_composed_patterns())
