"""What a request asks of a model beyond labels, and what the model answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recurra.deployment.classifier import Classifier
from recurra.deployment.engines.depth import Trace


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
