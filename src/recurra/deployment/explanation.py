"""Which words of a text its labels hang on: the probability of a label with each word left out.

Occlusion (Zeiler and Fergus 2014, "Visualizing and Understanding Convolutional Networks"; of words Li, Monroe and
Jurafsky 2016, "Understanding Neural Networks through Representation Erasure", equation 1, with probabilities in place
of their logarithms). It asks the model alone and so means the same for every model, and it is exact for what it says:
the text without the word is computed (in int8 in a batch with a scale of its own). What several words say together it
does not see.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from recurra.deployment.decision import LabelDecision

# A text is computed once for each of its words, but no more often: a longer one for so many runs of words.
MOST_PARTS = 64
# Texts that are explained together.
_TOGETHER = 16
# Letters and digits, apostrophes between them; or what is neither those nor common punctuation, as signs and emoji.
_WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s!-/:-@\[-`{-~…“”‘’–—]+")
_DIGITS = 6

Probabilities = npt.NDArray[np.float64]
Span = tuple[int, int]


@dataclass(frozen=True)
class WordEffect:
    """A word of a text, or a run of words, and what it does.

    Attributes:
        start: Its first character, from 0.
        end: Behind its last character.
        effect: By how much the probability of the label falls without it; below 0 if it speaks against it.
    """

    text: str
    start: int
    end: int
    effect: float


@dataclass(frozen=True)
class ExplainedLabel:
    """The effects of words on one label; a text that is ``given`` none is explained for the nearest one."""

    label: str
    given: bool
    words: list[WordEffect]


@dataclass(frozen=True)
class Explanation:
    """What the words of a text do for its labels; of a model that gives one label, ``exclusive``, for that one."""

    labels: list[ExplainedLabel]
    exclusive: bool

    def __str__(self) -> str:
        if self.exclusive:
            return _describe(self.labels[0].words)
        return "; ".join(
            f"{one.label}{'' if one.given else ' (not given)'}: {_describe(one.words)}"
            for one in self.labels
            if one.words
        )

    def plain(self) -> list[dict[str, Any]]:
        """Plain JSON values."""
        return [asdict(part) for part in (self.labels[0].words if self.exclusive else self.labels)]

    def strongest(self, count: int) -> Explanation:
        """The same with the strongest words of each label alone."""
        return replace(self, labels=[replace(one, words=strongest(one.words, count)) for one in self.labels])


def _describe(words: Sequence[WordEffect]) -> str:
    return ", ".join(f"{' '.join(word.text.split())} ({word.effect:+.3f})" for word in words)


def strongest(words: Sequence[WordEffect], count: int) -> list[WordEffect]:
    """The words that speak most for the label, at most so many, the strongest first."""
    return sorted((word for word in words if word.effect > 0), key=lambda word: -word.effect)[:count]


def spans_of(text: str, most: int = MOST_PARTS, end: int | None = None) -> list[Span]:
    """First and last character of each word; of a text with more than ``most`` words those of runs of words.

    Words behind the character ``end`` are left out.
    """
    words = [match.span() for match in _WORD.finditer(text, 0, len(text) if end is None else end)]
    size = -(-len(words) // most)
    return [(run[0][0], run[-1][1]) for run in (words[at : at + size] for at in range(0, len(words), max(size, 1)))]


def without(text: str, span: Span) -> str:
    """The text without a span."""
    return text[: span[0]] + text[span[1] :]


def effects_of(
    text: str, spans: Sequence[Span], probabilities: Probabilities, changed: Probabilities, label: int
) -> list[WordEffect]:
    """Effects of words on one label, by probabilities ``(labels,)``, and ``(spans, labels)`` without each word."""
    effects = np.round(probabilities[label] - changed[:, label], _DIGITS).tolist()
    words = zip(spans, effects, strict=True)
    return [WordEffect(text[start:end], start, end, effect) for (start, end), effect in words]


def explanations_of(
    texts: Sequence[str],
    spans: Sequence[Sequence[Span]],
    probabilities: Probabilities,
    changed: Probabilities,
    decision: LabelDecision,
) -> list[Explanation]:
    """Puts the explanations of texts together, each for the labels that `LabelDecision.explained` names.

    ``probabilities`` is ``(texts, labels)``; ``changed`` of the texts without each of their words, ``(spans, labels)``.
    """
    explanations = []
    start = 0
    for text, own, row, labels in zip(texts, spans, probabilities, decision.explained(probabilities), strict=True):
        rest = changed[start : start + len(own)]
        start += len(own)
        given = decision.labels(row[None])[0]
        names = [decision.label_names[label] for label in labels]
        words = [effects_of(text, own, row, rest, label) for label in labels]
        explained = [ExplainedLabel(name, name in given, effects) for name, effects in zip(names, words, strict=True)]
        explanations.append(Explanation(explained, decision.exclusive))
    return explanations


def explain(
    predict: Callable[[Sequence[str]], Probabilities],
    texts: Sequence[str],
    probabilities: Probabilities,
    decision: LabelDecision,
    most_read: Callable[[str], int | None] = lambda _: None,
) -> list[Explanation]:
    """Explains the labels of texts, of which these are the probabilities ``(texts, labels)``.

    ``most_read`` says before which character the part of a text ends that can be read.
    """
    explanations = []
    for start in range(0, len(texts), _TOGETHER):
        part = slice(start, start + _TOGETHER)
        spans = [spans_of(text, end=most_read(text)) for text in texts[part]]
        changed = predict([without(text, span) for text, own in zip(texts[part], spans, strict=True) for span in own])
        explanations += explanations_of(texts[part], spans, probabilities[part], changed, decision)
    return explanations
