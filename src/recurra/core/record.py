"""The records of runs and their parts; ``docs/reference/record.md`` says what each field means."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from recurra.core.configuration import HashedSettings
from recurra.core.errors import CheckpointError
from recurra.core.packed import in_study, read_study_bytes
from recurra.core.record_parts import (
    ANSWERS,
    AnyDecisionRecord,
    AnyTrainingRecord,
    AuditResult,
    CodeRecord,
    DecisionRecord,
    EncoderRecord,
    EnvironmentRecord,
    LatencyRecord,
    ModelRecord,
    OneLabelRecord,
    Part,
    RunRecordBase,
    hash_of_text,
)
from recurra.core.sealed import read_sealed


class LengthSummary(Part):
    """Lengths of the texts of a split in words. ``counts[i]`` texts have ``edges[i] <= words < edges[i + 1]``."""

    mean: float
    median: float
    p90: float
    max: int
    edges: list[int]
    counts: list[int]


class SplitRecord(Part):
    """One split: fingerprint (content and order), rows, rows a label, lengths in words."""

    fingerprint: str
    rows: int
    label_counts: dict[str, int]
    words: LengthSummary


def headline_of(reported_splits: Sequence[str]) -> str:
    """The split that a model is judged on: ``test``, or else the last that is reported."""
    return "test" if "test" in reported_splits else reported_splits[-1]


# First words of the note on a model that was trained once more, after another was judged.
TRAINED_ON_TEST_ROWS = "This model was trained on test rows too."


class DataRecord(Part):
    """The data of a run. ``selection_split`` chose the checkpoint; ``reported_splits`` are evaluated."""

    name: str
    protocol: str
    fingerprint: str
    label_names: list[str]
    selection_split: str
    reported_splits: list[str]
    splits: dict[str, SplitRecord]
    dropped: dict[str, int] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)
    tokenizer: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_splits(self) -> DataRecord:
        named = ["train", self.selection_split, *self.reported_splits]
        if missing := [name for name in named if name not in self.splits]:
            raise ValueError(f"names the split '{missing[0]}' but does not describe it")
        return self

    @property
    def headline_split(self) -> str:
        """See `headline_of`."""
        return headline_of(self.reported_splits)

    @property
    def judged_before(self) -> str:
        """How the model before this one was judged, if this one was trained on test rows too; else empty."""
        return next((note for note in self.notes if note.startswith(TRAINED_ON_TEST_ROWS)), "")


class EpochRecord(Part):
    """One epoch. Losses are means over examples; ``wall_s`` is the epoch's own."""

    epoch: int
    train_loss: float
    validation_loss: float
    validation_accuracy: float
    learning_rate: float
    wall_s: float


class TrainingRecord(AnyTrainingRecord):
    """How a classifier's training went, epoch by epoch."""

    history: list[EpochRecord] = Field(default_factory=list)


# With more labels only the cells of a matrix that are not zero are written: with 2,000 labels it has four million.
_MOST_WRITTEN_WHOLE, MOST_LABELS = 100, 10_000


def matrix_as_written(matrix: list[list[int]]) -> Any:
    """A confusion matrix ``[true][predicted]``, or with many labels its cells: ``[true, predicted, rows]`` each."""
    if len(matrix) <= _MOST_WRITTEN_WHOLE:
        return matrix
    cells = [
        [true, predicted, count] for true, row in enumerate(matrix) for predicted, count in enumerate(row) if count
    ]
    return {"labels": len(matrix), "cells": cells}


def _matrix_of(written: Any) -> Any:
    if not isinstance(written, dict):
        return written
    labels, cells = written.get("labels"), written.get("cells")
    if type(labels) is not int or not isinstance(cells, list):
        raise ValueError("a matrix needs the number of its 'labels' and a list of 'cells'")
    if not 0 <= labels <= MOST_LABELS:
        raise ValueError(f"a matrix of {labels:,} labels; at most {MOST_LABELS:,} can be read")
    matrix = [[0] * labels for _ in range(labels)]
    for cell in cells:
        if not (isinstance(cell, list) and len(cell) == 3 and all(type(value) is int for value in cell)):
            raise ValueError(f"{cell!r} is no cell of a matrix; it lacks the numbers [true, predicted, rows]")
        true, predicted, count = cell
        if not (0 <= true < labels and 0 <= predicted < labels):
            raise ValueError(f"cell {true}, {predicted} lies outside a matrix of {labels:,} labels")
        matrix[true][predicted] = count
    return matrix


