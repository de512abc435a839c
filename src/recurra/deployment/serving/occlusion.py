"""Explaining labels for a request: texts without one word each, within the limits of the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from recurra.deployment.decision import Decision
from recurra.deployment.explanation import MOST_PARTS, Span, effects_of, spans_of, without
from recurra.deployment.serving.asked import Answers
from recurra.deployment.serving.settings import Limits


@dataclass(frozen=True)
class Occluded:
    """Texts without one word each, which are computed to explain the labels of texts.

    Attributes:
        texts: What is explained.
        spans: Of the words of each.
    """

    texts: Sequence[str]
    spans: Sequence[Sequence[Span]]

    @classmethod
    def of(cls, texts: Sequence[str], limits: Limits) -> Occluded:
        """Finds words, or runs of words: no more in all than a request may have texts, nor longer than its body."""
        characters = max(1, sum(map(len, texts)))
        most = min(MOST_PARTS, limits.max_texts // len(texts), limits.max_body_bytes // characters)
        return cls(texts, [spans_of(text, max(1, most)) for text in texts])

    def changed(self) -> list[str]:
        """Every text without each of its words."""
        return [without(text, span) for text, spans in zip(self.texts, self.spans, strict=True) for span in spans]

    def words(self, answers: Answers, changed: Answers | None, decision: Decision) -> list[list[dict[str, Any]]]:
        """What each word of each text does.

        Args:
            answers: What the model said of the texts.
            changed: What it said of `changed`; none where there is no word.
            decision: What makes labels of probabilities.
        """
        said, at, found = answers.probabilities, 0, []
        labels = decision.decide(said).tolist()
        for text, spans, row, label in zip(self.texts, self.spans, said, labels, strict=True):
            rest = said[:0] if changed is None else changed.probabilities[at : at + len(spans)]
            found.append(effects_of(text, spans, row, rest, label).plain())
            at += len(spans)
        return found
