"""Holding an export against the run's model on real rows before it takes its place; choosing its exit rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from recurra.core.errors import AuditError, DataError, RecurraError
from recurra.core.record import LabelRunRecord
from recurra.data.cleaning import clean_texts, recorded_cleaning
from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset, recorded_split
from recurra.data.dataset import TextSplit
from recurra.data.tables import stream_texts
from recurra.deployment.decision import LabelDecision
from recurra.deployment.engines.computation import Computation, Engine
from recurra.deployment.export.formats import StoredPrecision
from recurra.deployment.export.manifest import CalibrationRecord, CheckRecord, ExportOptions
from recurra.models.exits.thresholds import calibrate_classifier, check_enough_rows, keeps

MOST_ROWS = 2000

Logits = npt.NDArray[np.float32]
Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class CheckRows:
    """Rows to check an export on, with labels ``(rows,)`` or ``(rows, labels)`` if they are known and the model's own.

    The note says why the run's own rows were not taken, if they were to be.
    """

    source: str
    texts: Sequence[str]
    labels: npt.NDArray[np.int64] | None = None
    note: str = ""


def choose_rows(record: LabelRunRecord, options: ExportOptions) -> CheckRows:
    """Returns rows to check on: those of a file, else the run's own validation split, else the embedded demo corpus.

    Labels of a file are not looked at.
    """
    if (file := options.rows_file) is not None:
        chunks = stream_texts(file, options.text_column, MOST_ROWS, encoding=options.encoding)
        texts = [text for chunk in chunks for text in chunk]
        if not texts:
            raise DataError(f"'{file}' has no rows to check the export on; give a file with texts")
        return CheckRows(f"the file {file.name}", clean_texts(_spread(texts), recorded_cleaning(record.config)))
    root = options.data_root
    if root is not None and not root.is_dir():
        raise DataError(f"the data root '{root}' is not a folder; give --data-root DIR (or RECURRA_DATA_ROOT)")
    try:
        split = recorded_split(record, check_split(record), root)
    except RecurraError as error:
        demo = load_dataset(DataConfig(name="demo")).splits["test"]
        source = "the embedded demo corpus, for the run's own data are not at hand"
        return CheckRows(source, demo.texts[:MOST_ROWS], note=str(error))
    return rows_of(split, record)


def rows_of(split: TextSplit, record: LabelRunRecord) -> CheckRows:
    """Rows of one of the run's splits to check on."""
    chosen = split.select(_spread(range(len(split))))
    return CheckRows(f"the {split.name} split of {record.data.name}", chosen.texts, chosen.labels)


def check_split(record: LabelRunRecord) -> str:
    """The split of a run's data that exports are checked on: validation, or what chose its checkpoint."""
    return "validation" if "validation" in record.data.splits else record.data.selection_split


def choose_exit_rows(record: LabelRunRecord, options: ExportOptions, checked: CheckRows) -> CheckRows:
    """Returns rows to choose an exit rule on: those of a file, else of the split that chose the run's weights.

    A reported split would no longer be unseen. Rows of something else than the run's own data choose nothing: then
    there are none, and a note.
    """
    if options.rows_file is not None or (not checked.note and check_split(record) == record.data.selection_split):
        return checked
    try:
        return rows_of(recorded_split(record, record.data.selection_split, options.data_root), record)
    except RecurraError as error:
        return CheckRows("no rows", [], note=str(error))


def _spread(items: Sequence[Item]) -> list[Item]:
    """At most `MOST_ROWS` of some items, evenly spread: a sorted file has its labels one after the other."""
    chosen = np.linspace(0, len(items) - 1, min(len(items), MOST_ROWS)).round().astype(int)
    return [items[index] for index in chosen.tolist()]


