"""Base of tasks whose models label texts: data, runs, evaluation. Methods load torch and scikit-learn."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from recurra.core.configuration import content_hash, derive_seed
from recurra.core.environment import available_cores
from recurra.core.errors import ConfigurationError, UnavailableError
from recurra.core.progress import Reporter
from recurra.core.record import AnyRecord, AuditResult, LabelRunRecord, LatencyRecord, LearningCurveRecord
from recurra.core.sealed import MODEL_NAME, describe_file
from recurra.core.terminal import interval
from recurra.data.cleaning import CAREFUL, FIRST
from recurra.data.configuration import DataConfig, RunData
from recurra.data.corpora import CORPORA, recorded_data
from recurra.data.dataset import TextDataset, TextSplit
from recurra.data.encoding import added_tokens, encode_split
from recurra.data.tokenization import MODEL_MAX_LENGTH, check_tokenizer, default_tokenizer, load_tokenizer
from recurra.deployment.decision import LabelDecision
from recurra.deployment.engines import load_engine
from recurra.deployment.export_record import WITH_EXITS
from recurra.evaluation.audits.grading import control_right, grade, needs_predictions
from recurra.evaluation.audits.long_texts import (
    HELD_SHARE,
    LIMITS,
    MOST_BROKEN,
    Lengths,
    broken_share,
    choose_max_length,
    cut_note,
    cut_texts,
    sample_of,
)
from recurra.evaluation.audits.registry import Subject, run_audits
from recurra.evaluation.metrics import never_given
from recurra.evaluation.predictions import write_predictions
from recurra.models.adaptation.source import MULTILINGUAL
from recurra.models.controls import STATES_TOKENS
from recurra.models.names import PRESETS
from recurra.tasks.base import (
    ENCODER,
    METHOD,
    WORDS_AND_ENCODER,
    Competitor,
    DataCost,
    Given,
    Model,
    RunConfig,
    Task,
    allowed_options,
    check_method,
    control_of,
    encoder_of,
)
from recurra.tasks.labelling import LINEAR, LINEAR_TUNED, STATIC, labelled
from recurra.tasks.labelling.answers import read_answers, record_answers
from recurra.tasks.labelling.description import describe_rows, describe_tokens
from recurra.tasks.labelling.reporting import learning_curve, surest_mistakes
from recurra.tasks.measures import Measure
from recurra.tasks.run_folder import run_facts, shape_of
from recurra.tasks.study_data import StudyData
from recurra.tasks.tables import CommandResult, Table
from recurra.training.protocols import PROTOCOLS

Logits = npt.NDArray[np.float32]

# Enough for a stable median and 90th percentile; a whole test set is timed where it is not larger.
MOST_SAMPLES = 1_000
# Pieces of a vocabulary of 30,000 that some thousand sentences use (docs/decisions/0005-reachable-vocabulary.md).
_REACHED_PIECES = 8_192
_PROBE_ROWS, _PROBE_TOKENS = 64, 40
# A label with fewer rows may be missing from the predictions by chance.
_LEAST_JUDGED = 5
_EVALUATION_OPTIONS = ("split", "data", "text_column", "label_column", "encoding", "output", "precision", "batch_size")


class LabellingTask(Task):
    """Base of the tasks whose data are labelled texts; each says what their labels are and how they are measured.

    Attributes:
        measures: Figures of a split, first the one that models are compared by.
    """

    data_config: ClassVar[type[DataConfig]]
    record_class: ClassVar[type[LabelRunRecord]]
    measures: ClassVar[Sequence[Measure]]
    presets: ClassVar[Mapping[str, tuple[str, Mapping[str, Any]]]] = PRESETS
    protocols = PROTOCOLS
    controls: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        LINEAR: {},
        LINEAR_TUNED: {},
        STATIC: {ENCODER: "minilm"},
        WORDS_AND_ENCODER: {ENCODER: "minilm"},
    }
    starts_from_encoders = True
    advice = f"a classifier: {', '.join(PRESETS)}"
    kind_of_data = "labelled data"
    exit_option = "--agreement"
    exit_default = 0.99
    exit_quality = "at least {:g} % of labels as the full model has them"
    architecture = "RecurraForSequenceClassification"
    timing_scope = "text"

    @abstractmethod
    def data_audits(self, dataset: TextDataset) -> list[AuditResult]:
        """Audits of data that need no model."""

    @abstractmethod
    def decide(
        self, config: DataConfig, label_names: Sequence[str], logits: Logits, labels: npt.NDArray[np.int64]
    ) -> LabelDecision:
        """Chooses how logits become labels, from the logits of the split that chose the weights."""

    @abstractmethod
    def measure(self, logits: Logits, labels: npt.NDArray[np.int64], decision: LabelDecision) -> Any:
        """Metrics of the record on one split."""

    def of_depth(
        self, metrics: Any, split: TextSplit, logits: Mapping[int, Logits], engine: Any, batch_size: int
    ) -> Any:
        """Adds figures of the head after each recurrence, from its ``logits``, or how many recurrences rows took."""
        del split, logits, engine, batch_size
        return metrics

    @abstractmethod
    def details(self, names: Sequence[str], metrics: Any, decision: LabelDecision) -> Table:
        """The table that an evaluation shows below its figures, label by label."""

    def figures(self, metrics: Any) -> dict[str, str]:
        """The figures that are shown of a split, by heading; the first one has its interval over rows."""
        first = self.measures[0]
        assert first.over_rows is not None
        low, high = first.over_rows(metrics) or (None, None)
        values = {measure.heading: measure.read(metrics) for measure in self.measures}
        # Four decimals show even a loss far below a thousandth; tables of several models are narrower.
        cells = {heading: f"{value:.4f}" for heading, value in values.items() if value is not None}
        return {first.heading: cells.pop(first.heading), "95 % interval": interval(low, high), **cells}

    def misfit(self, model: str, data_name: str) -> str:
        kind = "is a linear classifier" if model in self.controls else "classifies texts"
        return f"'{model}' {kind}, and '{data_name}' is running text without labels; give it labelled data"

    def configure_data(
        self, values: Mapping[str, Any], data: StudyData, *, models: Sequence[Model] | None = None
    ) -> tuple[DataConfig, str]:
        """Builds the configuration; chooses the tokenizer and, for a file that models are to read, the length."""
        values, name = dict(values), str(values["name"])
        if values.get("clean") is None:
            values["clean"] = CAREFUL if _is_file(name) else FIRST
        readers = [model for model in models or () if control_of(*model) is None]
        controls_alone = bool(models) and not readers
        notes = []
        if "tokenizer" not in values:
            values["tokenizer"] = default_tokenizer(name, data.machine.data_root)
            # Controls and encoders read with tokenizers of their own.
            if not models or any(ENCODER not in keys for _, keys in readers):
                notes.append(f"tokenizer: {values['tokenizer']} (choose with --tokenizer)")
        if models is not None and not controls_alone and "max_length" not in values and _is_file(name):
            values["max_length"], why = self._choose_length(self.data_config.parse(values), data, readers)
            notes.append(f"max_length: {values['max_length']}, {why} (choose with --max-length)")
        return self.data_config.parse(values, source="data"), "; ".join(notes)

    def _choose_length(self, config: DataConfig, data: StudyData, readers: Sequence[Model]) -> tuple[int, str]:
        """The limit of tokens for a user's file, and why."""
        longest = min((self._longest_input(*model) for model in readers), default=MODEL_MAX_LENGTH)
        tokenizers = {_tokenizer_of(config, overrides) for _, overrides in readers} or {config.tokenizer}
        counts = [data.token_lengths(config, tokenizer, ["train"])[0]["train"] for tokenizer in tokenizers]
        lengths: Lengths = np.max(counts, axis=0)
        chosen = choose_max_length(lengths, longest)
        sample = "a sample of " if len(lengths) < len(data.rows(config).splits["train"]) else ""
        coverage = f"holds {(lengths <= chosen).mean():.1%} of {sample}{len(lengths):,} training rows whole"
        if chosen == longest:
            return chosen, f"all that the model reads; it {coverage}"
        return chosen, f"the smallest of {', '.join(map(str, LIMITS))} that holds {HELD_SHARE:.0%}: it {coverage}"

    def _longest_input(self, model: str, overrides: Mapping[str, Any]) -> int:
        """Tokens that a model reads, at most."""
        longest = self.shape(model, overrides).get("max_position_embeddings", MODEL_MAX_LENGTH)
        return min(longest, MODEL_MAX_LENGTH) if isinstance(longest, int) else MODEL_MAX_LENGTH

    def describe_data(self, config: RunData, data: StudyData) -> CommandResult:
        return describe_rows(labelled(config), data)

    def prepare_data(self, config: RunData, data: StudyData) -> CommandResult:
        return describe_tokens(labelled(config), data)

    def audit_data(self, config: RunData, data: StudyData) -> tuple[str, list[AuditResult]]:
        """Leakage between splits and shortcuts to the label, graded by the linear control; and what is cut."""
        config = labelled(config)
        dataset = data.rows(config)
        title = f"{dataset.name}, protocol {dataset.protocol}, fingerprint {dataset.fingerprint}"
        audits = self.data_audits(dataset)
        right = control_right(dataset) if needs_predictions(audits) else {}
        graded = grade(audits, right, "the linear control", form_must_not_predict=config.form_must_not_predict)
        try:
            _, tokenizer = data.token_lengths(config, config.tokenizer, ["train"])
        except UnavailableError as error:
            skipped = [AuditResult.skipped(f"long-texts.{name}", str(error)) for name in dataset.splits]
            return title, [*graded, *skipped]
        limits = config.max_length, MODEL_MAX_LENGTH, config.windows
        return title, [*graded, *run_audits(Subject.TOKENS, dataset, tokenizer, *limits)]

    def label_names(self, config: RunData, data: StudyData) -> list[str]:
        return data.once("label names", config, lambda: list(data.rows(labelled(config)).label_names))

    def data_cost(self, config: RunData, data: StudyData) -> DataCost:
        config, machine = labelled(config), data.machine
        dataset = data.rows(config)
        tokenizer = load_tokenizer(config, dataset, machine.data_root)

        def lengths_of(split: TextSplit | None) -> Counter[int]:
            if split is None:
                return Counter()
            encoded = encode_split(split, tokenizer, config.max_length, machine.cache_dir, windows=config.windows)
            return Counter(encoded.lengths.tolist())

        return DataCost(
            list(dataset.label_names),
            lengths_of(dataset.splits["train"]),
            auxiliary_lengths=lengths_of(dataset.auxiliary),
            unlabelled_lengths=lengths_of(dataset.unlabelled),
        )

    def preflight(self, config: RunConfig, data: StudyData) -> list[str]:
        if config.answers:
            read_answers(config, data)
            return []
        check_method(config.model_overrides)
        rows, overrides = labelled(config.data), config.model_overrides
        label_names = self.label_names(rows, data)
        notes = _reading_notes(config, data)
        if config.is_control:
            return notes
        class_weighted = config.protocol.class_weights == "balanced" and not config.teachers and METHOD not in overrides
        if class_weighted and rows.problem_type is not None:
            raise ConfigurationError("'class_weights' is balanced and a row may have several labels; set it to none")
        if ENCODER not in overrides:
            check_tokenizer(rows, data.machine.data_root)
        # A preset as it stands is known to be good; looking at it would load transformers.
        if overrides:
            from recurra.tasks.labelling.configuration import model_configuration

            model_configuration(config, label_names, None)
        if config.teachers:
            config.protocol.check_heads(self.shape(config.model, overrides))
        lengths, tokenizer = data.token_lengths(rows, _tokenizer_of(rows, overrides))
        if rows.fold:
            # The first fold has reported this for all.
            return []
        longest = self._longest_input(config.model, overrides)
        cut = cut_note(lengths, rows.max_length, longest, windows=rows.windows, added=added_tokens(tokenizer))
        return [f"{Path(rows.name).name}: {cut}", *notes]

    def training_modules(self, config: RunConfig) -> Sequence[str]:
        kind = "controls" if config.is_control else "transformer"
        if config.control == WORDS_AND_ENCODER:
            kind = "joined"
        return "recurra.deployment.classifier", f"recurra.tasks.labelling.{kind}"

    def trainer(self, config: RunConfig) -> Callable[..., Any]:
        if config.answers:
            return lambda *_: None
        if config.is_control:
            from recurra.tasks.labelling.controls import train_control

            return train_control
        from recurra.tasks.labelling.transformer import train_model

        return train_model

    def record_run(
        self, config: RunConfig, trained: Any, folder: Path, data: StudyData, reporter: Reporter, *, started: float
    ) -> LabelRunRecord:
        if config.answers:
            return record_answers(self, config, folder, data, started=started)
        from recurra.deployment.classifier import Classifier

        machine, rows = data.machine, labelled(config.data)
        threads = machine.threads or available_cores()
        dataset, model_record = trained.dataset, trained.model
        reporter.stage(config.run_id, "evaluating")
        engine: Any = load_engine(
            folder / MODEL_NAME, precision=config.precision, max_length=rows.max_length, windows=rows.windows
        )
        batch_size = max(config.protocol.evaluation_batch_size, 64)
        classifier = Classifier(engine, dataset.label_names, batch_size=batch_size, cleaning=rows.clean)
        selection, judged = dataset.splits[dataset.selection_split], dataset.splits[dataset.headline_split]
        by_head, logits = {}, {}
        for name in dict.fromkeys((selection.name, *dataset.reported_splits)):
            split = dataset.splits[name]
            by_head[name] = classifier.exit_logits(split.texts)
            logits[name] = by_head[name][max(by_head[name])]
            write_predictions(folder, name, split.ids, split.labels, logits[name])
        decision = self.decide(rows, dataset.label_names, logits[selection.name], selection.labels)
        classifier.decision = decision
        audits = list(data.once("audits", rows, lambda: self.data_audits(dataset)))
        metrics, right = {}, {}
        for name in dataset.reported_splits:
            split = dataset.splits[name]
            metrics[name] = self.measure(logits[name], split.labels, decision)
            if not config.is_control:
                metrics[name] = self.of_depth(metrics[name], split, by_head[name], engine, batch_size)
            right[name] = decision.same(logits[name], split.labels)
            audits += run_audits(Subject.PREDICTIONS, dataset.splits["train"], split, right[name])
        decided = np.concatenate([decision.of_logits(split_logits) for split_logits in logits.values()])
        truth = np.concatenate([dataset.splits[name].labels for name in logits])
        if unused := never_given(decided, truth, dataset.label_names, least=_LEAST_JUDGED):
            which = f"'{unused[0]}'" if len(unused) == 1 else f"{len(unused):,} labels, such as '{unused[0]}'"
            reporter.say(f"{config.run_id}: note: none of {len(decided):,} rows that were not trained on gets {which}")
        if trained.lesson is not None:
            audits += trained.lesson.audits(dataset, data)
        audits += _encoder_audits(config)
        audits = grade(audits, right, config.label, form_must_not_predict=rows.form_must_not_predict)
        if not config.is_control:
            most = min(int(engine.model.config.max_position_embeddings), MODEL_MAX_LENGTH)
            audits += run_audits(Subject.TOKENS, dataset, engine.tokenizer, rows.max_length, most, rows.windows)
            encoded = encode_split(judged, engine.tokenizer, rows.max_length)
            pad = engine.model.config.pad_token_id or 0
            audits += run_audits(Subject.CLASSIFIER, engine.model, encoded, pad_token_id=pad, seed=0)
        latency: dict[str, LatencyRecord] = {}
        if machine.latency:
            reporter.stage(config.run_id, "timing")
            read = partial(classifier.logits, clean=False)
            latency = self.time_alone(read, _timed_texts(judged.texts), config, threads)
        probabilities = decision.probabilities(logits[judged.name])
        return self.record_class(
            **run_facts(config, started, threads),
            data=dataset.record(trained.tokenizer),
            model=model_record,
            training=trained.training,
            metrics=metrics,
            latency=latency,
            audits=audits,
            decision=decision.record(),
            teacher=None if trained.lesson is None else trained.lesson.record(logits[selection.name]),
            learning_curve=self._learning_curve(rows, trained, right[judged.name]),
            telling_words=trained.telling_words,
            mistakes=surest_mistakes(classifier.predict_proba, decision, judged, probabilities),
            shape={} if config.is_control else shape_of(engine.model.config),
        )

    def _learning_curve(
        self, rows: DataConfig, trained: Any, right: npt.NDArray[np.bool_]
    ) -> LearningCurveRecord | None:
        """How a control does on the headline split with fewer training rows; none if it was fitted on no part.

        ``right`` says which rows the control on all training rows gets right, ``(rows,)``.
        """
        if not trained.smaller:
            return None
        dataset, correct = trained.dataset, dict[int, npt.NDArray[np.bool_]]()
        selection, judged = dataset.splits[dataset.selection_split], dataset.splits[dataset.headline_split]
        for size, model in sorted(trained.smaller.items()):
            decision = self.decide(rows, dataset.label_names, model.logits(selection.texts), selection.labels)
            correct[size] = decision.same(model.logits(judged.texts), judged.labels)
        return learning_curve(judged.name, {**correct, len(dataset.splits["train"]): right})

    def present(self, record: AnyRecord, output: str) -> CommandResult:
        assert isinstance(record, LabelRunRecord)
        rows = [
            {"Split": split, "Rows": f"{metrics.rows:,}", **self.figures(metrics)}
            for split, metrics in record.metrics.items()
        ]
        return CommandResult(
            {"output": output, **record.model_dump(mode="json")},
            [
                Table("results", record.run_id, rows),
                [f"note: {audit.name}: {audit.summary}" for audit in record.noted_audits()],
                [f"run: {output}", f"use it: recurra predict {output} 'a text'"],
            ],
            [audit.name for audit in record.failed_audits()],
        )

    def evaluate(self, run: Path, options: Given, data_root: Path | None) -> CommandResult:
        from recurra.tasks.labelling.evaluation import evaluate_labels

        values = allowed_options(options, _EVALUATION_OPTIONS, f"'{run}' is not a run of a language model")
        return evaluate_labels(self, run, data_root=data_root, **values)

    def model_class(self) -> Any:
        from recurra.models.modeling import RecurraForSequenceClassification

        return RecurraForSequenceClassification

    def load_model(self, folder: Path) -> Any:
        from recurra.models.loading import load_classifier_model

        return load_classifier_model(folder)

    def audit_model(self, model: Any, seed: int) -> list[AuditResult]:
        """Invariance to padding and to neighbours, on random tokens."""
        config = model.config
        rng = np.random.default_rng(derive_seed(seed, "audit", "tokens"))
        longest = min(_PROBE_TOKENS, int(config.max_position_embeddings))
        lengths = rng.integers(min(3, longest), longest + 1, _PROBE_ROWS)
        rows = [{"input_ids": rng.integers(1, config.vocab_size, length)} for length in lengths]
        return run_audits(Subject.CLASSIFIER, model, rows, pad_token_id=config.pad_token_id or 0, seed=seed)

    def sample_step(self, config: RunConfig, length: int) -> tuple[Any, float, Any]:
        """A classifier of two labels, with only as much of its token table as texts reach and training changes."""
        import torch

        from recurra.models.configuration import RecurraConfig
        from recurra.models.modeling import SEVERAL_LABELS
        from recurra.models.presets import forward_flops
        from recurra.tasks.labelling.configuration import model_configuration
        from recurra.tasks.labelling.transformer import classifier_of

        shape = model_configuration(config, ["0", "1"], None)
        if isinstance(shape, RecurraConfig):
            shape.vocab_size = min(shape.vocab_size, _REACHED_PIECES)
        labels = torch.arange(config.protocol.batch_size) % 2
        if shape.problem_type == SEVERAL_LABELS:
            labels = torch.stack([1 - labels, labels], dim=1).float()
        return classifier_of(shape), forward_flops(shape, length), labels

    def control_seconds(self, config: RunConfig, data: StudyData) -> float | None:
        """Seconds of a fit on some of the rows, times how many more there are."""
        if config.answers:
            return 0.0
        from recurra.tasks.labelling.controls import time_control

        return time_control(config, data)

    def epoch_flops(self, config: RunConfig, lengths: Mapping[int, int], cost: DataCost) -> float:
        from recurra.models.presets import forward_flops
        from recurra.tasks.labelling.configuration import model_configuration
        from recurra.training.setfit import reads_of_a_row

        shape = model_configuration(config, cost.label_names, None)
        flops = float(sum(rows * forward_flops(shape, length) for length, rows in lengths.items()))
        return flops * reads_of_a_row(sum(lengths.values())) if METHOD in config.model_overrides else flops

    def timing_key(self, record: AnyRecord) -> str:
        """Runs on the same data are timed on the same texts, and those of every fold on texts of the first."""
        data = {key: value for key, value in record.config["data"].items() if key not in ("fold", "split_seed")}
        return content_hash([data, record.config.get("data_hash")]) if data.get("folds") else record.data.fingerprint

    def timing_inputs(self, record: AnyRecord, folder: Path, data: StudyData) -> list[str]:
        assert isinstance(record, LabelRunRecord)
        dataset = data.rows(recorded_data(record))
        return _timed_texts(dataset.splits[dataset.headline_split].texts)

    def timing_batches(self, inputs: Sequence[str], batch_size: int) -> list[list[str]]:
        """Texts of like length together: by characters, which needs no tokenizer."""
        ordered = sorted(inputs, key=len)
        return [ordered[start : start + batch_size] for start in range(0, len(ordered), batch_size)]

    def competitors(self, name: str, folder: Path, record: AnyRecord, *, threads: int) -> Iterator[Competitor]:
        """A model, and if it carries an exit rule, the same one with texts leaving early."""
        from recurra.deployment.classifier import Classifier

        classifier = Classifier.open(folder, threads=threads)
        is_export = "/" in name
        precision = classifier.computation.compute_precision if is_export else record.environment.precision
        yield Competitor(name, partial(classifier.logits, clean=False), precision)
        if classifier.calibrated_rule is not None:
            early = copy.copy(classifier)
            early.stop_early()
            yield Competitor(f"{name}{WITH_EXITS}", partial(early.logits, clean=False), precision)


