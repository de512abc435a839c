"""Makes, evaluates and records exports of finished runs, in a worker."""

from __future__ import annotations

import datetime
import itertools
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from recurra.core.environment import code_record, environment_record
from recurra.core.errors import DataError, RecurraError, RunError
from recurra.core.packed import RUNS_NAME
from recurra.core.progress import Reporter
from recurra.core.record import LabelRunRecord, read_record
from recurra.data.corpora import recorded_data
from recurra.data.dataset import TextSplit
from recurra.deployment.classifier import Classifier
from recurra.deployment.export.build import export_run
from recurra.deployment.export.manifest import ExportOptions
from recurra.deployment.export_record import (
    ExportedExits,
    ExportedSplit,
    ExportRecord,
    ExportRequest,
    error_path,
    export_folder,
    write_export_record,
)
from recurra.evaluation.metrics import evaluate_logits
from recurra.models.quiet import quieten_libraries
from recurra.study.plan import note_failure
from recurra.tasks.run_folder import accelerator_name
from recurra.tasks.study_data import StudyData

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Reference:
    """The splits of a run's data on which exports are checked, and its FP32 logits on those that it reports."""

    run: Path
    record: LabelRunRecord
    splits: dict[str, TextSplit]
    logits: dict[str, Logits]

    @classmethod
    def of(cls, run: Path, data: StudyData) -> Reference:
        """Reads a run and computes its splits.

        Raises:
            DataError: If the data have changed since the run was recorded.
        """
        record = read_record(run)
        dataset = data.rows(recorded_data(record))
        if dataset.fingerprint != record.data.fingerprint:
            raise DataError(
                f"the data of '{record.run_id}' have changed (fingerprint {dataset.fingerprint}, recorded "
                f"{record.data.fingerprint}): an export cannot be evaluated on the rows of the run; restore the data"
            )
        classifier = Classifier.from_run(run, precision="fp32")
        # Texts of a split are clean already.
        logits = {
            name: classifier.logits(dataset.splits[name].texts, clean=False) for name in record.data.reported_splits
        }
        # Training texts, which may be gigabytes, are not kept.
        needed = {"validation", record.data.selection_split, *logits}
        splits = {name: split for name, split in dataset.splits.items() if name in needed}
        return cls(run, record, splits, logits)

    def compare(self, classifier: Classifier) -> dict[str, ExportedSplit]:
        """Evaluates an export on the same rows."""
        temperature, splits = classifier.decision.temperature, {}
        for name, logits in self.logits.items():
            split = self.splits[name]
            export_logits = classifier.logits(split.texts, clean=False)
            splits[name] = compare_split(export_logits, logits, split.labels, temperature)
        return splits

    def compare_exits(self, classifier: Classifier) -> ExportedExits | None:
        """Evaluates an export with early exits, if it has a calibrated rule."""
        rule = classifier.calibrated_rule
        if rule is None or classifier.calibration is None:
            return None
        splits, taken, temperature = {}, {}, classifier.decision.temperature
        for name, reference in self.logits.items():
            split = self.splits[name]
            logits, exited_after = classifier.engine.leave_early(split.texts, classifier.batch_size, rule)
            splits[name] = compare_split(logits, reference, split.labels, temperature)
            taken[name] = dict(sorted(Counter(exited_after.tolist()).items()))
        return ExportedExits(calibration=classifier.calibration, splits=splits, taken=taken)


def compare_split(
    logits: Logits, reference: Logits, labels: npt.NDArray[np.int64], temperature: float
) -> ExportedSplit:
    """Compares the logits of an export with the reference, on rows with labels ``(rows,)`` and at a temperature."""
    ours, theirs = logits.argmax(axis=1), reference.argmax(axis=1)
    return ExportedSplit(
        metrics=evaluate_logits(logits, labels, temperature),
        reference=evaluate_logits(reference, labels, temperature),
        labels_changed=int((ours != theirs).sum()),
        only_export=int(((ours == labels) & (theirs != labels)).sum()),
        only_reference=int(((ours != labels) & (theirs == labels)).sum()),
    )


def make_export(reference: Reference, request: ExportRequest, output: Path) -> ExportRecord:
    """Exports a run, evaluates the export and writes its record last.

    Raises:
        RecurraError: If the export fails.
    """
    folder = export_folder(output, reference.record.run_id, request)
    options = ExportOptions(format=request.format, precision=request.precision, overwrite=True)
    manifest = export_run(reference.run, folder, options, splits=reference.splits)
    classifier = Classifier.from_export(folder, threads=torch.get_num_threads())
    record = ExportRecord(
        run_id=reference.record.run_id,
        record_hash=manifest.record_hash,
        format=request.format,
        precision=request.precision,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        code=code_record(),
        environment=environment_record(
            threads=torch.get_num_threads(),
            precision=classifier.computation.compute_precision,
            accelerator=accelerator_name(),
        ),
        computation=classifier.computation,
        weights_bytes=manifest.weights_bytes,
        folder_bytes=manifest.size_bytes,
        splits=reference.compare(classifier),
        check=manifest.check,
        exits=reference.compare_exits(classifier),
    )
    write_export_record(folder, record)
    error_path(folder).unlink(missing_ok=True)
    return record


def export_all(data: StudyData, output: str, threads: int, work: list[dict[str, Any]]) -> None:
    """Makes exports, run by run; an export that fails leaves its reason in a file."""
    quieten_libraries()
    torch.set_num_threads(threads)
    reporter = Reporter()
    for run_id, items in itertools.groupby(work, key=lambda item: str(item["run_id"])):
        reference: Reference | None = None
        for item in items:
            request = ExportRequest(format=item["format"], precision=item["precision"])
            try:
                reference = reference or Reference.of(Path(output, RUNS_NAME, run_id), data)
                record = make_export(reference, request, Path(output))
            except Exception as error:  # noqa: BLE001 - whatever a converter raises, the others go on
                reason, kind = str(error), type(error).__name__
                if not isinstance(error, RecurraError):
                    first_line = (reason.strip().splitlines() or ["no message"])[0]
                    reason = f"{kind}: {first_line[:300]}"
                reporter.say(f"{run_id}/{request.name}: error: {reason}")
                code = getattr(error, "exit_code", RunError.exit_code)
                note_failure(error_path(export_folder(Path(output), run_id, request)), reason, kind=kind, code=code)
                continue
            size = record.weights_bytes / 2**20
            reporter.say(f"{run_id}/{request.name}: {size:.2f} MiB, {record.computation.describe()}")
