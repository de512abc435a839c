"""What every task offers: a half that configures runs, which imports no torch, and an engine that trains and measures.

Engines of the project (`recurra.study`, the command line) work with these interfaces alone and never ask which task
they have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from recurra.core.errors import ConfigurationError, unknown
from recurra.core.progress import Reporter
from recurra.core.record import AnyRecord, AuditResult
from recurra.data.configuration import RunData
from recurra.tasks.machine import Machine
from recurra.tasks.presentation import Shown
from recurra.tasks.profile import PACKAGES, TaskProfile, part_of, profile_of_data
from recurra.tasks.runs import RunConfig

# Names of what is timed of an exit rule.
FULL, EXITS = "full", "exits"
# Options of a command line by name; none for one that was not given.
Given = Mapping[str, Any]

if TYPE_CHECKING:
    from recurra.models.exits.rules import ExitRule
    from recurra.models.exits.thresholds import CalibratedExits


@dataclass
class DataCost:
    """What a training epoch on some data is made of.

    Attributes:
        label_names: Names of the classes, where the data have any.
        lengths: Training rows of each length in tokens, by the length as text.
        vocab_size: Tokens that the tokenizer tells apart; none where the head's size does not depend on them.
        auxiliary_lengths: Auxiliary rows of each length in tokens.
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


class Task(TaskProfile):
    """How runs of one task are configured and looked at before they start; imports no torch."""

    @abstractmethod
    def configure_data(
        self,
        name: str,
        options: Given,
        assigned: Mapping[str, Any],
        data_root: Path | None,
        *,
        models: Sequence[tuple[str, Mapping[str, Any]]] | None = None,
    ) -> tuple[RunData, str]:
        """Builds the configuration of data from what a person wrote; what is not named is chosen.

        Args:
            name: A corpus or a file.
            options: Options of the command line; those that mean nothing here are refused.
            assigned: Values of ``data.KEY=VALUE``; they win over the options.
            data_root: Local copies of public data.
            models: Name and changed keys of each model that is to read them; empty if it may be any, none if they are
                only looked at.

        Returns:
            The configuration, and a sentence on what was chosen, empty if nothing was.

        Raises:
            ConfigurationError: For an option without meaning, an unknown key or an impossible value.
        """

    @abstractmethod
    def describe_data(self, data: RunData, data_root: Path | None) -> Shown:
        """What is in some data: splits, sizes, fingerprints."""

    @abstractmethod
    def prepare_data(self, data: RunData, data_root: Path | None, cache_dir: Path | None) -> Shown:
        """Tokenises data into the cache, where trainings find them."""

    @abstractmethod
    def audit_data(self, data: RunData, data_root: Path | None) -> tuple[str, list[AuditResult]]:
        """Audits of data that need no model, under a title.

        Raises:
            ConfigurationError: If there is none for such data.
        """

    @abstractmethod
    def preflight(self, config: RunConfig, machine: Machine) -> list[str]:
        """Looks at what a run will need: data, tokenizer, protocol, model configuration.

        Returns:
            Lines that a person should read before it starts.

        Raises:
            RecurraError: If it could not start.
        """

    def label_names(self, data: RunData, machine: Machine) -> Sequence[str]:
        """Names of the labels of data, in their order; none where they have no labels.

        Raises:
            RecurraError: If the data cannot be used.
        """
        del data, machine
        return ()

    @abstractmethod
    def data_cost(self, data: RunData, machine: Machine) -> DataCost:
        """Counts the training rows of data by their length in tokens.

        Raises:
            RecurraError: If the data cannot be used.
        """

    @abstractmethod
    def training_share(self, data: RunData) -> float:
        """The share of a corpus's training rows that data take."""

    @property
    def engine(self) -> TaskEngine:
        """The half that trains and measures; imports torch."""
        engine: TaskEngine = part_of(self.name, "engine")
        return engine


@dataclass(frozen=True)
class ExitQuality:
    """What an exit rule does on rows that did not choose it.

    Attributes:
        split: Those rows.
        full: Quality without the rule: nats a token, or accuracy.
        exits: Quality with it.
        agreement: Share of rows whose label is the full model's; none where there are no labels.
        exited_after: Rows or tokens by the recurrences that they took.
    """

    split: str
    full: float
    exits: float
    agreement: float | None
    exited_after: dict[int, int]


