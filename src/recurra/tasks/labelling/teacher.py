"""Teachers' answers to the rows that a student learns from: computed once and cached by content, part by part."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import expit, softmax

from recurra.core.configuration import content_hash
from recurra.core.errors import ConfigurationError, RecurraError, RunError
from recurra.core.progress import Reporter
from recurra.core.record import AuditResult, LabelRunRecord, TeacherRecord, holds_any_record
from recurra.core.sealed import sealed_model
from recurra.data.corpora import recorded_data, recorded_rows
from recurra.data.dataset import TextDataset, TextSplit
from recurra.data.encoding import EncodedSplit, cache_path, cached_arrays, encode_windows
from recurra.data.tokenization import read_tokenizer
from recurra.deployment.classifier import Classifier
from recurra.deployment.engines.trained import FlatRows, ForeignClassifier
from recurra.deployment.export.manifest import is_export, read_source_record
from recurra.evaluation.audits.registry import Subject, run_audits
from recurra.models.adaptation.plan import SharingPlan, align
from recurra.models.heads import mean_of_packed
from recurra.models.inference import compute_rows, default_device
from recurra.models.loading import load_classifier_model
from recurra.models.modeling import RecurraForSequenceClassification
from recurra.tasks.base import RunConfig, TeacherConfig
from recurra.tasks.labelling import labelled
from recurra.tasks.runs import locate_teacher
from recurra.tasks.study_data import StudyData
from recurra.training.distillation import TaughtSplit

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Rows that a killed run has to compute again at most.
PART_ROWS = 8192
_BATCH_SIZE = 64


class Teacher:
    """A teacher of a run; its answers are cached by content, part by part, and it is opened only if a part is missing.

    A teacher that is a run of the same study lies beside the run.

    Raises:
        RunError: If it is a run of the study without a record, or not the teacher that the run was planned with.
        CheckpointError: If it cannot be read.
    """

    def __init__(
        self, config: TeacherConfig, run: Path, *, precision: str, cache_dir: Path | None, reporter: Reporter
    ) -> None:
        folder = run.resolve().parent / config.run_id if config.run_id else Path(config.folder)
        if config.run_id and not holds_any_record(folder):
            raise RunError(f"its teacher '{config.run_id}' has no record in '{folder.parent}'; train that run first")
        self.name, self.folder, self.identity = config.name, folder, locate_teacher(str(folder)).identity
        if config.identity and self.identity != config.identity:
            raise RunError(
                f"teacher '{folder}' is not the one that the run was planned with; give the run another output"
            )
        has_record = is_export(folder) or holds_any_record(folder)
        self.record: LabelRunRecord | None = read_source_record(folder) if has_record else None
        self._precision, self._cache_dir, self._reporter = precision, cache_dir, reporter

    def close(self) -> None:
        """Frees the memory of its model, which is opened again where it is needed."""
        for name in ("_classifier", "_model"):
            vars(self).pop(name, None)

    def logits(self, texts: Sequence[str], label_names: Sequence[str]) -> npt.NDArray[np.float32]:
        """Logits ``(texts, labels)`` in the order of the student's labels."""
        parts = [np.zeros((0, len(label_names)), dtype=np.float32)]
        for start in range(0, len(texts), PART_ROWS):
            part = texts[start : start + PART_ROWS]
            digest = hashlib.sha256("\0".join([*label_names, "", *part]).encode("utf-8", "surrogatepass"))
            compute = partial(self.compute_logits, part, label_names)
            parts.append(self._part("logits", start, len(part), ["answers", digest.hexdigest()], compute))
        return np.concatenate(parts)

    def states(
        self, input_ids: npt.NDArray[np.int32], rows: npt.NDArray[np.int64], layers: Sequence[int]
    ) -> npt.NDArray[np.float16]:
        """States ``(rows, layers, hidden)`` of rows that the teacher's tokenizer wrote; ``rows`` are their offsets."""
        parts = []
        for start in range(0, len(rows) - 1, PART_ROWS):
            offsets = rows[start : start + PART_ROWS + 1]
            ids, offsets = input_ids[offsets[0] : offsets[-1]], offsets - offsets[0]
            digest = hashlib.sha256(ids.tobytes() + offsets.tobytes()).hexdigest()
            compute = partial(self._compute_states, ids, offsets, layers)
            parts.append(self._part("states", start, len(offsets) - 1, ["states", list(layers), digest], compute))
        return np.concatenate(parts)

    def _part(self, name: str, start: int, rows: int, identity: list[Any], compute: Callable[[], Any]) -> Any:
        """Reads or computes one part; ``identity`` is what it depends on beside the teacher."""
        key = content_hash([identity[0], self.identity, self._precision, *identity[1:]])[:40]

        def ask() -> dict[str, npt.NDArray[Any]]:
            suffix = "" if name == "logits" else f" for {name}"
            self._reporter.say(f"running {self.name}{suffix}: rows {start + 1:,} to {start + rows:,}")
            return {name: compute()}

        return cached_arrays(cache_path(f"teacher-{key}", self._cache_dir), (name,), ask)[name]

    def compute_logits(self, texts: Sequence[str], label_names: Sequence[str]) -> npt.NDArray[np.float32]:
        """Asks for one part."""
        teacher_labels = [str(name) for name in self._classifier.classes_]
        if sorted(teacher_labels) != sorted(label_names):
            raise ConfigurationError(
                f"teacher '{self.name}' has the labels {', '.join(teacher_labels[:8])}, the data have "
                f"{', '.join(label_names[:8])}; take a teacher of the same labels"
            )
        columns = {name: column for column, name in enumerate(teacher_labels)}
        order = [columns[name] for name in label_names]
        # Columns in another order have another memory layout, and files keep the layout.
        return np.ascontiguousarray(self._classifier.logits(texts, clean=False)[:, order])

    @cached_property
    def _classifier(self) -> Any:
        if self.record is None:
            return ForeignClassifier.load(self.folder, precision=self._precision)
        own_precision = is_export(self.folder) or self.record.model.kind != "transformer"
        return Classifier.open(self.folder, precision=None if own_precision else self._precision)

    @cached_property
    def _model(self) -> RecurraForSequenceClassification:
        return load_classifier_model(sealed_model(self.folder)).to(default_device())

    def _compute_states(
        self, ids: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64], layers: Sequence[int]
    ) -> npt.NDArray[np.float16]:
        rows = FlatRows(ids, offsets, int(self._model.config.pad_token_id or 0))

        def compute(**inputs: torch.Tensor) -> list[torch.Tensor]:
            states = self._model.model(**inputs, output_hidden_states=True, return_dict=True).hidden_states
            means = [mean_of_packed(states[layer].float(), inputs["row_lengths"]) for layer in layers]
            return [torch.stack(means, dim=1).half()]

        batches = rows.packed(_BATCH_SIZE, few_sizes=self._precision != "fp32")
        (states,) = compute_rows(self._model, batches, len(offsets) - 1, compute, precision=self._precision)
        return states


