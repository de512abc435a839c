"""The configuration of a run, and the base class of tasks: each holds its data, training, measures and wording.

The rest of the project (`recurra.study`, the command line) works with `Task` alone and never asks which one it has.
Torch is loaded in the methods of tasks.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, SerializeAsAny

from recurra.core.configuration import HashedSettings, content_hash
from recurra.core.errors import ConfigurationError, UnavailableError, unknown
from recurra.core.progress import Reporter
from recurra.core.record import AnyRecord, AuditResult, LatencyRecord
from recurra.core.record_parts import ANSWERS
from recurra.data.configuration import RunData
from recurra.models.adaptation.source import EncoderSource, find_encoder
from recurra.tasks import PACKAGES, part_of
from recurra.tasks.questions import Precision
from recurra.tasks.study_data import StudyData
from recurra.tasks.tables import CommandResult
from recurra.training.protocols import ProtocolConfig, load_protocol

if TYPE_CHECKING:
    from recurra.tasks.exits import ExitSubject


def task(name: str) -> Task:
    """The task with this name, as records write it; raises what `part_of` raises."""
    return part_of(name, "task")


def tasks() -> list[Task]:
    """Every task."""
    return [task(name) for name in PACKAGES]


def task_of_data(config: RunData) -> Task:
    """The task to which a data configuration belongs."""
    return next(owner for owner in tasks() if isinstance(config, owner.data_config))


def task_of_values(values: Mapping[str, Any]) -> Task:
    """The task that claims data with these keys, at least ``name``; the last task claims what no other does."""
    return next(owner for owner in tasks() if owner.claims(values))


def presets() -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Presets of all tasks by name, in the order in which they are listed."""
    return {name: preset for owner in reversed(tasks()) for name, preset in owner.presets.items()}


def controls() -> dict[str, Mapping[str, Any]]:
    """Controls of all tasks, which no training protocol trains, each with the keys of its configuration."""
    return {name: keys for owner in tasks() for name, keys in owner.controls.items()}


# Keys of a model that name its starting point, its training method and its teacher; the others configure it.
ENCODER, ENCODER_SHA256, PLAN, TEACHER, METHOD = "encoder", "encoder_sha256", "plan", "teacher", "method"
# The file of answers of a model of which nothing else is known, and the hash of this file.
ANSWERS_FILE, ANSWERS_HASH = "answers", "answers_hash"
START_KEYS = ("preset", ENCODER, ENCODER_SHA256, PLAN, TEACHER, METHOD, ANSWERS_FILE, ANSWERS_HASH)
# Third-party methods that train an encoder instead of one of our training protocols.
METHODS = ("setfit",)
# The control that reads words and the states of a frozen encoder.
WORDS_AND_ENCODER = "words-and-encoder"
# The same control with this package's own encoder: it fits in seconds and downloads nothing.
SMALL_AND_WORDS = "recurra-small-and-words"
# Controls that learn from a teacher's answers, if a model names one of them as its preset.
TEACHABLE = ("linear-tuned", "static")


def control_of(model: str, overrides: Mapping[str, Any]) -> str | None:
    """The control that a model is, or that it names as ``preset`` to be taught; None if it is not a control.

    A model that is known only by its answers counts as a control, since nothing trains it.
    """
    if ANSWERS_FILE in overrides:
        return ANSWERS
    name = str(overrides.get("preset", model))
    return name if name in controls() else None


def base_preset(model: str, overrides: Mapping[str, Any]) -> str:
    """The preset that a model starts from: the one that it names, its own name, or ``recurrent``."""
    return str(overrides.get("preset", model if model in presets() else "recurrent"))


def encoder_of(overrides: Mapping[str, Any]) -> EncoderSource | None:
    """The pretrained encoder that a model starts from; None if it starts from none.

    Raises:
        RecurraError: If it cannot be used, or its weights are not those that a run was planned with.
    """
    name = overrides.get(ENCODER)
    if name is None:
        return None
    source = find_encoder(str(name), any_family=True)
    planned = overrides.get(ENCODER_SHA256)
    if planned is not None and source.sha256 != planned:
        raise ConfigurationError(
            f"encoder '{name}' has weights whose hash begins with {source.sha256[:12]}; the run was planned with "
            f"{str(planned)[:12]}: restore them, or leave {ENCODER_SHA256} out and train again"
        )
    return source


def check_method(overrides: Mapping[str, Any]) -> None:
    """Checks that the package of the method that trains a model is installed, without importing it.

    Raises:
        UnavailableError: If it is not installed.
    """
    method = overrides.get(METHOD)
    if method is not None and importlib.util.find_spec(str(method)) is None:
        raise UnavailableError(f"method '{method}' needs the package {method}; pip install 'recurra[peers]'")


