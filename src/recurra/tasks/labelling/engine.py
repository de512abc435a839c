"""Training, evaluation, audits and timing of models that label texts. Torch is loaded for Transformers alone."""

from __future__ import annotations

import copy
import hashlib
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from recurra.core.configuration import content_hash
from recurra.core.environment import available_cores
from recurra.core.progress import Reporter
from recurra.core.record import AnyRecord, AuditResult, LabelRunRecord, LatencyRecord, LearningCurveRecord
from recurra.core.sealed import MODEL_NAME
from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset, recorded_data
from recurra.data.dataset import TextSplit
from recurra.deployment.classifier import Classifier
from recurra.deployment.decision import LabelDecision
from recurra.deployment.engines.interface import load_engine
from recurra.deployment.export_record import WITH_EXITS
from recurra.evaluation.audits.grading import grade
from recurra.evaluation.audits.registry import Subject, run_audits
from recurra.models.controls.linear import LinearModel
from recurra.tasks.base import Competitor, DataCost, Given, TaskEngine, named_options, refuse_options
from recurra.tasks.labelling.controls import learning_curve, time_control
from recurra.tasks.labelling.data import labelled
from recurra.tasks.labelling.evaluation import ComputedRows, compute_evaluation
from recurra.tasks.labelling.mistakes import surest_mistakes
from recurra.tasks.labelling.task import LabellingTask
from recurra.tasks.labelling.training import Trained, latency_batches, time_classifier, train_classifier
from recurra.tasks.machine import Machine
from recurra.tasks.presentation import Shown, ShownTable
from recurra.tasks.profile import encoder_of
from recurra.tasks.run_folder import run_facts, shape_of
from recurra.tasks.runs import RunConfig

Logits = npt.NDArray[np.float32]

# Enough for a stable median and 90th percentile; a whole test set is timed where it is not larger.
MOST_SAMPLES = 2_000
_EVALUATION_OPTIONS = {
    "--split": "split",
    "--data": "data",
    "--text-column": "text_column",
    "--label-column": "label_column",
    "--encoding": "encoding",
    "--output": "output",
    "--precision": "precision",
    "--batch-size": "batch_size",
}


