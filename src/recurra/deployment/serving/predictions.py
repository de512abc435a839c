"""What a model said of texts as JSON values; see `recurra.deployment.serving.schema.Prediction`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from recurra.deployment.decision import Decision
from recurra.deployment.engines.depth import Trace
from recurra.deployment.serving.asked import Answers


def predictions_of(answers: Answers, decision: Decision, abstain_below: float | None = None) -> list[dict[str, Any]]:
    """Returns an object for each text; what was not asked for has no key.

    Args:
        answers: What the model said.
        decision: What makes labels of probabilities.
        abstain_below: Texts whose highest probability is lower get no label.
    """
    found = _said(answers.probabilities, decision)
    if abstain_below is not None:
        for one, abstained in zip(found, (answers.probabilities.max(axis=1) < abstain_below).tolist(), strict=True):
            one.update({"label": None if abstained else one["label"], "abstained": abstained})
    if answers.exited_after is not None:
        for one, number in zip(found, answers.exited_after.tolist(), strict=True):
            one["exited_after"] = number
    if answers.trace is not None:
        for number, one in enumerate(found):
            one.update(_thought(answers.trace, number, decision))
    return found


def _said(probabilities: npt.NDArray[np.float64], decision: Decision) -> list[dict[str, Any]]:
    names, said = decision.label_names, []
    for row, labels in zip(probabilities.tolist(), decision.labels(probabilities), strict=True):
        several = {} if decision.exclusive else {"labels": labels}
        said.append({"label": decision.text(labels), **several, "probabilities": dict(zip(names, row, strict=True))})
    return said


def _thought(trace: Trace, number: int, decision: Decision) -> dict[str, Any]:
    rows = _said(trace.probabilities[number], decision)
    thought: dict[str, Any] = {
        "recurrences": [{"after": after, **row} for after, row in zip(trace.after, rows, strict=True)]
    }
    if trace.stops_after is not None:
        thought["stops_after"] = int(trace.stops_after[number])
    return thought