def compare_logits(
    rows: CheckRows,
    reference: Logits,
    logits: Logits,
    *,
    by: Computation,
    reference_by: Computation,
    decision: LabelDecision,
) -> CheckRecord:
    """Describes how far an export's logits ``(rows, labels)`` lie from those of the run's model; all must be finite."""
    for values, whose, advice in (
        (
            reference,
            "run's model itself",
            "its weights are damaged, or too large to compute with: copy or train it again",
        ),
        (logits, "export", "export in fp32 or bf16, which have a larger range"),
    ):
        if bad := int((~np.isfinite(values).all(axis=1)).sum()):
            raise AuditError(
                f"the {whose} gives logits that are not finite for {bad} of {len(values)} rows; nothing was written; "
                f"{advice}"
            )
    labelled: dict[str, Any] = {}
    if rows.labels is not None:
        before, after = decision.same(reference, rows.labels), decision.same(logits, rows.labels)
        labelled = {"reference_accuracy": float(before.mean()), "accuracy": float(after.mean())}
        labelled |= {"only_reference": int((before & ~after).sum()), "only_export": int((after & ~before).sum())}
    return CheckRecord(
        source=rows.source,
        rows=len(rows.texts),
        label_agreement=decision.agreement(logits, decision.of_logits(reference)),
        largest_logit_difference=float(np.abs(logits.astype(np.float64) - reference).max()),
        largest_logit=float(np.abs(reference).max()),
        reference=reference_by,
        computation=by,
        **labelled,
    )


def judge_check(check: CheckRecord, precision: StoredPrecision) -> str:
    """Refuses an export that is not the run's model any more; returns what is to be said of one that may not be.

    Raises:
        AuditError: If labels differ too often, logits differ where they must not, or too much accuracy is lost: more
            than is allowed, and more than chance among so few rows explains.
    """
    measured = (
        f"{check.label_agreement:.2%} of {check.rows:,} labels agree, "
        f"largest logit difference {check.largest_logit_difference:.2g}, on {check.source}"
    )
    name, tolerance, most = precision.name, precision.logit_tolerance, precision.most_lost_points
    if check.label_agreement < precision.least_agreement:
        raise AuditError(
            f"the {name} export disagrees with the run's model: {measured}; at least {precision.least_agreement:.1%} "
            "of labels must agree; nothing was written; export in a wider precision"
        )
    if tolerance is not None and check.largest_logit_difference > tolerance * max(1.0, check.largest_logit):
        raise AuditError(
            f"the {name} export does not compute what the run's model computes: {measured}; nothing was written"
        )
    lost, interval = check.lost_points, check.lost_points_interval
    if most is None or lost is None or interval is None or lost <= most:
        return ""
    measured = f"the {name} export {check.describe_loss()} on {check.source}"
    if interval[0] > 0:
        raise AuditError(f"{measured}; at most {most} points are allowed; nothing was written; export in fp32")
    return f"{measured}: more than {most} points, but chance among so few rows may do that; check on more labelled rows"


# Once rows leave, those that stay are another batch, which in int8 has other scales. Where that costs more labels than
# were asked for, a more careful threshold is tried, so often.
_TRIES = 6


def calibrate_exits(
    engine: Engine, rows: CheckRows, wanted: float, batch_size: int, *, confidence: float | None = None
) -> CalibrationRecord:
    """Chooses the threshold that lets most rows leave while enough of them keep the label of the export in full.

    What the record says of the rule is measured with rows that really leave the exported model. With a confidence,
    these rows promise it for others (`recurra.models.exits.thresholds`).

    Raises:
        ConfigurationError: If there are too few rows for the promise.
    """
    assert engine.depth is not None
    exits = list(engine.depth.exits)
    nothing = CalibrationRecord(
        exits=exits, asked=wanted, source=rows.source, rows=len(rows.texts), confidence=confidence
    )
    if not len(rows.texts):
        return nothing
    if confidence is not None:
        check_enough_rows(len(rows.texts), wanted, confidence)
    logits = engine.logits_by_recurrence(rows.texts, batch_size)
    full = logits[engine.depth.num_recurrences].argmax(axis=1)
    target = wanted
    # A second try on the same rows would make the promise one of several.
    for _ in range(_TRIES if confidence is None else 1):
        rule = calibrate_classifier(logits, target, confidence=confidence).rule
        if rule is None:
            return nothing
        early = engine.leave_early(rows.texts, batch_size, rule)
        labels = early.logits.argmax(axis=1)
        agreement = float((labels == full).mean())
        if agreement >= wanted and (confidence is None or keeps(agreement, len(labels), wanted, confidence)):
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