class MetricsRecord(HashedSettings):
    """Quality on one split. Precision, recall and F1 are those of label 1 of two classes, or macro means of more.

    ``loss`` is None for answers without probabilities. Average precision is by label; None for a label without rows.
    ``exit_accuracy`` is the accuracy of the head after each exit, by its recurrence; None without exits.
    ``recurrences`` counts rows by the recurrences that they took; None if the model does not decide it row by row.
    """

    rows: int
    accuracy: float
    precision: float
    recall: float
    f1: float
    loss: float | None
    accuracy_interval: tuple[float, float]
    confusion_matrix: Annotated[list[list[int]], BeforeValidator(_matrix_of), PlainSerializer(matrix_as_written)]
    calibration_error: float | None = None
    uncalibrated_error: float | None = None
    average_precision: list[float | None] | None = None
    exit_accuracy: dict[int, float] | None = None
    recurrences: dict[int, int] | None = None

    def figures(self) -> dict[str, str]:
        """The figures of a model card, by heading."""
        low, high = self.accuracy_interval
        error = self.calibration_error
        return {
            "accuracy": f"{self.accuracy:.4f}",
            "95 % interval": f"{low:.4f} to {high:.4f}",
            "precision": f"{self.precision:.4f}",
            "recall": f"{self.recall:.4f}",
            "F1": f"{self.f1:.4f}",
            **({} if self.loss is None else {"loss": f"{self.loss:.4f}"}),
            **({} if error is None else {"calibration error": f"{error:.4f}"}),
        }

    def without_probabilities(self) -> MetricsRecord:
        """The same record without the figures that need probabilities."""
        return self.model_copy(update={"loss": None, "calibration_error": None, "uncalibrated_error": None})


class TeacherRecord(HashedSettings):
    """The teachers of a model; ``agreement`` is on the rows that chose the epoch."""

    names: list[str]
    runs: list[str]
    identities: list[str]
    rows: int
    compares_states: bool
    wall_s: float
    train_accuracy: float
    agreement: float
    unlabelled_rows: int = 0


class LearningCurveRecord(HashedSettings):
    """The same model fitted on parts of the training rows, each twice as large as the previous; the last has all."""

    split: str
    rows: list[int]
    right: list[float]
    last_gain: tuple[float, float]


class MistakeRecord(HashedSettings):
    """A row with a wrong label."""

    id: str
    labels: list[str]
    said: str
    probability: float
    words: list[str] | None = None


class LabelRunRecord(RunRecordBase):
    """The record of one run of a model that labels texts; each such task has a subclass with its metrics."""

    # Text under the figures of a model card; empty for the text for classifiers.
    figures_note: ClassVar[str] = ""

    data: DataRecord
    training: TrainingRecord
    decision: AnyDecisionRecord | None = None
    teacher: TeacherRecord | None = None
    learning_curve: LearningCurveRecord | None = None
    telling_words: dict[str, list[str]] | None = None
    mistakes: list[MistakeRecord] | None = None


class RunRecord(LabelRunRecord):
    """Everything about one run of a classifier. See the parts."""

    schema_version: Literal[1, 2, 3, 4] = 4
    task: Literal["classification"] = "classification"
    metrics: dict[str, MetricsRecord]

    @classmethod
    def fits(cls, text: bytes, values: dict[str, Any]) -> bool:
        """Whether a file is as it was written; records of the first schema have no hash and always fit."""
        unsealed = values.get("schema_version") == 1 and values.get("content_hash") is None
        return unsealed or super().fits(text, values)


# Classes are called unequal when the largest has at least this many times the rows of the smallest.
UNEQUAL = 3.0


def are_unequal(counts: Iterable[int]) -> bool:
    """Whether classes with these numbers of rows are unequal enough for accuracy to mislead."""
    present = [count for count in counts if count > 0]
    return len(present) > 1 and max(present) >= UNEQUAL * min(present)


class LabelFiguresRecord(Part):
    """Figures of one label. A ratio without a denominator is 0."""

    precision: float
    recall: float
    f1: float
    support: int
    predicted: int