class ExitSubject(Protocol):
    """A run whose exit rule is chosen, judged and timed.

    Attributes:
        run_id: The run.
        chosen_on: The split that chooses.
        model: With exits.
        unit: What stops early: ``Rows`` or ``Tokens``.
        quality: What its quality is called.
        timed: What is timed, in words.
    """

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
        call: Computes one batch of `TaskEngine.timing_batches`.
        precision: Of the computation.
    """

    name: str
    call: Callable[[Any], Any]
    precision: str


class TaskEngine(ABC):
    """How models of one task are trained, evaluated, audited and timed; imports torch.

    Attributes:
        exit_option: The option that says how much of the quality an exit rule must keep.
        exit_default: Its value where none is named.
        architecture: Class that a model folder names if its model is of this task.
        takes_foreign_models: Whether models that are not ours can be audited as models of this task.
        records_exits: Whether early exits are kept beside a run's record, for its study's report.
        timing_scope: What a timing covers: ``text`` (text to label) or ``model`` (tokens to logits).
    """

    exit_option: ClassVar[str]
    exit_default: ClassVar[float]
    architecture: ClassVar[str]
    takes_foreign_models: ClassVar[bool] = False
    records_exits: ClassVar[bool] = False
    timing_scope: ClassVar[Literal["model", "text"]]

    @abstractmethod
    def train(self, config: RunConfig, folder: Path, machine: Machine, reporter: Reporter) -> Any:
        """Trains and saves the model of a run, or takes up what an interrupted run left."""

    @abstractmethod
    def execute(self, config: RunConfig, folder: Path, machine: Machine, reporter: Reporter) -> AnyRecord:
        """Trains, measures and audits in a folder that is held; returns the record, to be written last."""

    @abstractmethod
    def present(self, record: AnyRecord, output: str) -> Shown:
        """What a training shows."""

    @abstractmethod
    def evaluate(self, run: Path, options: Given, data_root: Path | None) -> Shown:
        """Evaluates a finished run or an export with options of the command line.

        Raises:
            ConfigurationError: For an option without meaning, or an impossible value.
        """

    @abstractmethod
    def exit_subject(self, run: Path, data_root: Path | None) -> ExitSubject:
        """A finished run with exits.

        Raises:
            ConfigurationError: If it has none.
        """

    @abstractmethod
    def describe_kept(self, keep: float) -> str:
        """What an exit rule must keep, in words."""

    @abstractmethod
    def new_model(self, preset: str, overrides: Mapping[str, Any]) -> Any:
        """A model of a preset with new weights."""

    @abstractmethod
    def load_model(self, folder: Path) -> Any:
        """The model in a model folder, in evaluation mode."""

    @abstractmethod
    def audit_model(self, model: Any, seed: int) -> list[AuditResult]:
        """Audits a model on random tokens."""

    @abstractmethod
    def declared_parameters(self, model: Any) -> int | None:
        """What the accounting says of a model's parameters; none of a model that is not ours."""

    @abstractmethod
    def sample_step(self, config: RunConfig, length: int) -> tuple[Any, float, Any]:
        """A model of a run with new weights, operations of its forward pass over a row, and labels of a batch.

        Labels are none where the tokens themselves are predicted.
        """

    def control_seconds(self, config: RunConfig, machine: Machine) -> float | None:
        """Seconds that a control will take to fit, from a fit on some of its rows; none where there is no control."""
        del config, machine
        return None

    @abstractmethod
    def epoch_flops(self, config: RunConfig, lengths: Mapping[str, int], data: DataCost) -> float:
        """Operations of the forward passes over rows of these lengths.

        Raises:
            ConfigurationError: If the model configuration is wrong.
        """

    @abstractmethod
    def timing_key(self, record: AnyRecord) -> str:
        """Equal for runs that are timed on the same inputs."""

    @abstractmethod
    def timing_inputs(self, record: AnyRecord, folder: Path, machine: Machine) -> Sequence[Any]:
        """What is timed: rows of the last reported split."""

    @abstractmethod
    def timing_batches(self, inputs: Sequence[Any], batch_size: int) -> list[Any]:
        """Inputs in batches of like length."""

    @abstractmethod
    def competitors(self, name: str, folder: Path, record: AnyRecord, *, threads: int) -> Iterator[Competitor]:
        """What stands for a run or an export in a timing."""


def refuse_options(given: Given, allowed: frozenset[str], reason: str) -> None:
    """Refuses options that would do nothing.

    Args:
        given: Options by name; none where one was not given.
        allowed: Those that mean something.
        reason: Why the others do not.

    Raises:
        ConfigurationError: If one was given that does not.
    """
    for option, value in given.items():
        if value is not None and option not in allowed:
            raise ConfigurationError(f"'{option}' has no meaning here: {reason}; leave it out")


def named_options(given: Given, names: Mapping[str, str]) -> dict[str, Any]:
    """The options that were given, by the names of the parameters that they stand for."""
    return {name: given[option] for option, name in names.items() if given.get(option) is not None}


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
    found: Task = part_of(name, "task")
    return found


def tasks() -> list[Task]:
    """Every task."""
    return [task(name) for name in PACKAGES]


def task_of_data(data: RunData) -> Task:
    """The task that some data are for."""
    return task(profile_of_data(data).name)
