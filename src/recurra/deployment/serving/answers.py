"""What a request asks of a model beyond labels, what the model answers, and the answer as JSON values.

The values are those of `recurra.deployment.serving.schema.Prediction`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recurra.deployment.classifier import Classifier
from recurra.deployment.decision import LabelDecision
from recurra.deployment.engines.depth import Trace
from recurra.deployment.explanation import MOST_PARTS, AnyExplanation, Span, explanations_of, spans_of, without
from recurra.deployment.serving.settings import ServerLimits


@dataclass(frozen=True)
class Asked:
    """Requests that ask the same can be computed together.

    Attributes:
        exits: Whether texts may stop early, where the model carries a rule.
        recurrences: Whether what was thought after each recurrence is told, where the model has any.
    """

    exits: bool = False
    recurrences: bool = False


@dataclass(frozen=True, eq=False)
class Answers:
    """What a model says of some texts.

    Attributes:
        probabilities: ``(texts, labels)``.
        exited_after: Recurrences that they took, ``(texts,)``; none if texts were not allowed to stop early.
        trace: What was thought after each recurrence; none if it was not asked for.
    """

    probabilities: npt.NDArray[np.float64]
    exited_after: npt.NDArray[np.int64] | None = None
    trace: Trace | None = None

    def part(self, start: int, end: int) -> Answers:
        """Those of some of the texts."""
        return Answers(
            self.probabilities[start:end],
            None if self.exited_after is None else self.exited_after[start:end],
            None if self.trace is None else self.trace.part(start, end),
        )


def answer(classifier: Classifier, texts: list[str], asked: Asked) -> Answers:
    """Asks a model; what it has no means for it leaves out.

    A model without a rule of its own goes all the way, and says so; one without recurrences has nothing to say of them.
    """
    depth = classifier.depth
    if depth is None or asked == Asked():
        return Answers(classifier.predict_proba(texts))
    rule = classifier.calibrated_rule
    all_the_way = np.full(len(texts), depth.num_recurrences)
    if asked.recurrences:
        found = classifier.classify(texts, rule=rule, trace=True)
        assert found.trace is not None
        if not asked.exits:
            return Answers(found.trace.probabilities[:, -1], None, found.trace)
        return Answers(found.probabilities, all_the_way if rule is None else found.exited_after, found.trace)
    if rule is None:
        return Answers(classifier.predict_proba(texts), all_the_way)
    found = classifier.classify(texts, rule=rule)
    return Answers(found.probabilities, found.exited_after)


def predictions_of(answers: Answers, decision: LabelDecision) -> list[dict[str, Any]]:
    """Returns an object for each text; what was not asked for has no key.

    Args:
        answers: What the model said.
        decision: What makes labels of probabilities.
    """
    found = _said(answers.probabilities, decision)
    abstained = decision.abstained(answers.probabilities)
    if abstained is not None:
        for one, without in zip(found, abstained.tolist(), strict=True):
            one.update({"label": None if without else one["label"], "abstained": without})
    if answers.exited_after is not None:
        for one, number in zip(found, answers.exited_after.tolist(), strict=True):
            one["exited_after"] = number
    if answers.trace is not None:
        for number, one in enumerate(found):
            one.update(_thought(answers.trace, number, decision))
    return found


def _said(probabilities: npt.NDArray[np.float64], decision: LabelDecision) -> list[dict[str, Any]]:
    names, said = decision.label_names, []
    for row, labels in zip(probabilities.tolist(), decision.labels(probabilities), strict=True):
        several = {} if decision.exclusive else {"labels": labels}
        said.append({"label": decision.text(labels), **several, "probabilities": dict(zip(names, row, strict=True))})
    return said


def _thought(trace: Trace, number: int, decision: LabelDecision) -> dict[str, Any]:
    rows = _said(trace.probabilities[number], decision)
    thought: dict[str, Any] = {
        "recurrences": [{"after": after, **row} for after, row in zip(trace.after, rows, strict=True)]
    }
    if trace.stops_after is not None:
        thought["stops_after"] = int(trace.stops_after[number])
    return thought


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
    def of(cls, texts: Sequence[str], limits: ServerLimits) -> Occluded:
        """Finds words, or runs of words: no more in all than a request may have texts, nor longer than its body."""
        characters = max(1, sum(map(len, texts)))
        most = min(MOST_PARTS, limits.max_texts // len(texts), limits.max_body_bytes // characters)
        return cls(texts, [spans_of(text, max(1, most)) for text in texts])

    def changed(self) -> list[str]:
        """Every text without each of its words."""
        return [without(text, span) for text, spans in zip(self.texts, self.spans, strict=True) for span in spans]

    def explanations(self, answers: Answers, changed: Answers | None, decision: LabelDecision) -> list[AnyExplanation]:
        """What the words of each text do.

        Args:
            answers: What the model said of the texts.
            changed: What it said of `changed`; none where there is no word.
            decision: What makes labels of probabilities.
        """
        said = answers.probabilities
        rest = said[:0] if changed is None else changed.probabilities
        return explanations_of(self.texts, self.spans, said, rest, decision)
