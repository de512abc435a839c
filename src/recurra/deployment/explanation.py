"""Which words of a text its labels hang on: the probability of a label with each word left out.

Occlusion (Zeiler and Fergus 2014, "Visualizing and Understanding Convolutional Networks"; of words Li, Monroe and
Jurafsky 2016, "Understanding Neural Networks through Representation Erasure", equation 1, with probabilities in place
of their logarithms). It asks the model alone and so means the same for every model, and it is exact for what it says:
the text without the word is computed. What several words say together it does not see.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from recurra.deployment.decision import LabelDecision

# A text is computed once for each of its words, but no more often: a longer one for so many runs of words.
MOST_PARTS = 64
# Texts without a word that are computed together.
_TOGETHER = 1024
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
class Explanation:
    """Words of a text with their effects on one label."""

    key: ClassVar[str] = "words"

    words: tuple[WordEffect, ...]

    def __str__(self) -> str:
        return ", ".join(f"{' '.join(word.text.split())} ({word.effect:+.3f})" for word in self.words)

    def plain(self) -> list[dict[str, Any]]:
        """Plain JSON values."""
        return [asdict(word) for word in self.words]

    def strongest(self, count: int) -> Explanation:
        """The words that speak most for the label, at most so many, the strongest first."""
        ordered = sorted((word for word in self.words if word.effect > 0), key=lambda word: -word.effect)
        return Explanation(tuple(ordered[:count]))


@dataclass(frozen=True)
class LabelWords:
    """What the words of a text do for one of its labels.

    Attributes:
        given: Whether the text gets it; one that gets no label is explained for the nearest to its threshold.
    """

    label: str
    given: bool
    words: Explanation

    def __str__(self) -> str:
        return f"{self.label}{'' if self.given else ' (not given)'}: {self.words}"


@dataclass(frozen=True)
class LabelledExplanation:
    """The same of a text that may have several labels: an explanation a label, all of one computation."""

    key: ClassVar[str] = "words_by_label"

    labels: tuple[LabelWords, ...]

    def __str__(self) -> str:
        return "; ".join(str(one) for one in self.labels if one.words.words)

    def plain(self) -> list[dict[str, Any]]:
        """Plain JSON values."""
        return [{"label": one.label, "given": one.given, "words": one.words.plain()} for one in self.labels]

    def strongest(self, count: int) -> LabelledExplanation:
        """The words that speak most for each label, at most so many, the strongest first."""
        return LabelledExplanation(
            tuple(LabelWords(one.label, one.given, one.words.strongest(count)) for one in self.labels)
        )


AnyExplanation = Explanation | LabelledExplanation


def spans_of(text: str, most: int = MOST_PARTS) -> list[Span]:
    """First and last character of each word; of a text with more than ``most`` words those of runs of words."""
    words = [match.span() for match in _WORD.finditer(text)]
    size = -(-len(words) // most)
    return [(run[0][0], run[-1][1]) for run in (words[at : at + size] for at in range(0, len(words), max(size, 1)))]


def without(text: str, span: Span) -> str:
    """The text without a span."""
    return text[: span[0]] + text[span[1] :]


def effects_of(
    text: str, spans: Sequence[Span], probabilities: Probabilities, changed: Probabilities, label: int
) -> Explanation:
    """Effects of words on one label, by probabilities ``(labels,)``, and ``(spans, labels)`` without each word."""
    effects = np.round(probabilities[label] - changed[:, label], _DIGITS).tolist()
    words = zip(spans, effects, strict=True)
    return Explanation(tuple(WordEffect(text[start:end], start, end, effect) for (start, end), effect in words))


def explanations_of(
    texts: Sequence[str],
    spans: Sequence[Sequence[Span]],
    probabilities: Probabilities,
    changed: Probabilities,
    decision: LabelDecision,
) -> list[AnyExplanation]:
    """Puts the explanations of texts together, each for the labels that `LabelDecision.explained` names.

    ``probabilities`` is ``(texts, labels)``; ``changed`` of the texts without each of their words, ``(spans, labels)``.
    """
    explanations: list[AnyExplanation] = []
    at = 0
    for text, own, row, labels in zip(texts, spans, probabilities, decision.explained(probabilities), strict=True):
        rest = changed[at : at + len(own)]
        at += len(own)
        words = [effects_of(text, own, row, rest, label) for label in labels]
        if decision.exclusive:
            explanations.append(words[0])
            continue
        given = decision.decide(row[None])[0]
        named = zip(labels, words, strict=True)
        explanations.append(
            LabelledExplanation(
                tuple(LabelWords(decision.label_names[label], bool(given[label]), each) for label, each in named)
            )
        )
    return explanations


def explain(
    predict: Callable[[Sequence[str]], Probabilities],
    texts: Sequence[str],
    probabilities: Probabilities,
    decision: LabelDecision,
) -> list[AnyExplanation]:
    """Explains the labels of texts, of which these are the probabilities ``(texts, labels)``."""
    explanations = []
    for start, end, spans in _groups(texts):
        group = texts[start:end]
        changed = predict([without(text, span) for text, own in zip(group, spans, strict=True) for span in own])
        explanations += explanations_of(group, spans, probabilities[start:end], changed, decision)
    return explanations


def _groups(texts: Sequence[str]) -> Iterator[tuple[int, int, list[list[Span]]]]:
    """First and last place of texts whose words are computed together, and the words of each."""
    start, spans = 0, list[list[Span]]()
    for index, text in enumerate(texts):
        spans.append(spans_of(text))
        if sum(map(len, spans)) > _TOGETHER - MOST_PARTS:
            yield start, index + 1, spans
            start, spans = index + 1, []
    if spans:
        yield start, len(texts), spans
