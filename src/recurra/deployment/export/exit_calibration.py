"""Choosing the exit rule of an export with the exported model itself: int8 is not as sure as the run's model was."""

from __future__ import annotations

import numpy as np

from recurra.core.errors import ConfigurationError
from recurra.deployment.engines.depth import DeepEngine
from recurra.deployment.export.check import CheckRows
from recurra.deployment.export.records import CalibrationRecord
from recurra.models.exits.rule import HasExits
from recurra.models.exits.thresholds import calibrate_classifier, check_agreement

DEFAULT_AGREEMENT = 0.99
# Once rows leave, those that stay are another batch, which in int8 has other scales. Where that costs more labels than
# were asked for, a more careful threshold is tried, so often.
_TRIES = 6


def agreement_asked(config: HasExits, asked: float | None) -> float | None:
    """Returns the agreement to calibrate for; none for a model without exits.

    Args:
        config: The model's.
        asked: What the user asks for, if at all.

    Raises:
        ConfigurationError: If it is no share, or the model has no exits.
    """
    if asked is not None:
        check_agreement(asked)
        if not config.exits:
            raise ConfigurationError(
                f"an agreement of {asked:g} is asked for, which is that of exits, and this model was trained without; "
                "leave --agreement out, or train one with exits, for example model.exits=[1]"
            )
    return None if not config.exits else DEFAULT_AGREEMENT if asked is None else asked


def calibrate_exits(engine: DeepEngine, rows: CheckRows, asked: float, batch_size: int) -> CalibrationRecord:
    """Chooses the threshold that lets most rows leave while enough of them keep the label of the export in full.

    What the record says of the rule is measured with rows that really leave.

    Args:
        engine: The exported model, as a user's program will run it.
        rows: Validation rows.
        asked: Share of rows that is to keep its label.
        batch_size: Texts of 32 tokens a batch.
    """
    exits = list(engine.depth.exits)
    if not len(rows.texts):
        return CalibrationRecord(exits=exits, asked=asked, source=rows.source, rows=0)
    logits = engine.logits_by_recurrence(rows.texts, batch_size)
    full = logits[engine.depth.num_recurrences].argmax(axis=1)
    nothing = CalibrationRecord(exits=exits, asked=asked, source=rows.source, rows=len(rows.texts))
    target = asked
    for _ in range(_TRIES):
        rule = calibrate_classifier(logits, target).rule
        if rule is None:
            return nothing
        early = engine.leave_early(rows.texts, batch_size, rule)
        labels = early.logits.argmax(axis=1)
        agreement = float((labels == full).mean())
        if agreement >= asked:
            numbers, counts = np.unique(early.exited_after, return_counts=True)
            return nothing.model_copy(
                update={
                    "rule": rule.plain(),
                    "agreement": agreement,
                    "taken": dict(zip(numbers.tolist(), counts.tolist(), strict=True)),
                    "accuracy": None if rows.labels is None else float((labels == rows.labels).mean()),
                }
            )
        target = (1 + target) / 2
    return nothing
