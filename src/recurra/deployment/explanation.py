"""Which words of a text its labels depend on: the probability of a label with each word left out.

Occlusion (Zeiler and Fergus 2014, "Visualizing and Understanding Convolutional Networks"; of words Li, Monroe and
Jurafsky 2016, "Understanding Neural Networks through Representation Erasure", equation 1, with probabilities in place
of their logarithms). It only uses the model's predictions, so it means the same for every model, and it is exact: the
text without the word is computed (in int8 in a batch with its own scale). It does not see the joint effect of several
words: the remainder says how much that is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from recurra.data.words import UNSPACED
from recurra.deployment.decision import LabelDecision

# A text is computed once without each of its words (with more words: without this many runs of words), and once without
# all of them.
MOST_PARTS = 64
# Number of texts that are explained together.
_TOGETHER = 16
# Two characters of a script without spaces; letters and digits with apostrophes between them; or neither these nor
# common punctuation, such as signs and emoji.
_LETTERS = rf"[^\W{UNSPACED}]+"
_MARKS = r"\s!-/:-@\[-`{-~…“”‘’–—\u3000-\u303f\uff01-\uff0f\uff1a-\uff20"
_WORD = re.compile(rf"[{UNSPACED}]{{1,2}}|{_LETTERS}(?:['’]{_LETTERS})*|[^\w{_MARKS}{UNSPACED}]+")
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
    """The effects of words on one label; a text that is ``given`` none is explained for the nearest one.

    Attributes:
        remainder: What the words listed leave of the difference that all words make together: the probability of the
            label, less that of the text without any of them, less the effects listed.
    """

    label: str
    given: bool
    words: list[WordEffect]
    remainder: float


@dataclass(frozen=True)
class Explanation:
    """The effects of a text's words on its labels; with ``exclusive``, of a one-label model, on its only label."""

    labels: list[ExplainedLabel]
    exclusive: bool

    def __str__(self) -> str:
        if self.exclusive:
            return _describe(self.labels[0].words)
        return "; ".join(
            f"{label.label}{'' if label.given else ' (not given)'}: {_describe(label.words)}"
            for label in self.labels
            if label.words
        )

    def plain(self) -> list[dict[str, Any]]:
        """Plain JSON values."""
        return [asdict(part) for part in (self.labels[0].words if self.exclusive else self.labels)]

    def strongest(self, count: int) -> Explanation:
        """The same with only the strongest words of each label; the remainder takes in the others."""
        return replace(self, labels=[_with_words(label, strongest(label.words, count)) for label in self.labels])


def _with_words(label: ExplainedLabel, words: list[WordEffect]) -> ExplainedLabel:
    dropped = _sum(label.words) - _sum(words)
    return replace(label, words=words, remainder=round(label.remainder + dropped, _DIGITS))


def _sum(words: Sequence[WordEffect]) -> float:
    return sum(word.effect for word in words)


def _describe(words: Sequence[WordEffect]) -> str:
    return ", ".join(f"{' '.join(word.text.split())} ({word.effect:+.3f})" for word in words)


def strongest(words: Sequence[WordEffect], count: int) -> list[WordEffect]:
    """At most ``count`` words that raise the label's probability most, the strongest first."""
    return sorted((word for word in words if word.effect > 0), key=lambda word: -word.effect)[:count]


def spans_of(text: str, most: int = MOST_PARTS, end: int | None = None) -> list[Span]:
    """Start and end of each word; of runs of words if there are more than ``most`` words.

    Words after the position ``end`` are left out.
    """
    words = [match.span() for match in _WORD.finditer(text, 0, len(text) if end is None else end)]
    size = -(-len(words) // most)
    return [(run[0][0], run[-1][1]) for run in (words[at : at + size] for at in range(0, len(words), max(size, 1)))]


def without(text: str, span: Span) -> str:
    """The text without a span."""
    return text[: span[0]] + text[span[1] :]


def occluded(text: str, spans: Sequence[Span]) -> list[str]:
    """The texts to compute for an explanation: without each span, then, of several, without all of them.

    Words behind the last span, which are not read, do not come into the place of the others.
    """
    texts = [without(text, span) for span in spans]
    if len(spans) > 1:
        end = spans[-1][1]
        rest = text[:end] if _WORD.search(text, end) else text
        for span in reversed(spans):
            rest = without(rest, span)
        texts.append(rest)
    return texts


def effects_of(
    text: str, spans: Sequence[Span], probabilities: Probabilities, changed: Probabilities, label: int
) -> list[WordEffect]:
    """Effects of words on one label, from probabilities ``(labels,)`` and, without each word, ``(spans, labels)``."""
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
    """Builds the explanations of texts, each for the labels that `LabelDecision.explained` returns.

    ``probabilities`` is ``(texts, labels)``; ``changed`` is that of what `occluded` returns for each text, in turn.
    """
    explanations = []
    start = 0
    for text, ranges, row, labels in zip(texts, spans, probabilities, decision.explained(probabilities), strict=True):
        without_each = changed[start : start + len(ranges)]
        start += len(ranges) + (len(ranges) > 1)
        chosen = decision.labels(row[None])[0]
        explained = []
        for label in labels:
            name = decision.label_names[label]
            words = effects_of(text, ranges, row, without_each, label)
            together = row[label] - changed[start - 1, label] if words else 0.0
            remainder = round(float(together) - _sum(words), _DIGITS)
            explained.append(ExplainedLabel(name, name in chosen, words, remainder))
        explanations.append(Explanation(explained, decision.exclusive))
    return explanations


def explain(
    predict: Callable[[Sequence[str]], Probabilities],
    texts: Sequence[str],
    probabilities: Probabilities,
    decision: LabelDecision,
    most_read: Callable[[str], int | None],
) -> list[Explanation]:
    """Explains the labels of texts with probabilities ``(texts, labels)``.

    ``most_read`` returns the position in a text up to which the model can read it; none means all of it.
    """
    explanations = []
    for start in range(0, len(texts), _TOGETHER):
        part = slice(start, start + _TOGETHER)
        spans = [spans_of(text, end=most_read(text)) for text in texts[part]]
        changed = predict([cut for text, cuts in zip(texts[part], spans, strict=True) for cut in occluded(text, cuts)])
        explanations += explanations_of(texts[part], spans, probabilities[part], changed, decision)
    return explanations