class MultiLabelMetricsRecord(Part):
    """Quality on one split; a label that never occurs counts as 0 in macro F1, and the loss is in nats a pair."""

    rows: int
    micro_f1: float
    micro_f1_interval: tuple[float, float]
    macro_f1: float
    subset_accuracy: float
    hamming_loss: float
    loss: float
    labels: dict[str, LabelFiguresRecord]
    calibration_error: float | None = None
    uncalibrated_error: float | None = None

    def figures(self) -> dict[str, str]:
        """The figures of a model card, by heading."""
        low, high = self.micro_f1_interval
        return {
            "micro F1": f"{self.micro_f1:.4f}",
            "95 % interval": f"{low:.4f} to {high:.4f}",
            "macro F1": f"{self.macro_f1:.4f}",
            "all labels right": f"{self.subset_accuracy:.4f}",
            "Hamming loss": f"{self.hamming_loss:.4f}",
            "loss": f"{self.loss:.4f}",
            **({} if self.calibration_error is None else {"calibration error": f"{self.calibration_error:.4f}"}),
        }


class MultiLabelRunRecord(LabelRunRecord):
    """Everything about one multi-label run. See the parts."""

    figures_note: ClassVar[str] = (
        "Intervals are of micro F1 over rows (bootstrap). This is one training with one seed; another seed would move "
        "the figures.\nMicro F1 counts pairs of a text and a label; macro F1 is the mean over labels."
    )

    schema_version: Literal[3, 4] = 4
    task: Literal["multi-label classification"] = "multi-label classification"
    metrics: dict[str, MultiLabelMetricsRecord]
    decision: DecisionRecord


FINAL_HEAD = "final"
# Prefix of audit results on batch norms in training mode, which do not make evaluated figures leak.
IN_TRAINING = "causality.training."


def is_of_causality(audit: str) -> bool:
    """Whether an audit of this name means, if it fails, that evaluated figures leak."""
    return audit.startswith("causality.") and not audit.startswith(IN_TRAINING)


class LanguageSplitRecord(Part):
    """The part of a split that was used: all of it, or in mode ``lines`` its long lines.

    ``words`` includes one end-of-line a line, ``bytes`` one byte for each end of line, ``tokens`` the end-of-text
    tokens; ``samples`` is the number of training samples.
    """

    fingerprint: str
    texts: int
    words: int
    bytes: int
    tokens: int
    samples: int | None = None


class LanguageDataRecord(Part):
    """The data of a run. ``selection_split`` chose the checkpoint; ``reported_splits`` are evaluated."""

    name: str
    unit: str
    mode: Literal["packed", "lines"]
    context: int
    fingerprint: str
    selection_split: str
    reported_splits: list[str]
    splits: dict[str, LanguageSplitRecord]
    notes: list[str] = Field(default_factory=list)
    tokenizer: dict[str, Any] = Field(default_factory=dict)

    @property
    def protocol(self) -> str:
        """How the text becomes samples, in a word."""
        return f"{self.mode}-{self.context}"


class LanguageEpochRecord(Part):
    """One epoch. ``wall_s`` is the epoch's own."""

    epoch: int
    train_loss: float
    validation_loss: float
    validation_heads: dict[str, float]
    learning_rate: float
    wall_s: float


class LanguageTrainingRecord(AnyTrainingRecord):
    """How a language model's training went, epoch by epoch."""

    history: list[LanguageEpochRecord] = Field(default_factory=list)


class HeadRecord(Part):
    """How well one head predicts a split; figures by word and byte are None if the tokenizer loses part of a text.

    ``token_perplexity`` is ``exp(loss)``, None if that overflows; published figures are in ``word_perplexity``.
    """

    loss: float
    token_perplexity: float | None
    word_perplexity: float | None
    bits_per_byte: float | None


class LanguageMetricsRecord(Part):
    """Quality on one split, every token scored once; ``stride`` is the context for blocks that do not overlap."""

    tokens: int
    words: int
    bytes: int
    context: int
    stride: int
    heads: dict[str, HeadRecord]

    @property
    def final(self) -> HeadRecord:
        """The last head."""
        return self.heads[FINAL_HEAD]


