"""What a task is: one class with its data, training, evaluation, measures and words. Torch is loaded in its methods.

The rest of the project (`recurra.study`, the command line) works with `Task` alone and never asks which one it has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np

from recurra.core.configuration import override
from recurra.core.errors import ConfigurationError, unknown
from recurra.core.progress import Reporter
from recurra.core.record import AnyRecord, AuditResult
from recurra.data.configuration import RunData
from recurra.tasks.profile import PACKAGES, PLAN, base_preset, data_task, encoder_of, own_keys, part_of, task_claiming
from recurra.tasks.runs import RunConfig
from recurra.tasks.study_data import StudyData
from recurra.tasks.tables import CommandResult
from recurra.training.protocols import ProtocolConfig, load_protocol

if TYPE_CHECKING:
    from recurra.models.exits.rules import ExitRule
    from recurra.models.exits.thresholds import CalibratedExits

# Names of what is timed of an exit rule.
FULL, EXITS = "full", "exits"
# Options of a command line by name; none for one that was not given.
Given = Mapping[str, Any]
# Name and changed keys of a model.
Model = tuple[str, Mapping[str, Any]]


@dataclass
class DataCost:
    """What a training epoch on some data is made of.

    Attributes:
        lengths: Training rows of each length in tokens, by the length as text.
        vocab_size: Tokens that the tokenizer tells apart; none where the head's size does not depend on them.
        unlabelled_lengths: Texts without labels of each length in tokens; students of a teacher read them.
    """

    label_names: list[str]
    lengths: dict[str, int]
    vocab_size: int | None = None
    auxiliary_lengths: dict[str, int] = field(default_factory=dict)
    unlabelled_lengths: dict[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Training rows."""
        return sum(self.lengths.values())

    @property
    def tokens(self) -> int:
        """Training tokens."""
        return sum(int(length) * rows for length, rows in self.lengths.items())


@dataclass(frozen=True)
class ExitQuality:
    """What an exit rule does on rows that did not choose it.

    Attributes:
        full: Quality without the rule: nats a token, or accuracy.
        agreement: Share of rows whose label is the full model's; none where there are no labels.
        exited_after: Rows or tokens by the recurrences that they took.
    """

    split: str
    full: float
    exits: float
    agreement: float | None
    exited_after: dict[int, int]


