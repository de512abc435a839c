"""A finished run or an export evaluated on a split of its data, or on a user's file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recurra.core.errors import ConfigurationError
from recurra.core.record import LabelRunRecord
from recurra.data.corpora import recorded_data, recorded_split
from recurra.data.dataset import TextSplit
from recurra.data.splits import load_split
from recurra.deployment.classifier import Classifier
from recurra.deployment.decision import AnyLabels
from recurra.deployment.engines.computation import DEFAULT_BATCH_SIZE
from recurra.deployment.export.manifest import read_source_record
from recurra.deployment.prediction.files import InputColumns, PredictedRows, check_output, open_writer
from recurra.tasks.base import require_split
from recurra.tasks.tables import CommandResult, Table


def evaluate_labels(
    task: Any,
    run: Path,
    *,
    split: str | None = None,
    data: Path | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    encoding: str | None = None,
    data_root: Path | None = None,
    output: Path | None = None,
    precision: str | None = None,
    batch_size: int = DEFAULT_BATCH_SIZE,
) -> CommandResult:
    """Evaluates a run or an export, and writes predictions if asked to.

    Args:
        split: A split of the run's own data; none takes ``test``, or else the last that the run reports.
        data: A labelled file instead, with columns and encoding as the run's data have them unless they are named.
        precision: Precision to compute in; none takes the run's own, of an export that of its weights.

    Raises:
        CheckpointError: If the run is not finished or damaged.
        ConfigurationError: If there is no such split, or split and file are both named.
        DataError: If the data cannot be used, or are not those of the record any more.
    """
    record = read_source_record(run)
    if output is not None:
        check_output(output, data)
    named = {"text_column": text_column, "label_column": label_column, "encoding": encoding}
    reading = {name: value for name, value in named.items() if value is not None}
    if data is not None:
        if split is not None:
            raise ConfigurationError(f"both the split '{split}' and the file '{data}' are given; give one of the two")
        rows = _file_split(record, data, reading)
    else:
        for name, value in reading.items():
            option = f"--{name.replace('_', '-')}"
            raise ConfigurationError(f"{option} is '{value}' but no file is given; add --data FILE")
        rows = own_split(record, split or record.data.headline_split, data_root)
    classifier = Classifier.open(run, precision=precision, batch_size=batch_size)
    by_head = classifier.exit_logits(rows.texts)
    logits = by_head[max(by_head)]
    decision, computation, names = classifier.decision, classifier.computation, record.data.label_names
    probabilities = decision.probabilities(logits)
    if output is not None:
        columns = {"id": rows.ids, "truth": decision.texts(rows.labels), "text": rows.texts}
        with open_writer(output, decision, columns=InputColumns(list(columns))) as write:
            write(PredictedRows(rows.texts, probabilities, list(columns.values())))
    metrics = task.measure(logits, rows.labels, decision)
    metrics = task.of_depth(metrics, rows, by_head, classifier.engine, classifier.batch_size)
    recorded = None if data is not None else record.metrics.get(rows.name)
    figures = {"Rows of": rows.name, "Rows": f"{len(rows):,}", **task.figures(metrics)}
    lines = [computation.describe(), *([] if output is None else [f"predictions: {output}"])]
    if recorded is not None:
        first = task.measures[0]
        lines.append(f"{first.in_text} in the record: {first.value(first.of_run(recorded))}")
    if by_exit := getattr(metrics, "exit_accuracy", None):
        accuracies = ", ".join(f"{accuracy:.4f} after {number}" for number, accuracy in by_exit.items())
        lines.append(f"accuracy if every text stops early: {accuracies}")
    plain = {
        "run_id": record.run_id,
        "source": rows.name,
        "fingerprint": rows.fingerprint,
        "label_names": names,
        "metrics": metrics.model_dump(mode="json"),
        "recorded": None if recorded is None else recorded.model_dump(mode="json"),
        "computation": computation.plain(),
        "output": None if output is None else str(output),
    }
    if (abstained := decision.abstained(probabilities)) is not None:
        plain["abstained"] = int(abstained.sum())
        lines.append(_abstaining(abstained, decision.same(logits, rows.labels)))
    if isinstance(decision, AnyLabels):
        plain["thresholds"] = dict(zip(names, decision.thresholds.tolist(), strict=True))
    tables = [Table("results", record.run_id, [figures]), task.details(names, metrics, decision)]
    return CommandResult(plain, [*tables, lines])


def _abstaining(abstained: npt.NDArray[np.bool_], right: npt.NDArray[np.bool_]) -> str:
    """Says how many rows get no label, which the figures ignore, and how many of the other labels are right."""
    count, answered = int(abstained.sum()), right[~abstained]
    others = f"; {answered.mean():.1%} of the labels given are right" if answered.size else ""
    return (
        f"{count:,} of {abstained.size:,} rows ({abstained.mean():.1%}) have no label: they are below the export's "
        f"threshold for their label. The figures count all rows, each with the label that it would have{others}"
    )


def _file_split(record: LabelRunRecord, path: Path, reading: Mapping[str, str]) -> TextSplit:
    recorded = recorded_data(record)
    if "label_column" in reading and recorded.labels.columns:
        raise ConfigurationError(
            f"--label-column is '{reading['label_column']}', and this run reads its labels from the columns "
            f"{', '.join(recorded.labels.columns)}; leave it out"
        )
    # Groups only matter when splits are made, and the id column is that of the run's own file.
    cleared = dict.fromkeys(("group_column", "id_column", "auxiliary", "unlabelled"))
    values = {**recorded.plain(), "name": str(path), **cleared, "unlabelled_unit": "texts", **reading}
    config = recorded.parse(values, source="evaluation")
    return load_split(path, config, record.data.label_names, name=str(path))


def own_split(record: LabelRunRecord, name: str, data_root: Path | None) -> TextSplit:
    """Returns a split of a run's own data.

    Raises:
        ConfigurationError: If the run has no such split.
        DataError: If it is not as it was recorded.
    """
    require_split(record, name)
    return recorded_split(record, name, data_root)