class LanguageRunRecord(RunRecordBase):
    """Everything about one run of a language model. See the parts; it came with schema 3."""

    schema_version: Literal[3, 4] = 4
    task: Literal["language modelling"] = "language modelling"
    data: LanguageDataRecord
    training: LanguageTrainingRecord
    metrics: dict[str, LanguageMetricsRecord]

    @property
    def leaks(self) -> bool:
        """Whether the causality audit failed: predictions read the tokens that they should predict."""
        return any(is_of_causality(audit.name) for audit in self.failed_audits())

    @property
    def label(self) -> str:
        """The model's name for tables; marked if the model leaks."""
        name = self.model.preset
        return f"{name} (leaks)" if self.leaks and "leaks" not in name else name


# Parts from `record_parts` that other modules import from here.
__all__ = [
    "AnyDecisionRecord",
    "AuditResult",
    "CodeRecord",
    "DecisionRecord",
    "EncoderRecord",
    "EnvironmentRecord",
    "LatencyRecord",
    "ModelRecord",
    "OneLabelRecord",
]

SCHEMA_VERSION = 4
RECORD_NAME = "record.json"
AnyRecord = LabelRunRecord | LanguageRunRecord
# The class of the records of each task, by the task's name.
RECORDS: dict[str, type[AnyRecord]] = {
    "language modelling": LanguageRunRecord,
    "multi-label classification": MultiLabelRunRecord,
    "classification": RunRecord,
}


def write_record(folder: Path | str, record: AnyRecord) -> Path:
    """Writes ``record.json`` into a run folder, atomically and with the hash of its content, and returns its path."""
    path = Path(folder) / RECORD_NAME
    record.model_copy(update={"schema_version": SCHEMA_VERSION}).write(path)
    return path


def read_record(folder: Path | str) -> LabelRunRecord:
    """Reads the record of the run folder (or a record file) of a model that labels texts."""
    record = read_any_record(folder)
    if isinstance(record, LanguageRunRecord):
        raise CheckpointError(
            f"'{folder}' is a run of a language model, but a classifier is needed; use 'recurra evaluate' or 'recurra "
            "audit model'"
        )
    if record.model.kind == ANSWERS:
        raise CheckpointError(f"'{folder}' is a run of answers from elsewhere: there is no model to use")
    return record


def read_language_record(folder: Path | str) -> LanguageRunRecord:
    """Reads the record of a language model's run folder (or a record file)."""
    record = read_any_record(folder)
    if isinstance(record, LabelRunRecord):
        raise CheckpointError(f"'{folder}' is a run of a classifier, but a language model is needed")
    return record


def read_any_record(folder: Path | str) -> AnyRecord:
    """Reads the record of a run folder (or a record file), whatever was trained."""
    path = _record_path(folder)
    return read_sealed(
        path,
        lambda values: _class_of(values, path),
        what="a record of ours",
        cure="restore it, or delete it to run again",
        missing="not a finished run; give a folder made by 'recurra train', "
        "or start the same command again to finish it",
    )


def _class_of(values: Any, path: Path) -> type[AnyRecord]:
    task = values.get("task") if isinstance(values, dict) else None
    if not isinstance(task, str):
        return RunRecord
    # The task of a record gives its class; before schema 3 no record names a task, and all are of classifiers.
    if task not in RECORDS:
        raise CheckpointError(
            f"'{path}' is a record of the task '{task}', which this version does not know "
            f"(known: {', '.join(sorted(RECORDS))}); upgrade recurra"
        )
    return RECORDS[task]


def holds_any_record(folder: Path | str) -> bool:
    """Whether a folder holds a record of any run."""
    return in_study(_record_path(folder))


def holds_record(folder: Path | str, config_hash: str) -> bool:
    """Whether a folder holds the record of a run of this configuration.

    A record as `write_record` leaves it is known by its hash and by the lines of its first keys and its configuration:
    a plan of thousands of runs needs no more of them. No text in JSON has a line break, and inner keys are indented.

    Raises:
        CheckpointError: For any other record that cannot be read, such as a changed one.
    """
    if not holds_any_record(folder):
        return False
    with contextlib.suppress(OSError):
        text = read_study_bytes(_record_path(folder))
        first = f'{{\n "schema_version": {SCHEMA_VERSION},\n "content_hash": "{hash_of_text(text)}",\n'
        if text.startswith(first.encode()) and f'\n "config_hash": "{config_hash}",\n'.encode() in text:
            return True
    return read_any_record(folder).config_hash == config_hash


def _record_path(folder: Path | str) -> Path:
    path = Path(folder)
    return path if path.suffix == ".json" and not path.is_dir() else path / RECORD_NAME
