"""Explaining labels for a request: texts without one word each, within the limits of the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from recurra.deployment.decision import Decision
from recurra.deployment.explanation import Span, effects_of, spans_of, without
from recurra.deployment.serving.asked import Answers
from recurra.deployment.serving.refusals import Refusal
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
        """Finds the words.

        Raises:
            Refusal: If there is more to compute than the texts of a request and the bytes of its body may be.
        """
        found = cls(texts, [spans_of(text) for text in texts])
        computed = sum(1 + len(spans) for spans in found.spans)
        if computed > limits.max_texts:
            raise Refusal(422, "too_many_texts", _too_much(computed, "texts", limits.max_texts, "fewer texts"))
        characters = sum(len(text) * (1 + len(spans)) for text, spans in zip(texts, found.spans, strict=True))
        if characters > limits.max_body_bytes:
            message = _too_much(characters, "characters", limits.max_body_bytes, "shorter or fewer texts")
            raise Refusal(422, "text_too_long", message)
        return found

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


def _too_much(number: int, unit: str, most: int, instead: str) -> str:
    return (
        f"'explain' computes each text and then once for each of its words, {number:,} {unit} together; at most "
        f"{most:,} are allowed: send {instead}"
    )
