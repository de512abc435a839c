"""Evaluating a finished run or an export: on a split of the run's own data, or on a labelled file of the user."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recurra.core.errors import ConfigurationError, DataError, unknown
from recurra.core.record import MetricsRecord, RunRecord
from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset
from recurra.data.dataset import TextSplit
from recurra.data.splits import load_split
from recurra.deployment.classifier import DEFAULT_BATCH_SIZE, Classifier
from recurra.deployment.computation import Computation
from recurra.deployment.depth import softmax
from recurra.deployment.manifest import read_source_record
from recurra.deployment.writers import PredictedRows, check_output, open_writer
from recurra.evaluation.metrics import evaluate_logits


@dataclass(frozen=True)
class Evaluation:
    """Quality of a run, or of an export of it, on some rows.

    Attributes:
        run_id: The run.
        source: The split, or the file.
        fingerprint: Of texts and labels, in order.
        label_names: Names of the classes, in order.
        metrics: What was measured now.
        recorded: What the run's record says of the same split, if it has it.
        computation: Precision of the stored weights and of the computation, engine and device.
        output: The file of predictions, if one was asked for.
    """

    run_id: str
    source: str
    fingerprint: str
    label_names: list[str]
    metrics: MetricsRecord
    recorded: MetricsRecord | None
    computation: Computation
    output: Path | None

    def plain(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return {
            "run_id": self.run_id,
            "source": self.source,
            "fingerprint": self.fingerprint,
            "label_names": self.label_names,
            "metrics": self.metrics.model_dump(mode="json"),
            "recorded": None if self.recorded is None else self.recorded.model_dump(mode="json"),
            "computation": self.computation.plain(),
            "output": None if self.output is None else str(self.output),
        }


def evaluate_run(
    run: Path,
    *,
    split: str | None = None,
    data: Path | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    data_root: Path | None = None,
    output: Path | None = None,
    precision: str | None = None,
    batch_size: int = DEFAULT_BATCH_SIZE,
) -> Evaluation:
    """Evaluates a run or an export.

    Args:
        run: The run folder, or a folder of ``recurra export``.
        split: A split of the run's own data; none takes the last that the run reports, usually ``test``.
        data: A labelled file instead.
        text_column: Column of the file with the text; none takes that of the run's data.
        label_column: Column of the file with the label; likewise.
        data_root: Local copies of public data.
        output: Where to write a prediction for each row (CSV, TSV, JSONL or Parquet); none writes nothing.
        precision: Precision to compute in; none takes the run's own, of an export that of its weights.
        batch_size: Texts a batch.

    Raises:
        CheckpointError: If the run is not finished or damaged.
        ConfigurationError: If there is no such split, or split and file are both named.
        DataError: If the data cannot be used, or are not those of the record any more.
    """
    record = read_source_record(run)
    if output is not None:
        check_output(output, data)
    if data is not None:
        if split is not None:
            raise ConfigurationError(f"both the split '{split}' and the file '{data}' are given; give one of the two")
        rows = _file_split(record, data, text_column, label_column)
    else:
        rows = own_split(record, split or record.data.reported_splits[-1], data_root)
    classifier = Classifier.open(run, precision=precision, batch_size=batch_size)
    logits = classifier.logits(rows.texts, clean=False)
    metrics = evaluate_logits(logits, rows.labels)
    assert classifier.computation is not None
    if output is not None:
        names = record.data.label_names
        with open_writer(output, names, ids=True, truth=True) as writer:
            truth = [names[label] for label in rows.labels]
            writer.write(PredictedRows(rows.texts, softmax(logits), ids=rows.ids, truth=truth))
    return Evaluation(
        run_id=record.run_id,
        source=rows.name,
        fingerprint=rows.fingerprint,
        label_names=record.data.label_names,
        metrics=metrics,
        computation=classifier.computation,
        recorded=None if data is not None else record.metrics.get(rows.name),
        output=output,
    )


def _file_split(record: RunRecord, path: Path, text_column: str | None, label_column: str | None) -> TextSplit:
    own = DataConfig.parse(record.config["data"], source="record")
    columns = {"text_column": text_column or own.text_column, "label_column": label_column or own.label_column}
    # Groups only matter while splits are made.
    config = DataConfig.parse({"name": str(path), **columns}, source="evaluation")
    return load_split(path, config, record.data.label_names, name=str(path))


def own_split(record: RunRecord, name: str, data_root: Path | None) -> TextSplit:
    """Returns a split of a run's own data, as it was recorded.

    Raises:
        ConfigurationError: If the run has no such split.
        DataError: If the data cannot be had, or have changed.
    """
    if name not in record.data.splits:
        raise ConfigurationError(unknown(f"split of run '{record.run_id}'", name, record.data.splits))
    dataset = load_dataset(DataConfig.parse(record.config["data"], source="record"), data_root)
    rows = dataset.splits.get(name)
    recorded = record.data.splits[name].fingerprint
    if rows is None or rows.fingerprint != recorded:
        found = "missing" if rows is None else rows.fingerprint
        raise DataError(
            f"split '{name}' of '{record.config['data']['name']}' is not what the run was recorded on (fingerprint "
            f"{found}, recorded {recorded}): the data have changed; restore them, or evaluate a file with --data FILE"
        )
    return rows