class LabellingEngine(TaskEngine):
    """Base of the engines of such tasks; each says how its models are measured.

    Attributes:
        record_class: Of the records of its runs.
        task: Its half without torch.
    """

    record_class: ClassVar[type[LabelRunRecord]]
    task: ClassVar[LabellingTask]
    exit_option = "--agreement"
    exit_default = 0.99
    architecture = "RecurraForSequenceClassification"
    timing_scope = "text"

    def train(self, config: RunConfig, folder: Path, machine: Machine, reporter: Reporter) -> Any:
        """Trains and saves a classifier."""
        return train_classifier(config, folder, machine, reporter)

    @abstractmethod
    def decide(
        self, config: DataConfig, label_names: Sequence[str], logits: Logits, labels: npt.NDArray[np.int64]
    ) -> LabelDecision:
        """How logits become labels, chosen by those of the split that chose the weights."""

    @abstractmethod
    def measure(self, logits: Logits, labels: npt.NDArray[np.int64], decision: LabelDecision) -> Any:
        """Metrics of the record on one split."""

    @abstractmethod
    def keep_predictions(self, folder: Path, split: TextSplit, logits: Logits) -> None:
        """Writes what is said of each row of a split into the run folder."""

    @abstractmethod
    def figures(self, metrics: Any) -> dict[str, str]:
        """What a training shows of a split, by heading."""

    def execute(self, config: RunConfig, folder: Path, machine: Machine, reporter: Reporter) -> LabelRunRecord:
        """Trains, measures and audits; returns the record, to be written last."""
        started, threads = time.perf_counter(), machine.threads or available_cores()
        trained = train_classifier(config, folder, machine, reporter)
        dataset, model_record = trained.dataset, trained.model
        reporter.stage(config.run_id, "evaluating")
        longest, windows = labelled(config.data).max_length, labelled(config.data).windows
        engine: Any = load_engine(
            folder / MODEL_NAME,
            kind=model_record.kind,
            precision=config.precision,
            max_length=longest,
            windows=windows,
        )
        batch_size = max(config.protocol.evaluation_batch_size, 64)
        classifier = Classifier(
            engine, dataset.label_names, batch_size=batch_size, cleaning=labelled(config.data).clean
        )
        logits = {}
        for name in dict.fromkeys((dataset.selection_split, *dataset.reported_splits)):
            logits[name] = classifier.logits(dataset.splits[name].texts, clean=False)
            self.keep_predictions(folder, dataset.splits[name], logits[name])
        selection = dataset.selection_split
        labels = dataset.splits[selection].labels
        classifier.decision = self.decide(labelled(config.data), dataset.label_names, logits[selection], labels)
        decision = classifier.decision
        metrics, seen, right = {}, [], {}
        for name in dataset.reported_splits:
            split = dataset.splits[name]
            metrics[name] = self.measure(logits[name], split.labels, decision)
            right[name] = decision.same(logits[name], split.labels)
            seen += run_audits(Subject.PREDICTIONS, dataset.splits["train"], split, right[name])
        audits = self.task.data_audits(dataset) + seen
        if trained.lesson is not None:
            audits += trained.lesson.audits(dataset, machine.data_root)
        audits += _encoder_audits(config)
        last = dataset.reported_splits[-1]
        must_not = labelled(config.data).form_must_not_predict
        audits = grade(audits, right, config.label, form_must_not_predict=must_not)
        if not config.is_control:
            from recurra.tasks.labelling.transformer import audit_run

            audits += audit_run(engine, dataset, dataset.splits[last], longest, windows)
        latency: dict[str, LatencyRecord] = {}
        if machine.latency:
            reporter.stage(config.run_id, "timing")
            latency = time_classifier(classifier, dataset, config, threads)
        return self.record_class(
            **run_facts(config, started, threads),
            data=dataset.record(trained.tokenizer),
            model=model_record,
            training=trained.training,
            metrics=metrics,
            latency=latency,
            audits=audits,
            decision=decision.record(),
            teacher=None if trained.lesson is None else trained.lesson.record(classifier),
            learning_curve=self._learning_curve(trained, labelled(config.data), right),
            telling_words=trained.telling_words,
            mistakes=surest_mistakes(
                classifier.predict_proba, decision, dataset.splits[last], decision.probabilities(logits[last])
            ),
            shape={} if config.is_control else shape_of(engine.model.config),
        )

    def _learning_curve(
        self, trained: Trained, config: DataConfig, right: Mapping[str, npt.NDArray[np.bool_]]
    ) -> LearningCurveRecord | None:
        """How the control does with fewer training rows, on the last reported split."""
        dataset = trained.dataset
        selection, split = (dataset.splits[name] for name in (dataset.selection_split, dataset.reported_splits[-1]))

        def are_right(model: LinearModel) -> npt.NDArray[np.bool_]:
            decision = self.decide(config, dataset.label_names, model.logits(selection.texts), selection.labels)
            return decision.same(model.logits(split.texts), split.labels)

        return learning_curve(trained.smaller, split, right[split.name], len(dataset.splits["train"]), are_right)

    def present(self, record: AnyRecord, output: str) -> Shown:
        """Quality by split."""
        assert isinstance(record, LabelRunRecord)
        figures = {split: self.figures(metrics) for split, metrics in record.metrics.items()}
        rows = [[split, f"{record.metrics[split].rows:,}", *shown.values()] for split, shown in figures.items()]
        headings = ["Split", "Rows", *next(iter(figures.values()), {})]
        return Shown(
            {"output": output, **record.model_dump(mode="json")},
            [
                ShownTable(record.run_id, headings, rows),
                [f"note: {audit.name}: {audit.summary}" for audit in record.noted_audits()],
                [f"run: {output}", f"use it: recurra predict {output} 'a text'"],
            ],
            [audit.name for audit in record.failed_audits()],
        )

    @abstractmethod
    def evaluation(self, computed: ComputedRows) -> Shown:
        """What an evaluation shows."""

    def evaluate(self, run: Path, options: Given, data_root: Path | None) -> Shown:
        """Evaluates a run or an export on a split or a labelled file."""
        refuse_options(options, frozenset(_EVALUATION_OPTIONS), f"'{run}' is no run of a language model")
        given = named_options(options, _EVALUATION_OPTIONS)
        return self.evaluation(compute_evaluation(run, data_root=data_root, **given))

    def describe_kept(self, keep: float) -> str:
        """The share of labels that stay."""
        return f"at least {100 * keep:g} % of labels as the full model has them"

    def new_model(self, preset: str, overrides: Mapping[str, Any]) -> Any:
        """A classifier of a preset with new weights."""
        from recurra.tasks.labelling.transformer import new_model

        return new_model(preset, overrides)

    def load_model(self, folder: Path) -> Any:
        """The classifier in a model folder."""
        from recurra.models.loading import load_classifier_model

        return load_classifier_model(folder)

    def audit_model(self, model: Any, seed: int) -> list[AuditResult]:
        """Invariance to padding and to neighbours."""
        from recurra.tasks.labelling.transformer import audit_model

        return audit_model(model, seed)

    def declared_parameters(self, model: Any) -> int | None:
        """Of ours, what the accounting says."""
        from recurra.tasks.labelling.transformer import declared_parameters

        return declared_parameters(model)

    def sample_step(self, config: RunConfig, length: int) -> tuple[Any, float, Any]:
        """A classifier of two labels, with as much of its token table as texts reach."""
        from recurra.tasks.labelling.transformer import sample_step

        return sample_step(config, length)

    def control_seconds(self, config: RunConfig, machine: Machine) -> float | None:
        """Seconds of a fit on some of the rows, times how many more there are."""
        return time_control(config, machine)

    def epoch_flops(self, config: RunConfig, lengths: Mapping[str, int], data: DataCost) -> float:
        """Operations of the forward passes over rows of these lengths."""
        from recurra.tasks.labelling.transformer import epoch_flops

        return epoch_flops(config, lengths, data)

    def timing_key(self, record: AnyRecord) -> str:
        """Runs on the same data are timed on the same texts, and those of every fold on texts of the first."""
        data = {key: value for key, value in record.config["data"].items() if key not in ("fold", "split_seed")}
        return content_hash([data, record.config.get("data_hash")]) if data.get("folds") else record.data.fingerprint

    def timing_inputs(self, record: AnyRecord, folder: Path, machine: Machine) -> list[str]:
        """Texts of the last reported split."""
        del folder
        assert isinstance(record, LabelRunRecord)
        dataset = load_dataset(recorded_data(record), machine.data_root)
        texts = list(dataset.splits[dataset.reported_splits[-1]].texts)
        return texts[:: max(1, len(texts) // MOST_SAMPLES)]

    def timing_batches(self, inputs: Sequence[str], batch_size: int) -> list[list[str]]:
        """Texts of like length together."""
        return latency_batches(list(inputs), batch_size)

    def competitors(self, name: str, folder: Path, record: AnyRecord, *, threads: int) -> Iterator[Competitor]:
        """A model, and if it carries an exit rule, the same one with texts leaving early."""
        classifier = Classifier.open(folder, threads=threads)
        assert classifier.computation is not None
        exported = "/" in name
        precision = classifier.computation.compute_precision if exported else record.environment.precision
        yield Competitor(name, partial(classifier.logits, clean=False), precision)
        if classifier.calibrated_rule is not None:
            early = copy.copy(classifier)
            early.stop_early()
            yield Competitor(f"{name}{WITH_EXITS}", partial(early.logits, clean=False), precision)


def _encoder_audits(config: RunConfig) -> list[AuditResult]:
    """Whether the encoder that a model started from has read a user's reported rows."""
    source, data = encoder_of(config.model_overrides), labelled(config.data)
    reported = Path(data.test or data.name)
    if source is None or not source.taught or not reported.is_file():
        return []
    with reported.open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    return run_audits(Subject.ENCODER, source.name, source.taught, reported.name, sha256)