@dataclass(frozen=True, eq=False)
class Lesson:
    """The answers of teachers, and how a student learns from them.

    Attributes:
        texts: Texts of the training rows, then those without labels.
        labels: Labels of the training rows.
        on_train: Logits of the texts, ``(texts, labels)``, the mean over the teachers.
        on_selection: Logits of the rows that choose the epoch, ``(rows, labels)``, likewise.
        compares_states: Whether states between layers are compared too.
    """

    teachers: list[Teacher]
    texts: Sequence[str]
    labels: npt.NDArray[np.int64]
    on_train: npt.NDArray[np.float32]
    on_selection: npt.NDArray[np.float32]
    wall_s: float
    compares_states: bool = False

    def audits(self, dataset: TextDataset, data: StudyData) -> list[AuditResult]:
        """Audits whether a teacher was trained on rows that the student is measured on."""
        return [
            result
            for teacher in self.teachers
            for result in run_audits(Subject.TEACHER, dataset, teacher.name, _trained_on(teacher, dataset, data))
        ]

    def record(self, answers: npt.NDArray[np.float32]) -> TeacherRecord:
        """The record of the teachers; ``answers`` are the student's logits of the rows that chose the epoch."""

        def labels(logits: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
            return logits.argmax(axis=1) if self.labels.ndim == 1 else logits >= 0

        return TeacherRecord(
            names=[teacher.name for teacher in self.teachers],
            runs=[teacher.record.run_id if teacher.record else "" for teacher in self.teachers],
            identities=[teacher.identity for teacher in self.teachers],
            rows=len(self.labels),
            unlabelled_rows=len(self.texts) - len(self.labels),
            compares_states=self.compares_states,
            wall_s=self.wall_s,
            train_accuracy=float(np.mean(labels(self.on_train[: len(self.labels)]) == self.labels)),
            agreement=float(np.mean(labels(answers) == labels(self.on_selection))),
        )

    def targets(self, weight: float) -> npt.NDArray[np.float64]:
        """Probabilities to learn of each text, ``(texts, labels)``: of labelled rows mixed with the label.

        A loss that is a weighted mean of two cross-entropies is the cross-entropy with the mean of their targets.
        ``weight`` is the share of the teachers' answers where there is a label.
        """
        logits, rows = self.on_train.astype(np.float64), len(self.labels)
        several = self.labels.ndim == 2
        targets: npt.NDArray[np.float64] = expit(logits) if several else softmax(logits, axis=1)
        true = self.labels if several else np.eye(logits.shape[1])[self.labels]
        targets[:rows] = weight * targets[:rows] + (1 - weight) * true
        return targets


def ask_teachers(
    config: RunConfig, run: Path, dataset: TextDataset, *, cache_dir: Path | None, reporter: Reporter
) -> Lesson:
    """Asks the teachers of a run for their answers to its training rows, labelled or not, and its selection rows.

    Raises:
        ConfigurationError: If a teacher has other labels.
        RunError: If a teacher is missing or has changed.
    """
    started = time.perf_counter()
    teachers = [
        Teacher(teacher, run, precision=config.precision, cache_dir=cache_dir, reporter=reporter)
        for teacher in config.teachers
    ]
    train, selection = dataset.splits["train"], dataset.splits[dataset.selection_split]
    splits = [split for split in (train, dataset.unlabelled, selection) if split is not None]
    answers = []
    for teacher in teachers:
        answers.append([teacher.logits(split.texts, dataset.label_names) for split in splits])
        teacher.close()
    by_split = zip(*answers, strict=True)
    *on_train, on_selection = (np.stack(logits).mean(axis=0, dtype=np.float32) for logits in by_split)
    return Lesson(
        teachers,
        [text for split in splits[:-1] for text in split.texts],
        train.labels,
        np.concatenate(on_train),
        on_selection,
        time.perf_counter() - started,
    )


def taught_rows(
    config: RunConfig,
    lesson: Lesson,
    train: EncodedSplit,
    unlabelled: EncodedSplit | None = None,
    *,
    plan: SharingPlan | None,
    tokenizer: PreTrainedTokenizerFast,
) -> tuple[TaughtSplit, Lesson]:
    """The rows that a Transformer learns from, with answers and, if it has its teacher's encoder, the teacher's states.

    Each window of a text has the answers of the text. ``plan`` says which layers of the encoder the student consists
    of; None if it does not start from one. ``tokenizer`` encoded the rows.

    Returns:
        The rows, and the lesson with the time of the states added.
    """
    started = time.perf_counter()
    layers = _aligned(config, lesson.teachers, plan)
    is_labelled = None
    if unlabelled is not None:
        is_labelled = np.repeat([True, False], [len(train), len(unlabelled)])
        train = train.followed_by(unlabelled).weighed(None)
    teacher_rows = _as_teacher_reads(config, lesson, train, tokenizer) if layers else None
    states = None if teacher_rows is None else lesson.teachers[0].states(*teacher_rows, layers)
    lesson.teachers[0].close()
    taught = TaughtSplit(
        train.input_ids,
        train.offsets,
        train.labels,
        np.repeat(lesson.on_train, train.windows_of_texts, axis=0),
        states,
        is_labelled,
        weights=train.weights,
        window_counts=train.window_counts,
    )
    wall_s = lesson.wall_s + time.perf_counter() - started
    return taught, replace(lesson, wall_s=wall_s, compares_states=states is not None)


def _trained_on(teacher: Teacher, dataset: TextDataset, data: StudyData) -> TextSplit | None:
    """The training rows of a teacher, if they can still be had as they were."""
    record = teacher.record
    if record is None:
        return None
    if record.data.fingerprint == dataset.fingerprint:
        return dataset.splits["train"]
    try:
        rows = recorded_rows(record, data.rows(recorded_data(record))).splits["train"]
    except RecurraError:
        return None
    return rows if rows.fingerprint == record.data.splits["train"].fingerprint else None


def _aligned(config: RunConfig, teachers: Sequence[Teacher], plan: SharingPlan | None) -> list[int]:
    """Layers at which the student's states are compared with the teacher's; empty without a common encoder."""
    if config.protocol.state_weight == 0 or plan is None or len(teachers) != 1:
        return []
    record = teachers[0].record
    if record is None or record.model.encoder is None or is_export(teachers[0].folder):
        return []
    encoder, encoder_sha256 = record.model.encoder, config.model_overrides.get("encoder_sha256")
    is_plain_stack = encoder.plan == str(SharingPlan.stack(encoder.layers))
    plan = replace(plan, recurrences=config.model_overrides.get("num_recurrences", plan.recurrences))
    return align(plan, encoder.layers) if is_plain_stack and encoder.sha256 == encoder_sha256 else []


def _as_teacher_reads(
    config: RunConfig, lesson: Lesson, train: EncodedSplit, tokenizer: PreTrainedTokenizerFast
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]] | None:
    """Token ids of the rows by the teacher's tokenizer, and their offsets; None if it cuts texts into other windows.

    Ids differ even for one encoder: a wide token table is cut down to the pieces that the training rows of a run use.
    """
    teacher_tokenizer = read_tokenizer(sealed_model(lesson.teachers[0].folder))
    if teacher_tokenizer.get_vocab() == tokenizer.get_vocab():
        return train.input_ids, train.offsets
    data = labelled(config.data)
    ids, offsets, counts = encode_windows(lesson.texts, teacher_tokenizer, data.max_length, data.windows)
    same_windows = np.array_equal(train.windows_of_texts, np.ones(len(lesson.texts)) if counts is None else counts)
    return (ids, offsets) if same_windows else None