class ExitSubject(Protocol):
    """A run whose exit rule is chosen, judged and timed."""

    run_id: str
    chosen_on: str
    model: Any
    unit: str
    quality: str
    timed: str

    def choose(self, keep: float, kind: str) -> CalibratedExits:
        """Chooses a threshold on the selection split."""
        ...

    def judge(self, rule: ExitRule) -> ExitQuality:
        """Judges a rule on the reported rows."""
        ...

    def calls(self, rule: ExitRule) -> Mapping[str, Callable[[Any], Any]]:
        """What is timed, by name: ``full`` and ``exits``."""
        ...

    def batches(self, batch_size: int) -> Sequence[Any]:
        """What it is timed on."""
        ...


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
    """What models of one task are called, configured by, trained, measured and timed by.

    Methods raise `RecurraError` where data, a run or an export cannot be used, and its `ConfigurationError` for what a
    person named: an unknown key, an impossible value, an option without meaning, data without audits, a
    run without exits.

    Attributes:
        presets: Models that it trains by name: a description and a shape.
        controls: Models without a training protocol, such as ``linear``, and keys that each is configured with; they
            are cheap, deterministic and run once.
        takes_foreign_models: Whether models that are not ours can be audited as models of this task.
        records_exits: Whether early exits are kept beside a run's record, for its study's report.
        usage: Command that uses a run and what follows its folder, for messages.
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
    architecture: ClassVar[str]
    takes_foreign_models: ClassVar[bool] = False
    records_exits: ClassVar[bool] = False
    timing_scope: ClassVar[Literal["model", "text"]]

    @abstractmethod
    def claims(self, values: Mapping[str, Any]) -> bool:
        """Whether data with these keys, at least ``name``, are data of this task."""

    @abstractmethod
    def misfit(self, model: str, data_name: str) -> str:
        """Says that data are none for a model of this task, and what would be."""

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

    def load_protocol(self, name: str, changes: Mapping[str, Any] | Sequence[str] = ()) -> ProtocolConfig:
        """A training protocol by name or file, with changed keys, or ``key=value`` as a study file has them."""
        protocol = load_protocol(name, known=self.protocols)
        if not changes:
            return protocol
        plain = protocol.plain()
        changed = {**plain, **changes} if isinstance(changes, Mapping) else override(plain, changes)
        return ProtocolConfig.parse(changed, source=f"protocol '{name}'")

    @abstractmethod
    def configure_data(
        self, values: Mapping[str, Any], data: StudyData, *, models: Sequence[Model] | None = None
    ) -> tuple[RunData, str]:
        """Builds the configuration of data from what a person wrote; what is not named is chosen.

        Args:
            models: Those that are to read them; empty if it may be any, none if they are only looked at.

        Returns:
            The configuration, and a sentence on what was chosen, empty if nothing was.
        """

    @abstractmethod
    def describe_data(self, config: RunData, data: StudyData) -> CommandResult:
        """What is in some data: splits, sizes, fingerprints."""

    @abstractmethod
    def prepare_data(self, config: RunData, data: StudyData) -> CommandResult:
        """Tokenises data into the cache, where trainings find them."""

    @abstractmethod
    def audit_data(self, config: RunData, data: StudyData) -> tuple[str, list[AuditResult]]:
        """Audits of data that need no model, under a title."""

    def label_names(self, config: RunData, data: StudyData) -> Sequence[str]:
        """Names of the labels of data, in their order; none where they have no labels."""
        del config, data
        return ()

    @abstractmethod
    def data_cost(self, config: RunData, data: StudyData) -> DataCost:
        """Counts the training rows of data by their length in tokens."""

    @abstractmethod
    def training_share(self, config: RunData) -> float:
        """The share of a corpus's training rows that data take."""

    @abstractmethod
    def preflight(self, config: RunConfig, data: StudyData) -> list[str]:
        """Looks at what a run will need: data, tokenizer, protocol, model configuration."""

    @abstractmethod
    def training_modules(self, config: RunConfig) -> Sequence[str]:
        """What a worker imports before it trains a run."""

    @abstractmethod
    def trainer(self, config: RunConfig) -> Callable[..., Any]:
        """What trains and saves the model of a run, or takes up what an interrupted run left.

        It takes configuration, folder, data and reporter; scikit-learn or torch are imported for it.
        """

    @abstractmethod
    def record_run(
        self, config: RunConfig, trained: Any, folder: Path, data: StudyData, reporter: Reporter, *, started: float
    ) -> AnyRecord:
        """Measures and audits what `trainer` left; returns the record, to be written last.

        Args:
            started: When the run began, by ``time.perf_counter``.
        """

    @abstractmethod
    def present(self, record: AnyRecord, output: str) -> CommandResult:
        """What a training shows."""

    @abstractmethod
    def evaluate(self, run: Path, options: Given, data_root: Path | None) -> CommandResult:
        """Evaluates a finished run or an export with options of the command line."""

    @abstractmethod
    def exit_subject(self, run: Path, data_root: Path | None) -> ExitSubject:
        """A finished run with exits."""

    @abstractmethod
    def describe_kept(self, keep: float) -> str:
        """What an exit rule must keep, in words."""

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

        Labels are none where the tokens themselves are predicted.
        """

    def control_seconds(self, config: RunConfig, data: StudyData) -> float | None:
        """Seconds that a control will take to fit, from a fit on some of its rows; none where there is no control."""
        del config, data
        return None

    @abstractmethod
    def epoch_flops(self, config: RunConfig, lengths: Mapping[str, int], cost: DataCost) -> float:
        """Operations of the forward passes over rows of these lengths."""

    @abstractmethod
    def timing_key(self, record: AnyRecord) -> str:
        """Equal for runs that are timed on the same inputs."""

    @abstractmethod
    def timing_inputs(self, record: AnyRecord, folder: Path, data: StudyData) -> Sequence[Any]:
        """What is timed: rows of the last reported split."""

    @abstractmethod
    def timing_batches(self, inputs: Sequence[Any], batch_size: int) -> list[Any]:
        """Inputs in batches of like length."""

    @abstractmethod
    def competitors(self, name: str, folder: Path, record: AnyRecord, *, threads: int) -> Iterator[Competitor]:
        """What stands for a run or an export in a timing."""


def refuse_options(given: Given, allowed: Collection[str], reason: str) -> None:
    """Refuses options that would do nothing.

    Raises:
        ConfigurationError: If one was given that does not.
    """
    for option, value in given.items():
        if value is not None and option not in allowed:
            raise ConfigurationError(f"'{option}' has no meaning here: {reason}; leave it out")


def named_options(given: Given, names: Mapping[str, str]) -> dict[str, Any]:
    """The options that were given, by the names of the parameters that they stand for."""
    return {name: given[option] for option, name in names.items() if given.get(option) is not None}


def count_lengths(lengths: Any) -> dict[str, int]:
    """Rows of each length, by the length as text (a key of JSON)."""
    values, rows = np.unique(lengths, return_counts=True)
    return {str(length): int(count) for length, count in zip(values, rows, strict=True)}


def require_split(record: AnyRecord, name: str) -> None:
    """Refuses a split that a run does not have.

    Raises:
        ConfigurationError: If it has none of that name.
    """
    if name not in record.data.splits:
        raise ConfigurationError(unknown(f"split of run '{record.run_id}'", name, record.data.splits))


def task(name: str) -> Task:
    """The task of a name, as records have it.

    Raises:
        CheckpointError: If there is none.
    """
    named: Task = part_of(name, "task")
    return named


def tasks() -> list[Task]:
    """Every task."""
    return [task(name) for name in PACKAGES]


def task_of_data(config: RunData) -> Task:
    """The task that a configuration of data is of."""
    owner: Task = data_task(config)
    return owner


def task_of_values(values: Mapping[str, Any]) -> Task:
    """The task that claims data with these keys, at least ``name``."""
    owner: Task = task_claiming(values)
    return owner
