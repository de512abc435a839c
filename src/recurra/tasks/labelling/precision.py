"""Thresholds of labels for a wanted precision, from a run's stored predictions of its validation rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from recurra.core.errors import CheckpointError, ConfigurationError, unknown
from recurra.core.record import read_record
from recurra.deployment.decision import read_decision
from recurra.deployment.export.manifest import is_export
from recurra.evaluation.metrics import least_rows, lowest_shown, precision_thresholds
from recurra.evaluation.predictions import predictions_path, read_predictions


def parse_precisions(assignments: Sequence[str]) -> dict[str, float]:
    """Reads ``LABEL=PRECISION``.

    Raises:
        ConfigurationError: If one is malformed, a precision is not between 0 and 1, or a label comes twice.
    """
    precisions: dict[str, float] = {}
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
        if label in precisions:
            raise ConfigurationError(f"the label '{label}' is given two precisions; give one")
        precisions[label] = precision
    return precisions


def choose_precision_thresholds(
    run: Path, wanted: Mapping[str, float], answers: float | None = None
) -> tuple[list[float], list[str]]:
    """Chooses for each label the smallest threshold whose precision is shown to be at least the wanted one.

    ``wanted`` is a precision by label, ``answers`` the share of right ones among all answers, for one threshold of all
    labels.

    Returns:
        A threshold for each label of the model, 0 where nothing is wanted; and a sentence on each that was chosen.

    Raises:
        CheckpointError: If it is no run, or keeps no predictions of validation rows.
        ConfigurationError: If there is no such label, texts have any number of labels, no threshold shows it, or both
            kinds are asked for.
    """
    if answers is not None and wanted:
        raise ConfigurationError("--answers-right is for all labels together, --precision-of for one; give one of them")
    if answers is not None and not 0 < answers < 1:
        raise ConfigurationError(f"--answers-right is {answers:g}; allowed: above 0 and below 1, e.g. 0.95")
    if is_export(run):
        raise CheckpointError(
            f"'{run}' is an export, which keeps no predictions of validation rows; give the run that it was made from"
        )
    record = read_record(run)
    names = record.data.label_names
    decision = read_decision(names, record.decision)
    if not decision.exclusive:
        raise ConfigurationError("a multi-label model has a threshold for each label already; leave the option out")
    split = record.data.selection_split
    if not predictions_path(run, split).is_file():
        raise CheckpointError(
            f"run '{record.run_id}' keeps no predictions of its {split} rows: it is older than this option, or "
            "RecurraClassifier made it; train it again with 'recurra train'"
        )
    predictions = read_predictions(run, split)
    probabilities = decision.probabilities(predictions.logits)
    thresholds, sentences = [0.0] * len(names), []
    requests: list[tuple[str | None, float]] = [*wanted.items()] if answers is None else [(None, answers)]
    for label, precision in requests:
        if label is not None and label not in names:
            raise ConfigurationError(unknown("label", label, names))
        name, index = ("any label", None) if label is None else (f"'{label}'", names.index(label))
        tested = precision_thresholds(probabilities, predictions.labels, index)
        one = lowest_shown(tested, precision)
        if one is None:
            best = max((threshold.bound for threshold in tested), default=0.0)
            raise ConfigurationError(
                f"no threshold shows a precision of {precision:g} for {name}: on {len(predictions):,} {split} rows, "
                f"{tested[-1].rows if tested else 0:,} of which get the label, the best is shown to be at least "
                f"{best:.3f}; ask for less, or train with more {split} rows (at least {least_rows(precision):,} that "
                "get the label, if all of them are right)"
            )
        for position in range(len(names)) if index is None else (index,):
            thresholds[position] = max(thresholds[position], one.threshold)
        sentences.append(
            f"{name} from a probability of {one.threshold:.4f}: {one.right:,} of {one.rows:,} {split} rows right, "
            f"precision at least {one.bound:.3f} (one-sided 95 % Clopper-Pearson bound, thresholds compared: "
            f"{len(tested)})"
        )
    return thresholds, sentences