def _is_file(name: str) -> bool:
    return name not in CORPORA and Path(name).is_file()


def _timed_texts(texts: Sequence[str]) -> list[str]:
    """Evenly spaced texts, at most `MOST_SAMPLES`."""
    return list(texts[:: -(-len(texts) // MOST_SAMPLES)])


def _tokenizer_of(data: DataConfig, overrides: Mapping[str, Any]) -> str:
    """The tokenizer that a model reads with: its encoder's, or that of the data."""
    source = encoder_of(overrides)
    return data.tokenizer if source is None else str(source.folder.absolute())


def _reading_notes(config: RunConfig, data: StudyData) -> list[str]:
    """Warnings of texts that the encoder of a model does not read: in another language, or too long beside words."""
    rows, overrides, notes = labelled(config.data), config.model_overrides, []
    # The first fold reports this for all.
    if ENCODER not in overrides or rows.fold:
        return []
    file, name = Path(rows.name).name, overrides[ENCODER]
    lengths, tokenizer = data.token_lengths(rows, _tokenizer_of(rows, overrides), ["train"])
    share = broken_share(sample_of(data.rows(rows).splits["train"]), tokenizer)
    if share > MOST_BROKEN:
        remedy = f"; for other languages: --from {MULTILINGUAL} (pip install 'recurra[languages]')"
        notes.append(
            f"{file}: encoder '{name}' was not made for this language: {share:.0%} of the pieces that it reads are "
            f"unknown, single letters or parts of words{remedy if name != MULTILINGUAL else ''}"
        )
    if config.control == WORDS_AND_ENCODER and (cut := cut_texts(lengths["train"], STATES_TOKENS)).rows:
        notes.append(
            f"{file}: {config.model} reads words whole and the first {STATES_TOKENS} tokens with its encoder, "
            f"whatever max_length and windows; this cuts {cut} of train"
        )
    return notes


def _encoder_audits(config: RunConfig) -> list[AuditResult]:
    """Audits whether the encoder that a model started from has read a user's reported rows."""
    source, data = encoder_of(config.model_overrides), labelled(config.data)
    reported_file = Path(data.test or data.name)
    if source is None or not source.taught or not reported_file.is_file():
        return []
    sha256 = describe_file(reported_file).sha256
    return run_audits(Subject.ENCODER, source.name, source.taught, reported_file.name, sha256)