def own_keys(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides that belong to the configuration of the model itself."""
    return {key: value for key, value in overrides.items() if key not in START_KEYS}


def _parse_data(value: Any) -> RunData:
    """Parses data with the task that claims them; messages of a pydantic union would name every task's keys."""
    if isinstance(value, RunData):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("a mapping of keys to values is needed, at least name")
    return task_of_values(value).data_config.parse(value, source=f"data '{value.get('name', '')}'")


DataEntry = Annotated[SerializeAsAny[RunData], BeforeValidator(_parse_data)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]


class TeacherConfig(HashedSettings):
    """One teacher of a run.

    Attributes:
        run_id: The teacher's run, if it is one of the same study and lies beside this run; empty if it is a folder.
        identity: Hash of the teacher's content, so that another teacher makes another run.
    """

    name: str
    run_id: str = ""
    folder: str = ""
    identity: str = ""


class RunConfig(HashedSettings):
    """One run: a model, data, a protocol and a seed.

    Attributes:
        model_overrides: Keys of the model configuration on top of the preset. ``preset`` names another base;
            ``encoder`` and ``plan`` name a pretrained encoder and which of its layers are shared; ``teacher`` names
            teachers for this model alone, and not for all of its protocol.
        data_hash: Hash of the user's files, so that a changed file is a changed run.
        seed: Seed of weights, batch order and dropout. The data have their own ``split_seed``.
    """

    _FIRST_KEYS: ClassVar[frozenset[str]] = frozenset({"model_overrides", "data_hash", "seed", "precision"})

    model: str
    model_overrides: dict[str, Any] = Field(default_factory=dict)
    data: DataEntry
    data_hash: str | None = None
    protocol: ProtocolConfig
    seed: Seed = 0
    precision: Precision = "fp32"
    teachers: list[TeacherConfig] = Field(default_factory=list)

    def model_post_init(self, _: object) -> None:
        """Checks that model and data belong together."""
        task_of_data(self.data).check_model(self.model, self.model_overrides, self.data.name)

    @property
    def is_control(self) -> bool:
        """Whether its model is a control, taught or not; no training protocol trains a control."""
        return self.control is not None

    @property
    def answers(self) -> str | None:
        """The file of answers, if nothing else is known of the model; None for any other model."""
        return self.model_overrides.get(ANSWERS_FILE)

    @property
    def control(self) -> str | None:
        """The control that its model is; None for other models."""
        return control_of(self.model, self.model_overrides)

    @property
    def needs_torch(self) -> bool:
        """Whether it loads torch; a linear model of n-grams without a teacher does not."""
        return not self.is_control or bool(self.teachers) or ENCODER in self.model_overrides

    @property
    def is_accelerated(self) -> bool:
        """Whether it is computed on an accelerator, if there is one; controls that run no encoder are not."""
        return not self.is_control or self.control == WORDS_AND_ENCODER

    @property
    def is_repeated(self) -> bool:
        """Whether another protocol or seed makes another run; for a control only if it learns from a teacher."""
        return not self.is_control or bool(self.teachers)

    @property
    def label(self) -> str:
        """The model's name where it is shown."""
        return task_of_data(self.data).label(self.model, self.model_overrides)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copies with changes; cached values that depend on the old ones are computed again."""
        copied = super().model_copy(update=update, deep=deep)
        for cached_name in ("config_hash", "run_id"):
            copied.__dict__.pop(cached_name, None)
        return copied

    @cached_property
    def config_hash(self) -> str:
        """Identity of the run: equal hashes mean equal configurations."""
        return content_hash(self.plain())

    @cached_property
    def run_id(self) -> str:
        """Readable and unique: data, protocol, part, model, training protocol, seed, and the hash's first digits."""
        data = Path(self.data.name).stem if self.data_hash else self.data.name
        parts = [data, self.data.reading, *filter(None, [self.data.part]), self.label]
        if self.is_repeated:
            parts += [self.protocol.name, f"s{self.seed}"]
        slug = "-".join("".join(c if c.isalnum() or c in "._" else "-" for c in part) for part in parts)
        # A file system takes 255 bytes, and temporary names are longer; a letter may have four.
        short = slug[:100].encode()[:230].decode(errors="ignore")
        # A name that begins with a dash would be taken for an option, one with a dot would be hidden.
        return f"{short.lstrip('-.') or 'run'}-{self.config_hash[:8]}"


# Command-line options by parameter name; None for an option that was not given.
Given = Mapping[str, Any]
# Name and changed keys of a model.
Model = tuple[str, Mapping[str, Any]]


@dataclass
class DataCost:
    """The rows and tokens of a training epoch on some data.

    Attributes:
        lengths: Training rows of each length in tokens.
        vocab_size: Size of the tokenizer's vocabulary; None where the head's size does not depend on it.
        unlabelled_lengths: Texts without labels of each length in tokens; students of a teacher read them.
    """

    label_names: list[str]
    lengths: Mapping[int, int]
    vocab_size: int | None = None
    auxiliary_lengths: Mapping[int, int] = field(default_factory=dict)
    unlabelled_lengths: Mapping[int, int] = field(default_factory=dict)

    @property
    def mean_length(self) -> float:
        """Tokens of a training row."""
        return sum(length * rows for length, rows in self.lengths.items()) / sum(self.lengths.values())


@dataclass(frozen=True)
class Competitor:
    """One model of a side-by-side timing.

    Attributes:
        name: The run's identifier, or ``RUN/EXPORT``, with ``+exits`` where rows leave early.
    """

    name: str
    call: Callable[[Any], Any]
    precision: str


class Task(ABC):
    """Base of tasks: names, configuration, training, measurement and timing of the models of one task.

    Methods raise `RecurraError` if data, a run or an export cannot be used, and its subclass `ConfigurationError` for
    a mistake of the user: an unknown key, an impossible value, an option without meaning, data without audits, a run
    without exits.

    Attributes:
        presets: Models that it trains by name: a description and a shape.
        controls: Models without a training protocol, such as ``linear``, and keys that each is configured with; they
            are cheap, deterministic and run once.
        takes_foreign_models: Whether models that are not ours can be audited as models of this task.
        usage: Command that uses a run and what follows its folder, for messages.
        exit_quality: What an exit rule must keep, in words, with a place for the percentage.
        timing_scope: What a timing covers: ``text`` (text to label) or ``model`` (tokens to logits).
    """

    name: ClassVar[str]
    data_config: ClassVar[type[RunData]]
    presets: ClassVar[Mapping[str, tuple[str, Mapping[str, Any]]]]
    protocols: ClassVar[Mapping[str, ProtocolConfig]]
    controls: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    advice: ClassVar[str]
    kind_of_data: ClassVar[str]
    exports: ClassVar[bool] = False
    takes_answers: ClassVar[bool] = False
    kind_of_answer: ClassVar[str] = "running text"
    starts_from_encoders: ClassVar[bool] = False
    usage: ClassVar[tuple[str, str]] = ("predict", "'a text'")
    published_tables: ClassVar[Mapping[str, Any]] = {}
    exit_option: ClassVar[str]
    exit_default: ClassVar[float]
    exit_quality: ClassVar[str]
    architecture: ClassVar[str]
    takes_foreign_models: ClassVar[bool] = False
    timing_scope: ClassVar[Literal["model", "text"]]

    @abstractmethod
    def claims(self, values: Mapping[str, Any]) -> bool:
        """Whether data with these keys, at least ``name``, are data of this task."""

    @abstractmethod
    def misfit(self, model: str, data_name: str) -> str:
        """Says that a model of this task cannot use these data, and which data it needs."""

    def shape(self, model: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """The keys of a model's configuration that differ from the defaults, without loading transformers."""
        source = encoder_of(overrides)
        if source is not None:
            return source.shape(str(overrides.get(PLAN, "")), own_keys(overrides))
        return {**self.presets.get(base_preset(model, overrides), ("", {}))[1], **own_keys(overrides)}

    def label(self, model: str, overrides: Mapping[str, Any]) -> str:
        """The model's name where it is shown."""
        del overrides
        return model

    def load_protocol(self, name: str, changes: Mapping[str, Any] | None = None) -> ProtocolConfig:
        """A training protocol of this task by name, or of a file; `recurra.training.protocols.load_protocol`."""
        return load_protocol(name, changes, known=self.protocols)

    def check_model(self, model: str, overrides: Mapping[str, Any], data_name: str) -> None:
        """Refuses a model of another task, or one whose keys contradict each other.

        Raises:
            ConfigurationError: If it trains for another task.
        """
        if ANSWERS_FILE in overrides:
            if not self.takes_answers:
                raise ConfigurationError(
                    f"--predictions '{model}' have one label a text, and '{data_name}' has {self.kind_of_answer}; "
                    "leave them out"
                )
            if extra_keys := sorted({*overrides} - {ANSWERS_FILE, ANSWERS_HASH}):
                raise ConfigurationError(
                    f"model '{model}': '{extra_keys[0]}' is given together with answers; leave one of the two out"
                )
            return
        control = control_of(model, overrides)
        name = control or base_preset(model, overrides)
        if control is not None and control in self.controls:
            _check_control(model, control, overrides)
        elif ENCODER in overrides:
            _check_encoder(self, model, overrides)
        elif extra := next((key for key in (METHOD, PLAN) if key in overrides), None):
            raise ConfigurationError(
                f"model '{model}': '{extra}' is '{overrides[extra]}' without an encoder to apply it to; add encoder"
            )
        elif name not in self.controls and name not in self.presets:
            for other_task in reversed(tasks()):
                if name in other_task.controls or name in other_task.presets:
                    raise ConfigurationError(f"{other_task.misfit(model, data_name)}, or take {self.advice}")

    @abstractmethod
    def configure_data(
        self, values: Mapping[str, Any], data: StudyData, *, models: Sequence[Model] | None = None
    ) -> tuple[RunData, str]:
        """Builds the data configuration from the keys that a user wrote, and chooses the missing ones.

        Args:
            models: Models that will read the data; empty if any may, None if the data are only inspected.

        Returns:
            The configuration, and a sentence on what was chosen, empty if nothing was.
        """

    @abstractmethod
    def describe_data(self, config: RunData, data: StudyData) -> CommandResult:
        """Describes data: splits, sizes, fingerprints."""

    @abstractmethod
    def prepare_data(self, config: RunData, data: StudyData) -> CommandResult:
        """Tokenises data into the cache, where trainings find them."""

    @abstractmethod
    def audit_data(self, config: RunData, data: StudyData) -> tuple[str, list[AuditResult]]:
        """A title, and the audits of data that need no model."""

    def label_names(self, config: RunData, data: StudyData) -> Sequence[str]:
        """Names of the labels of data, in their order; none where they have no labels."""
        del config, data
        return ()

    @abstractmethod
    def data_cost(self, config: RunData, data: StudyData) -> DataCost:
        """Counts the training rows of data by their length in tokens."""

    @abstractmethod
    def preflight(self, config: RunConfig, data: StudyData) -> list[str]:
        """Checks what a run will need: data, tokenizer, protocol, model configuration."""

    @abstractmethod
    def training_modules(self, config: RunConfig) -> Sequence[str]:
        """Modules that a worker imports before it trains a run."""

    @abstractmethod
    def trainer(self, config: RunConfig) -> Callable[..., Any]:
        """The function that trains and saves the model of a run, or resumes an interrupted run.

        It takes configuration, folder, data and reporter. Returning it imports scikit-learn or torch.
        """

    @abstractmethod
    def record_run(
        self, config: RunConfig, trained: Any, folder: Path, data: StudyData, reporter: Reporter, *, started: float
    ) -> AnyRecord:
        """Measures and audits the result of `trainer`; returns the record, to be written last.

        Args:
            started: When the run began, by ``time.perf_counter``.
        """

    @abstractmethod
    def present(self, record: AnyRecord, output: str) -> CommandResult:
        """The output that a training shows."""

    @abstractmethod
    def evaluate(self, run: Path, options: Given, data_root: Path | None) -> CommandResult:
        """Evaluates a finished run or an export with options of the command line."""

    @abstractmethod
    def exit_subject(self, run: Path, data_root: Path | None) -> ExitSubject:
        """A finished run with exits, to choose, judge and time exit rules."""

    @abstractmethod
    def model_class(self) -> Any:
        """The class of its models."""

    @abstractmethod
    def load_model(self, folder: Path) -> Any:
        """The model in a model folder, in evaluation mode."""

    @abstractmethod
    def audit_model(self, model: Any, seed: int) -> list[AuditResult]:
        """Audits a model on random tokens."""

    @abstractmethod
    def sample_step(self, config: RunConfig, length: int) -> tuple[Any, float, Any]:
        """A model of a run with new weights, operations of its forward pass over a row, and labels of a batch.

        Labels are None where the tokens themselves are predicted.
        """

    def control_seconds(self, config: RunConfig, data: StudyData) -> float | None:
        """Seconds that a control will take to fit, from a fit on some of its rows; none where there is no control."""
        del config, data
        return None

    @abstractmethod
    def epoch_flops(self, config: RunConfig, lengths: Mapping[int, int], cost: DataCost) -> float:
        """Operations of the forward passes over rows of these lengths."""

    @abstractmethod
    def timing_key(self, record: AnyRecord) -> str:
        """A key that is equal for runs that are timed on the same inputs."""

    @abstractmethod
    def timing_inputs(self, record: AnyRecord, folder: Path, data: StudyData) -> Sequence[Any]:
        """Inputs of the timing: rows of the last reported split."""

    @abstractmethod
    def timing_batches(self, inputs: Sequence[Any], batch_size: int) -> list[Any]:
        """Inputs in batches of like length."""

    def time_models(
        self, models: Sequence[Competitor], inputs: Sequence[Any], sizes: set[int], threads: int, *, on_device: bool
    ) -> dict[str, dict[str, LatencyRecord]]:
        """Times models in turns at each batch size; returns their records by name and ``batch_SIZE``."""
        from recurra.evaluation.latency import measure_side_by_side, synchroniser

        device = "cpu"
        if on_device:
            from recurra.models.inference import default_device

            device = str(default_device())
        timed: dict[str, dict[str, LatencyRecord]] = {model.name: {} for model in models}
        for size in sorted(sizes):
            records = measure_side_by_side(
                {model.name: model.call for model in models},
                self.timing_batches(inputs, size),
                synchronise=synchroniser(device),
                threads=threads,
                precision={model.name: model.precision for model in models},
                device=device,
                scope=self.timing_scope,
            )
            for name, record in records.items():
                timed[name][f"batch_{size}"] = record
        return timed

    def time_alone(
        self, call: Callable[[Any], Any], inputs: Sequence[Any], config: RunConfig, threads: int
    ) -> dict[str, LatencyRecord]:
        """Times the model of a run by itself, at batch 1 and at the evaluation batch size."""
        model, sizes = Competitor("model", call, config.precision), {1, config.protocol.evaluation_batch_size}
        return self.time_models([model], inputs, sizes, threads, on_device=config.is_accelerated)["model"]

    @abstractmethod
    def competitors(self, name: str, folder: Path, record: AnyRecord, *, threads: int) -> Iterator[Competitor]:
        """The competitors by which a run or an export takes part in a timing."""


def allowed_options(given: Given, names: Sequence[str], reason: str) -> dict[str, Any]:
    """The options that were given.

    Raises:
        ConfigurationError: If one was given that would do nothing.
    """
    values = {name: value for name, value in given.items() if value is not None}
    for name in values:
        if name not in names:
            raise ConfigurationError(f"'--{name.replace('_', '-')}' has no meaning here: {reason}; leave it out")
    return values


def require_split(record: AnyRecord, name: str) -> None:
    """Refuses a split that a run does not have.

    Raises:
        ConfigurationError: If the run has no split of that name.
    """
    if name not in record.data.splits:
        raise ConfigurationError(unknown(f"split of run '{record.run_id}'", name, record.data.splits))


def _check_control(model: str, control: str, overrides: Mapping[str, Any]) -> None:
    encoder_keys = {ENCODER, ENCODER_SHA256} if ENCODER in controls()[control] else set()
    if unknown_keys := {*overrides} - encoder_keys - {"preset", TEACHER}:
        key = min(unknown_keys)
        raise ConfigurationError(
            f"model '{model}': '{key}' is '{overrides[key]}', and {control} has no such key; leave it out"
        )
    if overrides.get(TEACHER) is None and control in (model, WORDS_AND_ENCODER):
        return
    if control not in TEACHABLE:
        raise ConfigurationError(
            f"model '{model}': preset '{control}' cannot be taught; allowed: {', '.join(TEACHABLE)}"
        )
    if model != control and not overrides.get(TEACHER):
        raise ConfigurationError(
            f"model '{model}' is the same as {control}; write {control}, or add teacher, the model it learns from"
        )


def _check_encoder(owner: Task, model: str, overrides: Mapping[str, Any]) -> None:
    if not owner.starts_from_encoders:
        raise ConfigurationError(
            f"model '{model}' starts from the encoder '{overrides[ENCODER]}', which reads texts in both directions; "
            f"data of this kind are {owner.kind_of_data}: take {owner.advice}"
        )
    method = overrides.get(METHOD)
    if method is not None and method not in METHODS:
        raise ConfigurationError(f"model '{model}': {unknown('method', str(method), METHODS)}")
    if method is not None and getattr(owner.data_config, "problem_type", None) is not None:
        raise ConfigurationError(f"model '{model}': method '{method}' takes one label a text, these data have several")
    extra = next((key for key in (PLAN, TEACHER, *own_keys(overrides)) if method and overrides.get(key)), None)
    if extra is not None:
        raise ConfigurationError(
            f"model '{model}': '{extra}' is '{overrides[extra]}', but method '{method}' trains the encoder as it "
            "is, on labels only; leave one of the two out"
        )
    if "preset" in overrides:
        raise ConfigurationError(
            f"model '{model}' gives both preset '{overrides['preset']}' and encoder '{overrides[ENCODER]}'; "
            "leave one of the two out"
        )
