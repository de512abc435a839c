"""What a model said of texts as JSON values; see `recurra.deployment.serving.schema.Prediction`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recurra.deployment.depth import Trace
from recurra.deployment.serving.asked import Answers


def predictions_of(answers: Answers, labels: Sequence[str]) -> list[dict[str, Any]]:
    """Returns an object for each text; what was not asked for has no key."""
    found = [_said(row, labels) for row in answers.probabilities.tolist()]
    if answers.exited_after is not None:
        for one, number in zip(found, answers.exited_after.tolist(), strict=True):
            one["exited_after"] = number
    if answers.trace is not None:
        for number, one in enumerate(found):
            one.update(_thought(answers.trace, number, labels))
    return found


def _said(row: Sequence[float], labels: Sequence[str]) -> dict[str, Any]:
    best = max(range(len(row)), key=row.__getitem__)
    return {"label": labels[best], "probabilities": dict(zip(labels, row, strict=True))}


def _thought(trace: Trace, number: int, labels: Sequence[str]) -> dict[str, Any]:
    rows = trace.probabilities[number].tolist()
    thought: dict[str, Any] = {
        "recurrences": [{"after": after, **_said(row, labels)} for after, row in zip(trace.after, rows, strict=True)]
    }
    if trace.stops_after is not None:
        thought["stops_after"] = int(trace.stops_after[number])
    return thought
