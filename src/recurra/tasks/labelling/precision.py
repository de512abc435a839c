"""Thresholds of labels for a wanted precision, from the validation rows that a run kept its predictions of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from recurra.core.errors import CheckpointError, ConfigurationError, unknown
from recurra.core.record import read_record
from recurra.deployment.decision import read_decision
from recurra.deployment.export.manifest import is_export
from recurra.evaluation.metrics import least_rows, precision_thresholds
from recurra.evaluation.predictions import predictions_path, read_predictions


def parse_precisions(assignments: Sequence[str]) -> dict[str, float]:
    """Reads ``LABEL=PRECISION``.

    Raises:
        ConfigurationError: If one is not that, a precision lies not between 0 and 1, or a label is there twice.
    """
    found: dict[str, float] = {}
    for assignment in assignments:
        label, equals, number = assignment.rpartition("=")
        try:
            precision = float(number) if equals and label else 0.0
        except ValueError:
            precision = 0.0
        if not 0 < precision < 1:
            raise ConfigurationError(
                f"'{assignment}' names no precision of a label; write LABEL=PRECISION, above 0 and below 1, e.g. "
                "--precision-of positive=0.95"
            )
        if label in found:
            raise ConfigurationError(f"the label '{label}' is given two precisions; give one")
        found[label] = precision
    return found


def choose_precision_thresholds(run: Path, wanted: Mapping[str, float]) -> tuple[list[float], list[str]]:
    """Chooses for each label the smallest threshold whose precision is shown to be what is wanted.

    Returns:
        A threshold for each label of the model, 0 where nothing is wanted; and a sentence on each that was chosen.

    Raises:
        CheckpointError: If it is no run, or keeps no predictions of validation rows.
        ConfigurationError: If there is no such label, texts have any number of labels, or no threshold shows it.
    """
    if is_export(run):
        raise CheckpointError(
            f"'{run}' is an export, which keeps no predictions of validation rows; give the run that it was made from"
        )
    record = read_record(run)
    names = record.data.label_names
    decision = read_decision(names, record.decision)
    if not decision.exclusive:
        raise ConfigurationError("a multi-label model has a threshold for each label already; leave --precision-of out")
    split = record.data.selection_split
    if not predictions_path(run, split).is_file():
        raise CheckpointError(
            f"run '{record.run_id}' keeps no predictions of its {split} rows: it is older than --precision-of, or "
            "RecurraClassifier made it; train it again with 'recurra train'"
        )
    kept = read_predictions(run, split)
    probabilities = decision.probabilities(kept.logits)
    thresholds, said = [0.0] * len(names), []
    for label, precision in wanted.items():
        if label not in names:
            raise ConfigurationError(unknown("label", label, names))
        index = names.index(label)
        looked_at = precision_thresholds(probabilities, kept.labels, index)
        shown = [one for one in looked_at if one.bound >= precision]
        if not shown:
            best = max((one.bound for one in looked_at), default=0.0)
            raise ConfigurationError(
                f"no threshold shows a precision of {precision:g} for '{label}': on {len(kept):,} {split} rows, "
                f"{looked_at[-1].rows if looked_at else 0:,} of which get the label, the best is shown to be at least "
                f"{best:.3f}; ask for less, or train with more {split} rows (at least {least_rows(precision):,} that "
                "get the label, were all of them right)"
            )
        one = shown[-1]
        thresholds[index] = one.threshold
        said.append(
            f"'{label}' from a probability of {one.threshold:.4f}: {one.right:,} of {one.rows:,} {split} rows right, "
            f"precision at least {one.bound:.3f} (one-sided 95 % Clopper-Pearson bound, thresholds compared: "
            f"{len(looked_at)})"
        )
    return thresholds, said
